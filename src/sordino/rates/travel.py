"""The classic rate D / (G sqrt(T)): G measured as training goes, D from the size of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sordino.rates.controller import RateController, State, bounded
from sordino.steps import Gradient, Plan, StepResult


@dataclass(frozen=True)
class Travel(RateController):
    """The classic rate D / (G sqrt(T)), with the size G of the gradients measured as training goes.

    ``rate_t = D / sqrt(T * mean_(s <= t) |g_s|^2)``, with ``D = travel * size * sqrt(d)``.

    With this rate T steps of unrelated directions lead a distance D away, and noise, which is most of a
    private gradient, does lead in unrelated directions. How far it may lead is a matter of the scale of the
    model's parameters (their ``size``, 1/sqrt(fan-in)) and not of batch size, budget, threshold, or number
    of steps: so one ``travel`` serves them all (docs/results.md has the measurements). The gradients are
    measured in units of the threshold, so when it moves, the rate follows.

    Args:
        travel: How far a run may lead, in times of the norm that weights of such shapes have at
            1/sqrt(fan-in).

    Guarantee: post-processing of released gradients, which costs no privacy.

    >>> from sordino import Normalised, Sgd, method
    >>> method(clip=Normalised(), step=Sgd(), rate=Travel(), average=0.1).describe()["needs"]  # what auto is
    []
    """

    travel: float = 2.5
    adapts = True
    needs_rate = False
    needs_plain_steps = True

    def __post_init__(self) -> None:
        if not 0 < self.travel < math.inf:
            raise ValueError(f"travel must be positive and finite, not {self.travel:g}")

    def start(self, plan: Plan, theta: Tensor) -> State:
        distance = self.travel * plan.size * math.sqrt(plan.parameters)
        return {"reach": distance / math.sqrt(plan.steps), "steps": 0, "squares": 0.0}

    def rate(self, step: int, state: State, gradient: Gradient) -> float:
        mean = (state["squares"] + _square(gradient)) / (state["steps"] + 1)
        return bounded(state["reach"] / (_unit(gradient) * math.sqrt(mean))) if mean > 0 else 0.0

    def update(self, state: State, result: StepResult, theta: Tensor) -> State:
        squares = sum(_square(g) for g in result.gradients) / len(result.gradients)
        if not math.isfinite(squares):
            return state  # a gradient that overflowed says nothing about the next
        return {**state, "steps": state["steps"] + 1, "squares": state["squares"] + squares}


def _unit(gradient: Gradient) -> float:
    return gradient.threshold if math.isfinite(gradient.threshold) else 1.0


def _square(gradient: Gradient) -> float:
    return (float(gradient.gradient.norm()) / _unit(gradient)) ** 2
