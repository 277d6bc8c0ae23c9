"""How a tuning is counted: reserved as a whole before anything runs, closed with what it has spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sordino.ledger import Account, LedgerError, LedgerFile, ledger_of
from sordino.privacy import repeat
from sordino.privacy.selection import Stopping
from sordino.privacy.wording import SEED_WARNING
from sordino.runs import RunDirectory, delete_checkpoint
from sordino.runs.counting import check_named
from sordino.runs.options import Options
from sordino.runs.plan import inputs_caveat
from sordino.tuning.plan import TuningPlan
from sordino.tuning.state import Standing


def ledger_for_tuning(asked: Options) -> LedgerFile | None:
    """What it is counted in, if anything; refuses what cannot count it."""
    ledger = ledger_of(asked.ledger)
    if ledger is None:
        return None
    if not isinstance(ledger, LedgerFile):
        raise ValueError("a tuning reserves for itself: give the ledger's file")
    check_named(asked.data_name)
    return ledger


@contextmanager
def counted(
    asked: Options, plan: TuningPlan, standing: Standing, directory: RunDirectory, unit: str, kept: bool
) -> Iterator[Account | None]:
    """The account, open in here; None if nobody counts. What cannot be resumed is closed."""
    ledger = ledger_for_tuning(asked)
    if ledger is None:
        yield None
        return
    names = dict.fromkeys(each.method.name for each in plan.candidates)
    caveats = [*plan.caveats, inputs_caveat(asked.inputs), SEED_WARNING if standing.seeded else None]
    try:
        account = ledger.reserve(
            asked.data_name,
            plan.event,
            run=standing.run,
            kind=plan.kind,
            unit=unit,
            delta=plan.budget.delta,
            label=", ".join(names),
            caveat=" ".join(dict.fromkeys(filter(None, caveats))),
        )
    except LedgerError:
        if not asked.resume:
            _forget(directory)  # nothing was begun: the same directory will do for a smaller budget
        raise
    try:
        yield account
    except BaseException:
        if not kept:  # what can be resumed stays reserved
            with suppress(LedgerError):
                _close(account, plan.stopping, standing, plan)
        raise


def _forget(directory: RunDirectory) -> None:
    delete_checkpoint(directory.checkpoint_folder)
    for name in ("run.json", "history.jsonl"):
        (directory.path / name).unlink(missing_ok=True)


def _close(account: Account, stopping: Stopping | None, standing: Standing, plan: TuningPlan) -> None:
    account.close(None if stopping is None else repeat(plan.run_event, standing.progress.get("begun", 0)))
