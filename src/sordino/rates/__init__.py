"""Rate controllers."""

from sordino.rates.controller import RateController
from sordino.rates.distance import DistanceOverGradients
from sordino.rates.fixed import Constant, Scheduled
from sordino.rates.hypergradient import Hypergradient
from sordino.rates.tolerance import Tolerance, default_tolerance
from sordino.rates.travel import Travel

__all__ = [
    "Constant",
    "DistanceOverGradients",
    "Hypergradient",
    "RateController",
    "Scheduled",
    "Tolerance",
    "Travel",
    "default_tolerance",
]
