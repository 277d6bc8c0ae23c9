"""What is promised: how units are clipped, with which noise, who takes part, and how often something is released.

Said once, before a run begins, from public numbers alone. A door keeps to its terms, accountants price them, and a run
writes them down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sordino.clipping.policy import ClippingPolicy
from sordino.data import Sampling
from sordino.noise import Mechanism, Releases, gaussian
from sordino.privacy import Budget, compose, noise_for, price, show_epsilon
from sordino.privacy.budget import check_delta
from sordino.privacy.events import known_delta, parted
from sordino.privacy.tails import check_reach
from sordino.steps import Plan
from sordino.vector import ParameterVector
from sordino.warn import warn

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Terms:
    """Each unit moves a clipped sum by at most C, and the noise on it has standard deviation ``multiplier * C``.

    ``steps`` is how many releases are planned, None if that is open; ``units`` is n, public under the zero-out
    relation. What has no known price raises ValueError when it is priced.
    """

    clip: ClippingPolicy
    noise: Mechanism
    sampling: Sampling
    units: int
    steps: int | None = None
    multiplier: float = 0.0
    secure: bool = False

    def __post_init__(self) -> None:
        if not (self.multiplier >= 0 and math.isfinite(self.multiplier)):
            raise ValueError(f"noise_multiplier must be 0 or positive, not {self.multiplier:g}")
        if not isinstance(self.clip, ClippingPolicy):
            raise ValueError(f"clip must be a clipping policy such as Fixed(1.0), not {self.clip!r}")
        if not isinstance(self.sampling, Sampling):
            raise ValueError(
                f"sampling must be one such as Poisson(0.1) or FixedOrder(10), not {self.sampling!r}"
            )
        if not isinstance(self.noise, Mechanism):
            raise ValueError(f"noise must be a mechanism such as Tree(restart_every=1), not {self.noise!r}")
        check_together(self.clip, self.noise)
        self.sampling.check(self.units)

    @cached_property
    def releases(self) -> Releases:
        """The noise of all the releases together, and what they cost."""
        return self.noise.over(self.sampling, self.units, self.steps)

    @property
    def expected_batch(self) -> float:
        return self.sampling.expected_batch(self.units)

    @property
    def per_epoch(self) -> int:
        return self.sampling.steps_per_epoch(self.units)

    @cached_property
    def probe_multipliers(self) -> tuple[float, ...]:
        return self._probe_multipliers(self.multiplier)

    def _probe_multipliers(self, multiplier: float) -> tuple[float, ...]:
        return tuple(probe.multiplier for probe in self.clip.probes(multiplier, self.expected_batch))

    @cached_property
    def own_multiplier(self) -> float:
        """The gradient's own, where probes are released beside it; raises ValueError if they leave nothing."""
        return self.releases.split(self.multiplier, self.probe_multipliers)

    def charge(self, step: int) -> tuple[str, DpEvent]:
        """What has to be paid before a step, and the name of the payment: steps of one name are paid once."""
        return self.releases.charge(step, self.multiplier, self.probe_multipliers)

    def cost(self, steps: int) -> DpEvent:
        """All the charges of the first ``steps`` releases."""
        return self.releases.cost(steps, self.multiplier, self.probe_multipliers)

    def cost_with(self, multiplier: float) -> DpEvent:
        """All the charges of the planned releases, if the noise had this multiplier."""
        assert self.steps is not None
        return self.releases.cost(self.steps, multiplier, self._probe_multipliers(multiplier))

    @property
    def explanation(self) -> str | None:
        """Where the events come from, if they do not speak for themselves: a line for the certificate."""
        return self.releases.explanation(self.multiplier, self.probe_multipliers) if self.multiplier else None

    @property
    def caveat(self) -> str | None:
        return self.sampling.caveat

    def numbers(self, vector: ParameterVector, steps: int, expected: float | None = None) -> Plan:
        """What rules and controllers of these parameters may depend on, in a run of so many steps; ``expected`` is how
        many units a step has, where that is not what the sampling says."""
        assert self.steps is not None
        independent = self.noise.independent or not self.multiplier
        return Plan(
            len(vector),
            steps,
            self.steps,
            self.per_epoch,
            self.expected_batch if expected is None else expected,
            self.multiplier,
            vector.size,
            self.noise.restart_steps(self.per_epoch),
            vector.sizes,
            vector.layers,
            None if independent else self.releases.gathered(self.steps),
        )

    def check_sensitivity(self, names: Sequence[str]) -> None:
        """Raise ValueError where a unit could move the sum without bound, for parameters of these names."""
        if self.multiplier and not math.isfinite(self.clip.sensitivity(self.clip.start(names))):
            raise ValueError("noise without clipping gives no guarantee: choose a clipping policy")

    def warn_if_alone(self) -> None:
        if self.multiplier and self.units == 1:
            warn("there is one unit only: with privacy nothing can be learnt from it")

    def within(
        self,
        budget: Budget | None,
        noise_multiplier: float | None,
        delta: float | None,
        accountant: str,
        besides: DpEvent | None = None,
    ) -> tuple[Terms, float | None]:
        """These terms with the noise that the planned releases need, from whatever the user gave, and delta.

        ``besides`` is what else is released on the same budget.
        """
        if (budget is None) == (noise_multiplier is None):
            raise ValueError("give either a budget (epsilon and delta) or a noise multiplier")
        if budget is not None and delta not in (None, budget.delta):
            raise ValueError(
                f"delta is said twice, as {budget.delta:g} in the budget and as {delta:g}: leave out one"
            )
        if delta is not None:
            check_delta(delta)
        assert self.steps is not None
        calls = self.steps
        if budget is not None:
            noise_multiplier, delta = self._noise_within(budget, accountant, besides), budget.delta
        assert noise_multiplier is not None
        if noise_multiplier > 0:
            if delta is None:
                raise ValueError("a noise multiplier needs a delta to be priced at")
            check_reach(gaussian.REACH, noise_multiplier, calls, delta)
        return replace(self, multiplier=float(noise_multiplier)), delta

    def _noise_within(self, budget: Budget, accountant: str, besides: DpEvent | None) -> float:
        if besides is None:
            return noise_for(budget, self.cost_with, accountant)
        check_besides(besides, budget, accountant)
        return noise_for(budget, lambda z: compose([besides, self.cost_with(z)]), accountant)


def check_together(clip: ClippingPolicy, noise: Mechanism) -> None:
    """Raise ValueError where this noise needs a threshold that stays, or gradients that are not compared, and gets
    another."""
    if clip.adapts and not noise.moving:
        raise ValueError(
            f"{type(clip).__name__} moves its threshold, and the noise of {type(noise).__name__} is priced for one "
            "that stays: use a Fixed or Normalised threshold, or Banded noise"
        )
    if clip.compares_gradients and not noise.comparable:
        raise ValueError(
            f"{type(clip).__name__} compares gradients of different batches, and the noise of {type(noise).__name__} "
            "takes back that of the batches before: use a Quantile threshold"
        )


def check_besides(besides: DpEvent, budget: Budget, accountant: str) -> None:
    """Raise ValueError where what is released besides the training leaves nothing of the budget."""
    taken = price(besides, budget.delta, accountant).epsilon
    if taken >= budget.epsilon or known_delta(parted(besides)[1]) >= budget.delta:
        raise ValueError(
            f"what is released besides the training takes epsilon {show_epsilon(taken)} of {budget.epsilon:g} at "
            f"delta {budget.delta:g}, and leaves nothing to train with: give it less, or raise the budget"
        )
