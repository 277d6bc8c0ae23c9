"""Stochastic gradient descent, with or without heavy-ball momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.steps.rule import Field, Plan, Rate, State, StepResult, StepRule


@dataclass(frozen=True)
class Sgd(StepRule):
    """Stochastic gradient descent: ``v <- momentum v + g;  theta <- theta - rate v``.

    Args:
        momentum: Of the heavy ball, in [0, 1); 0 is plain SGD.

    Guarantee: post-processing of released gradients, which costs no privacy.

    >>> from sordino import Constant, Fixed, method
    >>> method(clip=Fixed(1.0), step=Sgd(momentum=0.9), rate=Constant(0.5)).describe()["needs"]
    ['learning_rate', 'threshold']
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {self.momentum:g}")

    @property
    def plain(self) -> bool:
        return self.momentum == 0

    def start(self, theta: Tensor, plan: Plan) -> State:
        return {"velocity": torch.zeros_like(theta)} if self.momentum else {}

    def step(
        self, field: Field, theta: Tensor, rate: Rate, state: State, limit: float = math.inf
    ) -> StepResult:
        released = field(theta)
        eta = rate(released)
        direction = released.gradient
        if self.momentum:
            direction = state["velocity"].mul_(self.momentum).add_(released.gradient)
        theta.add_(direction, alpha=-eta)
        return StepResult((released,), eta, direction)
