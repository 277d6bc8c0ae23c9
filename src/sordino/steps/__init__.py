"""Step rules."""

from sordino.steps.adam import Adam, AdamWithoutSecondMoments
from sordino.steps.extrapolation import Extrapolation
from sordino.steps.ftrl import Ftrl
from sordino.steps.rule import Field, Gradient, Plan, Rate, StepResult, StepRule
from sordino.steps.sgd import Sgd

__all__ = [
    "Adam",
    "AdamWithoutSecondMoments",
    "Extrapolation",
    "Field",
    "Ftrl",
    "Gradient",
    "Plan",
    "Rate",
    "Sgd",
    "StepResult",
    "StepRule",
]
