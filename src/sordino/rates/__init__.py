"""Rate controllers."""

from sordino.rates.controller import RateController
from sordino.rates.fixed import Constant, Scheduled

__all__ = ["Constant", "RateController", "Scheduled"]
