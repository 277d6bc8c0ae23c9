"""Tuning that pays: grids composed as one mechanism, and private selection with random stopping."""

from sordino.tuning.tune import abandon, tune

__all__ = ["abandon", "tune"]
