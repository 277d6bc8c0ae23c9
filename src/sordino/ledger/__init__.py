"""What was spent on which data set, by all runs together: a file that outlives them."""

from sordino.ledger.account import Account
from sordino.ledger.book import VARIABLE, BeyondCap, LedgerFile, ledger_of
from sordino.ledger.chain import LedgerError

__all__ = ["VARIABLE", "Account", "BeyondCap", "LedgerError", "LedgerFile", "ledger_of"]
