"""ADADP's controller: keep the error estimate of a step near a tolerance (Koskela and Honkela, 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sordino.rates.controller import RateController, State, bounded, check_rate
from sordino.steps import Gradient, Plan, StepResult

TRAVEL = 1.4  # see default_tolerance
TOLERANCE_WITHOUT_NOISE = 0.1  # the paper's value for runs without privacy


def default_tolerance(plan: Plan) -> float:
    """1.4 size sqrt(d / T), for T steps on d parameters whose shapes call for that size, 1/sqrt(fan-in).

    Where noise dominates, the error of a step is rate * std * sqrt(d / 2), std that of a coordinate's noise; two half
    steps move a coordinate by rate * std / sqrt(2). So an error of tol makes noise of tol sqrt(T / d) gather in each
    coordinate over the run, and this rule lets it come to 1.4 times the size parameters have. For the paper's MNIST
    network it is 0.096 sqrt(d / 2T); docs/results.md has the measurements. Plain steps after a freeze count in T but
    are not held at tol, so then the figure is a rough one.
    """
    if plan.noise_multiplier == 0:
        return TOLERANCE_WITHOUT_NOISE
    return TRAVEL * plan.size * math.sqrt(plan.parameters / plan.steps)


@dataclass(frozen=True)
class Tolerance(RateController):
    """ADADP's rate: ``rate <- rate * clamp((tol / error)^exponent, shrink, grow)`` after every step.

    When the step rule stops to estimate errors, the rate falls as 1 / (1 + decay k) over the k-th epoch
    from there.

    Args:
        learning_rate: Where it starts; what it comes to does not depend on it for long.
        tol: The error to hold; None follows from the plan (``default_tolerance``).
        exponent: Of tol / error; the authors' code has 0.5.
        shrink: The least factor of a step.
        grow: The largest.
        discard: Take steps with an error above tol back. Their batches are spent all the same.
        decay: Of the rate, an epoch, once errors are no longer estimated.
        reduction: ``"sum"`` reads the starting rate as one for sums of gradients, as the paper has it;
            ``"mean"`` for means.

    Guarantee: post-processing of released gradients, which costs no privacy.

    Reference: Koskela and Honkela, "Learning rate adaptation for differentially private learning", AISTATS
    2020.

    >>> from sordino import Extrapolation, Normalised, method
    >>> method(clip=Normalised(), step=Extrapolation(), rate=Tolerance()).describe()["adapts"]
    ['learning_rate']
    """

    learning_rate: float = 0.1  # eta_0: where it starts
    tol: float | None = None
    exponent: float = 1.0  # the authors' code has 0.5
    shrink: float = 0.9  # alpha_min
    grow: float = 1.1  # alpha_max
    discard: bool = False
    decay: float = 0.1
    reduction: str = "mean"
    adapts = True
    needs_rate = False
    needs_independent_noise = True
    needs_error = True

    def __post_init__(self) -> None:
        check_rate(self.learning_rate)
        if self.tol is not None and not 0 < self.tol < math.inf:
            raise ValueError(f"tol must be positive and finite, not {self.tol:g}")
        if not (0 < self.exponent <= 1 and 0 < self.shrink <= 1 <= self.grow < math.inf and self.decay >= 0):
            raise ValueError("Tolerance needs exponent in (0, 1], 0 < shrink <= 1 <= grow and decay >= 0")
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be mean or sum, not {self.reduction!r}")

    def start(self, plan: Plan, theta: Tensor) -> State:
        return {
            "rate": self.learning_rate * (plan.expected_batch if self.reduction == "sum" else 1.0),
            "tol": default_tolerance(plan) if self.tol is None else self.tol,
            "batches_per_epoch": plan.batches_per_epoch,
            "frozen_from": plan.batches - plan.steps,  # a step with an error estimate draws one batch more
        }

    def rate(self, step: int, state: State, gradient: Gradient | None = None) -> float:
        frozen = step - state["frozen_from"]
        epoch = 0 if frozen < 0 else 1 + math.floor(frozen / state["batches_per_epoch"])
        return float(state["rate"] / (1 + self.decay * epoch))

    def limit(self, state: State) -> float:
        return float(state["tol"]) if self.discard else math.inf

    def update(self, state: State, result: StepResult, theta: Tensor) -> State:
        if result.error is None:
            return state
        ratio = state["tol"] / result.error if result.error else math.inf
        factor = min(max(self.shrink, ratio**self.exponent), self.grow)  # an error that is no number shrinks
        return {**state, "rate": bounded(state["rate"] * factor)}
