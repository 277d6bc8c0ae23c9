"""Clipped sums of per-example gradients without per-example gradients."""

from sordino.gradients.bounds import MOST_UNITS, rounding_of_sums, row_squares
from sordino.gradients.calls import Loss, call_model
from sordino.gradients.engine import Engine, Norms, Weigh
from sordino.gradients.examine import evaluating
from sordino.gradients.fallback import SlowGradients, loop_gradients
from sordino.gradients.refuse import Unsuitable, refuse, replace_batchnorm

__all__ = [
    "MOST_UNITS",
    "Engine",
    "Loss",
    "Norms",
    "SlowGradients",
    "Unsuitable",
    "Weigh",
    "call_model",
    "evaluating",
    "loop_gradients",
    "refuse",
    "replace_batchnorm",
    "rounding_of_sums",
    "row_squares",
]
