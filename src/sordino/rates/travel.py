"""The classic rate D / (G sqrt(T)): G measured as training goes, D from the size of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sordino.rates.controller import RateController, State, bounded
from sordino.steps import Gradient, Plan, StepResult

ONE_LAYER = 3.5  # the travel of one layer of several
DEEPER = 0.75  # with so many layers behind one another it is that many times less, to this power
CLEAR = 36.0  # how far all gradients could lead, in times of where noise leads, at which
LINEAR = 3.0  # is the travel of a linear model; clearer gradients lead it further, with this power
CLEARER = 0.25
LEAST, MOST = 2.0, 8.0


@dataclass(frozen=True)
class Travel(RateController):
    """The classic rate D / (G sqrt(T)), with the size G of the gradients measured as training goes.

    ``rate_t = D / sqrt(T * mean_(s <= t) |g_s|^2)``, with ``D = travel * |sizes|``.

    With this rate T steps of unrelated directions lead a distance D away, and noise, which is most of a
    private gradient, does lead in unrelated directions. How far it may lead is a matter of the scale of the
    model's parameters (their ``sizes``, 1/sqrt(fan-in) in torch's layers) and of how many layers disturb one
    another, and not of batch size, budget, threshold, or number of steps: so one rule serves them all
    (docs/self_tuning.md has the measurements). The gradients are measured in units of the threshold, so when it
    moves, the rate follows. Of correlated noise, which later steps take back in part, only what gathers in the
    sum of all steps counts.

    Args:
        travel: How far a run may lead, in times of the norm that parameters of these sizes have. None follows
            from the number of layers L, 3.5 / L^0.75, and in a linear model, where no layer blows up the noise
            of another, from how little noise there is.

    Guarantee: post-processing of released gradients, which costs no privacy.

    >>> from sordino import Normalised, Sgd, method
    >>> method(clip=Normalised(), step=Sgd(), rate=Travel(), average=0.1).describe()["needs"]
    []
    """

    travel: float | None = None
    adapts = True
    needs_rate = False
    needs_plain_steps = True

    def __post_init__(self) -> None:
        if self.travel is not None and not 0 < self.travel < math.inf:
            raise ValueError(f"travel must be positive and finite, not {self.travel:g}")

    def start(self, plan: Plan, theta: Tensor) -> State:
        return {
            "reach": reach(plan, self.travel),
            "steps": 0,
            "squares": 0.0,  # of the gradients so far; of correlated noise without that of the noise
            "noise": _gathered(plan) / plan.steps,  # of one step's square, if noise is correlated
        }

    def rate(self, step: int, state: State, gradient: Gradient) -> float:
        mean = (state["squares"] + _square(gradient, state)) / (state["steps"] + 1)
        if state["noise"]:
            mean = max(0.0, mean) + state["noise"]
        return bounded(state["reach"] / (_unit(gradient) * math.sqrt(mean))) if mean > 0 else 0.0

    def update(self, state: State, result: StepResult, theta: Tensor) -> State:
        squares = sum(_square(g, state) for g in result.gradients) / len(result.gradients)
        if not math.isfinite(squares):
            return state  # a gradient that overflowed says nothing about the next
        return {**state, "steps": state["steps"] + 1, "squares": state["squares"] + squares}


def reach(plan: Plan, travel: float | None = None) -> float:
    """D / sqrt(T): how far a step may lead."""
    travel = default_travel(plan) if travel is None else travel
    return travel * _length(plan) / math.sqrt(plan.steps)


def default_travel(plan: Plan) -> float:
    """From public numbers alone."""
    if plan.layers > 1:
        return ONE_LAYER / math.pow(plan.layers, DEEPER)
    gathered = math.sqrt(plan.batches) if plan.gathered is None else plan.gathered
    noise = plan.noise_multiplier / plan.expected_batch * gathered * math.sqrt(plan.parameters)
    clear = plan.batches / noise if noise else math.inf
    return min(MOST, max(LEAST, LINEAR * math.pow(clear / CLEAR, CLEARER)))


def _length(plan: Plan) -> float:
    """The norm that parameters of these sizes have."""
    if not plan.sizes:
        return plan.size * math.sqrt(plan.parameters)
    return math.sqrt(sum(count * size**2 for count, size in plan.sizes))


def _gathered(plan: Plan) -> float:
    """The squared length of the noise in the sum of all gradients, in units of the threshold; 0 where that of one step
    tells it as well."""
    if plan.gathered is None:
        return 0.0
    return plan.parameters * (plan.noise_multiplier / plan.expected_batch * plan.gathered) ** 2


def _unit(gradient: Gradient) -> float:
    return gradient.threshold if math.isfinite(gradient.threshold) else 1.0


def _square(gradient: Gradient, state: State) -> float:
    square = (float(gradient.gradient.norm()) / _unit(gradient)) ** 2
    if not state["noise"]:
        return square
    return square - gradient.gradient.numel() * (gradient.noise_std / _unit(gradient)) ** 2
