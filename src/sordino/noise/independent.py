"""Fresh, independent Gaussian noise on every release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from sordino.data.sampling import Sampling
from sordino.noise.gaussian import GaussianNoise
from sordino.noise.grid import grid_for
from sordino.noise.mechanism import Mechanism, Releases, State
from sordino.privacy.events import repeat

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Independent noise: fresh Gaussian noise on every release.

    Guarantee: a release is one Gaussian mechanism on a batch, amplified where the sampling allows.

    >>> from sordino import Poisson
    >>> Gaussian().over(Poisson(0.01), 1000, None).cost(50, 1.1, ()).count
    50
    """

    independent = True

    def over(self, sampling: Sampling, units: int, steps: int | None) -> Releases:
        return _IndependentReleases(sampling, units)


@dataclass(frozen=True)
class _IndependentReleases(Releases):
    sampling: Sampling
    units: int

    def split(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> float:
        return joint_split(noise_multiplier, probe_multipliers)

    def charge(
        self, step: int, noise_multiplier: float, probe_multipliers: Sequence[float]
    ) -> tuple[str, DpEvent]:
        # Gradient and probes are one joint release of the multiplier z.
        event = self.sampling.release(noise_multiplier, self.units)
        return self.sampling.charge_key(step, self.units), event

    def cost(self, steps: int, noise_multiplier: float, probe_multipliers: Sequence[float]) -> DpEvent:
        _, event = self.charge(0, noise_multiplier, probe_multipliers)
        return repeat(event, self.sampling.charges(steps, self.units))

    def gathered(self, steps: int) -> float:
        return math.sqrt(steps)

    def add_(
        self,
        vector: Tensor,
        draw: GaussianNoise,
        noise_multiplier: float,
        threshold: float,
        step: int,
        state: State,
    ) -> float:
        std = noise_multiplier * threshold
        draw.add_(vector, std, "noise", step, grid_for(threshold, vector.numel()))
        return std


def joint_split(noise_multiplier: float, probe_multipliers: Sequence[float]) -> float:
    """The gradient's own multiplier when probes share one joint Gaussian release of ``noise_multiplier``.

    Scaled by its noise, one unit's contribution has squared norm z_g^-2 + sum z_probe^-2, which must be z^-2
    (Galli et al., Proposition 1; Andrew et al. for the quantile).

    >>> round(joint_split(1.0, [7.124]), 6)
    1.01
    """
    if noise_multiplier == 0:
        return 0.0
    left = noise_multiplier**-2 - sum(z**-2 for z in probe_multipliers)
    if left <= 0:
        raise ValueError(
            f"the probes alone spend more than a noise multiplier of {noise_multiplier:g} allows: give them "
            "more noise"
        )
    return 1 / math.sqrt(left)
