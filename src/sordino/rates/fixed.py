"""Rates laid down in advance: constant, or a schedule over the planned steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sordino.rates.controller import RateController, State, check_rate
from sordino.steps import Gradient, Plan


@dataclass(frozen=True)
class Constant(RateController):
    """One rate for the whole run.

    Args:
        learning_rate: The rate, above 0.

    >>> Constant(0.5).rate(step=7, state={})
    0.5
    """

    learning_rate: float

    def __post_init__(self) -> None:
        check_rate(self.learning_rate)

    def rate(self, step: int, state: State, gradient: Gradient | None = None) -> float:
        return self.learning_rate


@dataclass(frozen=True)
class Scheduled(RateController):
    """A rate that falls along a curve, after a linear warm-up.

    Args:
        learning_rate: Where it starts, or what a warm-up leads to.
        shape: ``"cosine"`` or ``"linear"``.
        final: What is left of the rate at the end, as a share.
        warmup: The share of the steps over which it rises.

    >>> controller = Scheduled(1.0, shape="linear", warmup=0.0)
    >>> [controller.rate(step, {"total_steps": 4}) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """

    learning_rate: float
    shape: str = "cosine"
    final: float = 0.0
    warmup: float = 0.0  # a fraction of the steps

    def __post_init__(self) -> None:
        check_rate(self.learning_rate)
        if self.shape not in ("linear", "cosine"):
            raise ValueError(f"schedule must be linear or cosine, not {self.shape!r}")
        if not (0 <= self.final <= 1 and 0 <= self.warmup < 1):
            raise ValueError("final must be in [0, 1] and warmup in [0, 1)")

    def start(self, plan: Plan, theta: Tensor) -> State:
        return {"total_steps": plan.steps}

    def rate(self, step: int, state: State, gradient: Gradient | None = None) -> float:
        total = int(state["total_steps"])
        rising = self.warmup * total
        if step < rising:
            return self.learning_rate * (step + 1) / (rising + 1)
        done = min(1.0, (step - rising) / max(1.0, total - rising))
        left = 1 - done if self.shape == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * (self.final + (1 - self.final) * left)
