"""Step rules."""

from sordino.steps.adam import Adam, AdamWithoutSecondMoments
from sordino.steps.rule import Field, StepResult, StepRule
from sordino.steps.sgd import Sgd

__all__ = ["Adam", "AdamWithoutSecondMoments", "Field", "Sgd", "StepResult", "StepRule"]
