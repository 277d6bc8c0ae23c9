"""Tuning that pays: grids composed as one mechanism, and private selection with random stopping."""

from sordino.tuning.giving_up import abandon
from sordino.tuning.tune import tune

__all__ = ["abandon", "tune"]
