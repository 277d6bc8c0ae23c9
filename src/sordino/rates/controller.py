"""What a rate controller is: it says the learning rate of a step and learns from the step's result."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from sordino.steps import Gradient, Plan, StepResult

State = dict[str, Any]


class RateController(ABC):
    """A rate controller. Settings are the fields of a frozen dataclass; what moves is a ``State``."""

    adapts = False  # the rate moves with what was released
    needs_rate = True  # the user has to give a learning rate (a mere starting point does not count)
    needs_error = False  # of the step rule
    needs_independent_noise = (
        False  # it compares gradients of different batches, whose noise must not be related
    )
    needs_plain_steps = False  # theta moves along the gradients themselves, at the rate

    def start(self, plan: Plan, theta: Tensor) -> State:
        return {}

    @abstractmethod
    def rate(self, step: int, state: State, gradient: Gradient) -> float:
        """The learning rate of step number ``step``, counted from 0, whose first gradient is known."""

    def limit(self, state: State) -> float:
        """The error above which a step is taken back."""
        return math.inf

    def update(self, state: State, result: StepResult, theta: Tensor) -> State:
        """The state after a step that led to ``theta``, from released values only."""
        return state


# Beyond these a single-precision step vanishes or overflows.
SMALLEST, LARGEST = 1e-30, 1e38


def check_rate(learning_rate: float) -> None:
    if not 0 < learning_rate <= LARGEST:
        raise ValueError(f"learning_rate must be positive and at most {LARGEST:g}, not {learning_rate:g}")


def bounded(rate: float) -> float:
    return min(LARGEST, max(SMALLEST, rate))
