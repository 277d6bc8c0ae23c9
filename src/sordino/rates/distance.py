"""Distance over gradients: the rate follows how far training has come (Ivgi, Hinder and Carmon, ICML 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sordino.rates.controller import RateController, State, bounded
from sordino.steps import Gradient, Plan, StepResult


@dataclass(frozen=True)
class DistanceOverGradients(RateController):
    """Distance over gradients: how far training has come, over how large the gradients were.

    ``rate_t = max_(s <= t) |theta_s - theta_0| / sqrt(sum_(s <= t) |g_s|^2)``

    Args:
        initial: The distance taken for granted at first, relative to ``1 + |theta_0|``.

    Guarantee: post-processing of released gradients, which costs no privacy.

    Reference: Ivgi, Hinder and Carmon, "DoG is SGD's best friend: a parameter-free dynamic step size
    schedule", ICML 2023.

    >>> from sordino import Normalised, Sgd, method
    >>> method(clip=Normalised(), step=Sgd(), rate=DistanceOverGradients()).describe()["needs"]
    []
    """

    initial: float = 0.1
    adapts = True
    needs_rate = False
    needs_plain_steps = True

    def __post_init__(self) -> None:
        if not 0 < self.initial < math.inf:
            raise ValueError(f"initial must be positive and finite, not {self.initial:g}")

    def start(self, plan: Plan, theta: Tensor) -> State:
        return {
            "origin": theta.clone(),
            "distance": self.initial * (1 + float(theta.norm())),
            "squares": 0.0,  # of the norms of the gradients so far
        }

    def rate(self, step: int, state: State, gradient: Gradient) -> float:
        squares = state["squares"] + float(gradient.gradient.norm()) ** 2
        return bounded(state["distance"] / math.sqrt(squares)) if squares > 0 else 0.0

    def update(self, state: State, result: StepResult, theta: Tensor) -> State:
        squares = sum(float(g.gradient.norm()) ** 2 for g in result.gradients) / len(result.gradients)
        moved = float((theta - state["origin"].to(theta.device)).norm())
        if not (math.isfinite(squares) and math.isfinite(moved)):
            return state  # a gradient that overflowed says nothing about the next
        return {
            "origin": state["origin"],
            "distance": max(state["distance"], moved),
            "squares": state["squares"] + squares,
        }
