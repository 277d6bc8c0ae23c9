"""ADADP's step: one full step against two half steps, each gradient from a batch of its own.

Koskela and Honkela, "Learning rate adaptation for differentially private learning", AISTATS 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.steps.rule import Field, Plan, Rate, State, StepResult, StepRule


@dataclass(frozen=True)
class Extrapolation(StepRule):
    """ADADP's step: two gradients, G1 at theta and G2 at the half step theta - rate/2 G1.

    The full step is theta - rate G1 and two half steps lead to theta - rate/2 (G1 + G2); how far these are
    apart is the error estimate that a ``Tolerance`` follows.

    Args:
        keep: ``"hat"`` goes on from the two half steps, which use both gradients and so carry half of the
            noise variance; ``"full"``, from the full step, is how the paper's main text reads.
        freeze_after: After so many epochs the rule takes plain steps, one batch each, and estimates no
            error.

    Guarantee: post-processing of released gradients, which costs no privacy. Both batches are charged.

    Reference: Koskela and Honkela, "Learning rate adaptation for differentially private learning", AISTATS
    2020.

    >>> Extrapolation().steps(batches=100, batches_per_epoch=10)  # as many steps, and batches they draw
    (50, 100)
    >>> Extrapolation(freeze_after=4).steps(batches=100, batches_per_epoch=10)
    (80, 100)
    """

    keep: str = "hat"
    freeze_after: float | None = None  # epochs
    estimates_error = True

    @property
    def uses_every_gradient(self) -> bool:
        return self.keep == "hat"

    def __post_init__(self) -> None:
        if self.keep not in ("hat", "full"):
            raise ValueError(f"keep must be hat or full, not {self.keep!r}")
        if self.freeze_after is not None and not self.freeze_after > 0:
            raise ValueError(
                f"freeze_after is a number of epochs and must be positive, not {self.freeze_after:g}"
            )

    def steps(self, batches: int, batches_per_epoch: float) -> tuple[int, int]:
        free = math.inf if self.freeze_after is None else self.freeze_after * batches_per_epoch
        pairs = max(1, round(min(batches, free) / 2))
        singles = max(0, batches - 2 * pairs) if free < batches else 0
        return pairs + singles, 2 * pairs + singles

    def start(self, theta: Tensor, plan: Plan) -> State:
        # A pair draws one batch more than a plain step.
        return {"steps": 0, "pairs": plan.batches - plan.steps}

    def step(
        self, field: Field, theta: Tensor, rate: Rate, state: State, limit: float = math.inf
    ) -> StepResult:
        before = theta.clone() if math.isfinite(limit) else None
        frozen = state["steps"] >= state["pairs"]
        state["steps"] += 1
        first = field(theta)
        eta = rate(first)
        if frozen:
            theta.add_(first.gradient, alpha=-eta)
            return StepResult((first,), eta, first.gradient)
        full = torch.add(theta, first.gradient, alpha=-eta)
        theta.add_(first.gradient, alpha=-eta / 2)
        second = field(theta)
        hat = theta.add_(second.gradient, alpha=-eta / 2)
        # (6): each coordinate's difference relative to max(1, |full|); the paper's numerator is misprinted.
        size = full.abs().clamp_min_(1)
        if self.keep == "full":
            error = float(torch.sub(full, hat).div_(size).norm())
            theta.copy_(full)
            direction = first.gradient
        else:
            error = float(full.sub_(hat).div_(size).norm())
            direction = torch.lerp(first.gradient, second.gradient, 0.5)
        # An error that is no number is above every limit but none.
        if before is not None and not error <= limit:
            theta.copy_(before)  # both batches are spent all the same
        return StepResult((first, second), eta, direction, error)
