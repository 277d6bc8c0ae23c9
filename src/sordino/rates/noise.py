"""A rate from the noise: the run's noise may move the parameters so far and no farther."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sordino.rates.controller import RateController, State, bounded
from sordino.steps import Gradient, Plan

SMALLEST_SIZE = 0.02  # taken for the typical size of a parameter when they start at zero


def typical_size(theta: Tensor) -> float:
    """The root mean square of the parameters a run starts from; they are public."""
    return max(SMALLEST_SIZE, float(theta.norm()) / math.sqrt(max(1, len(theta))))


@dataclass(frozen=True)
class NoiseScaled(RateController):
    """rate = travel * size / (std * sqrt(T)), std that of the noise on each coordinate of the gradient.

    Over T steps the noise alone then moves a parameter by about ``travel`` times the size parameters start with.
    How far noise may carry a model is a matter of the model's scale and not of batch size, budget, threshold or
    number of steps, so one value of ``travel`` serves them all (docs/results.md has the measurements). The rate
    follows the noise: when an adaptive threshold halves, the rate doubles.
    """

    travel: float = 2.5
    adapts = True
    needs_rate = False

    def __post_init__(self) -> None:
        if not 0 < self.travel < math.inf:
            raise ValueError(f"travel must be positive and finite, not {self.travel:g}")

    def start(self, plan: Plan, theta: Tensor) -> State:
        if plan.noise_multiplier == 0:
            raise ValueError(
                "NoiseScaled takes its rate from the noise and there is none: use DistanceOverGradients or Tolerance"
            )
        return {"reach": self.travel * typical_size(theta) / math.sqrt(plan.steps)}

    def rate(self, step: int, state: State, gradient: Gradient) -> float:
        return bounded(state["reach"] / gradient.noise_std)
