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
        by_layer: The rate of each parameter is the rate times its size in the beginning over the typical one: then
            noise disturbs all layers alike, relative to their weights.

    Guarantee: post-processing of released gradients, which costs no privacy.

    >>> from sordino import Constant, Fixed, method
    >>> method(clip=Fixed(1.0), step=Sgd(momentum=0.9), rate=Constant(0.5)).describe()["needs"]
    ['learning_rate', 'threshold']
    """

    momentum: float = 0.0
    by_layer: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {self.momentum:g}")

    @property
    def plain(self) -> bool:
        return self.momentum == 0

    def start(self, theta: Tensor, plan: Plan) -> State:
        return {
            **({"velocity": torch.zeros_like(theta)} if self.momentum else {}),
            **({"shares": _shares(theta, plan)} if self.by_layer else {}),
        }

    def step(
        self, field: Field, theta: Tensor, rate: Rate, state: State, limit: float = math.inf
    ) -> StepResult:
        released = field(theta)
        eta = rate(released)
        direction = released.gradient
        if self.momentum:
            direction = state["velocity"].mul_(self.momentum).add_(released.gradient)
        if self.by_layer:
            direction = direction * state["shares"]
        theta.add_(direction, alpha=-eta)
        return StepResult((released,), eta, direction)


def _shares(theta: Tensor, plan: Plan) -> Tensor:
    """The size of each parameter's layer, in times of their root mean square."""
    shares = torch.cat([theta.new_full((count,), size) for count, size in plan.sizes])
    return shares.div_(shares.square().mean().sqrt())
