"""Follow the regularised leader, on the running sum of gradients (Kairouz et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.steps.rule import Field, Plan, Rate, State, StepResult, StepRule


@dataclass(frozen=True)
class Ftrl(StepRule):
    """Follow the regularised leader: ``s <- s + g;  theta <- theta_0 - rate s``, the rate being 1 / lambda.

    Args:
        momentum: v <- momentum v + s and theta_0 - rate v (DP-FTRLM), which with one rate is heavy-ball
            SGD on the same gradients.
        radius: Keeps theta in a ball around theta_0.
        fresh_start: At a restart of the noise the sum goes on, noise and all. With this the current theta
            becomes the new theta_0 instead, and sum and momentum are forgotten.

    Guarantee: post-processing of released gradients, which costs no privacy.

    Reference: Kairouz et al., "Practical and private (deep) learning without sampling or shuffling", ICML
    2021.

    >>> from sordino import Constant, Fixed, Tree, method
    >>> method(clip=Fixed(1.0), step=Ftrl(momentum=0.9), rate=Constant(0.05), noise=Tree()).describe()["noise"]["kind"]
    'Tree'
    """

    momentum: float = 0.0
    radius: float | None = None
    fresh_start: bool = False
    sums_gradients = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {self.momentum:g}")
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise ValueError(f"radius must be a positive number or none, not {self.radius:g}")

    @property
    def plain(self) -> bool:
        return False  # theta follows the whole sum, at whatever the rate is by now

    def start(self, theta: Tensor, plan: Plan) -> State:
        state: State = {
            "origin": theta.clone(),
            "sum": torch.zeros_like(theta),
            "left": plan.restart_steps if self.fresh_start else None,
            "restart": plan.restart_steps,
        }
        if self.momentum:
            state["velocity"] = torch.zeros_like(theta)
        return state

    def step(
        self, field: Field, theta: Tensor, rate: Rate, state: State, limit: float = math.inf
    ) -> StepResult:
        released = field(theta)
        eta = rate(released)
        if state["left"] == 0:
            state["origin"].copy_(theta)
            for name in {"sum", "velocity"} & state.keys():
                state[name].zero_()
            state["left"] = state["restart"]
        if state["left"] is not None:
            state["left"] -= 1
        direction = state["sum"].add_(released.gradient)
        if self.momentum:
            direction = state["velocity"].mul_(self.momentum).add_(direction)
        shrunk = eta
        if self.radius is not None:
            # The nearest point of the ball is also where <s, theta> + lambda/2 |theta - theta_0|^2 is least in it.
            shrunk = min(eta, self.radius / max(float(direction.norm()), 1e-30))
        torch.add(state["origin"], direction, alpha=-shrunk, out=theta)
        return StepResult((released,), eta, released.gradient)
