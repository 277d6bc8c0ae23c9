"""What a rate controller is: it says the learning rate of a step and learns from the step's result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sordino.steps import StepResult

State = dict[str, Any]


class RateController(ABC):
    """A rate controller. Settings are the fields of a frozen dataclass; what moves is a ``State``."""

    def start(self, total_steps: int) -> State:
        return {}

    @abstractmethod
    def rate(self, step: int, state: State) -> float:
        """The learning rate of step number ``step``, counted from 0."""

    def update(self, state: State, result: StepResult) -> State:
        """The state after a step, from released values only."""
        return state


def check_rate(learning_rate: float) -> None:
    if not 0 < learning_rate < float("inf"):
        raise ValueError(f"learning_rate must be positive and finite, not {learning_rate:g}")
