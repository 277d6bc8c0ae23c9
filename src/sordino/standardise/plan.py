"""What standardising costs, and how finely it looks: from public numbers alone.

Four Gaussian releases have fixed shares of one multiplier z: that of share w has z / sqrt(w), so that the sum of
1/z_i^2 is 1/z^2, and all four together cost exactly what one Gaussian of multiplier z does, whatever the later ones
make of the earlier (docs/proofs.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sordino.privacy import Budget, compose, gaussian, noise_for
from sordino.standardise.moments import BINS, CELLS

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# The releases in their order, and their shares of 1/z^2.
MAGNITUDES, PLACES, DISTANCES, SPREADS = range(4)
PARTS = (0.2, 0.2, 0.2, 0.4)
CLASSES = {
    MAGNITUDES: BINS,
    PLACES: CELLS,
    DISTANCES: BINS,
}  # by which a feature is counted; else it is summed
PRECISION = 0.02  # the noise of a moment, in times of its range, that is enough
LEAST_SHARE, MOST_SHARE = 0.01, 0.1  # of the budget's mu^2
# A moment with more noise than this, in times of its range, is not worth its price. Counts of magnitudes have as much,
# in times of the units: with more, scales are taken for others, and a feature that is blown up does more harm than the
# rest does good.
TOO_NOISY = 0.12
_HAIR = 1 + 1e-12  # more noise, so that rounding of the shares is paid for


@dataclass(frozen=True)
class MomentsPlan:
    """Each of ``features`` inputs has moments of its own, a mean over ``positions`` (the pixels of a channel).

    Guarantee: all that `Standardiser` releases is one Gaussian release of this ``multiplier``.
    """

    shape: tuple[int, ...]  # of a row
    features: int
    positions: int
    units: int
    multiplier: float  # z, of all releases together
    share: float  # of the mu^2 of the budget

    @property
    def event(self) -> DpEvent:
        return gaussian(self.multiplier)

    @property
    def one_scale(self) -> bool:
        """Whether units are too few for moments of each feature."""
        return self.features < self.shape[0]

    def sensitivity(self, release: int) -> float:
        """How far a unit moves a release at most, in exact arithmetic: the counts of a feature by 1 together, and each
        of its moments by 1, beside which the rows are counted."""
        return math.sqrt(self.features if release in CLASSES else self.size(release))

    def size(self, release: int) -> int:
        """How many numbers a release has."""
        return self.features * CLASSES[release] if release in CLASSES else 2 * self.features + 1

    def multiplier_of(self, release: int) -> float:
        return self.multiplier / math.sqrt(PARTS[release]) * _HAIR

    @property
    def of_what(self) -> str:
        """What has an offset and a deviation, in words."""
        if self.features == 1:
            return "all inputs together"
        return f"{self.features} {'inputs' if self.positions == 1 else 'channels'}"

    @property
    def shape_of_moments(self) -> tuple[int, ...]:
        """By which a row is shifted and scaled."""
        return self.shape if self.positions == 1 else (self.features, *[1] * (len(self.shape) - 1))

    def describe(self) -> dict[str, Any]:
        """What run.json says."""
        return {
            "how": "private",
            "features": self.features,
            "of": self.of_what,
            "one_scale": self.one_scale,
            "multiplier": self.multiplier,
            "share": self.share,
        }

    @property
    def words(self) -> str:
        """For the certificate."""
        each = "" if self.features == 1 else "each of "
        few = ", since units are too few for more" if self.one_scale else ""
        return (
            f"Inputs were standardised before the first step by an offset and a deviation of {each}{self.of_what}{few}"
            ". They come from four Gaussian releases over all units (counts of magnitudes and places, clipped sums), "
            f"together one of noise multiplier {self.multiplier:.6g}, {100 * self.share:.3g} % of the budget's mu^2; "
            "they are part of the model."
        )


def fits(shape: tuple[int, ...]) -> bool:
    """Whether rows of this shape have a known meaning: (features,), or (channels, height, width)."""
    return len(shape) in (1, 3) and math.prod(shape) > 0


def planned_moments(
    shape: tuple[int, ...],
    units: int,
    budget: Budget,
    accountant: str,
    besides: DpEvent | None = None,
    each_number: bool = False,
) -> MomentsPlan | None:
    """For each feature, or where units are too few one for all; None where they are too few for that.

    A feature is a number of a flat row or a channel of an image, of which with ``each_number`` every pixel is one if
    units are enough.

    A part of what the budget has left beside ``besides``, in terms of the one Gaussian release that would take it all.
    """

    def with_all(multiplier: float) -> DpEvent:
        return compose([*([] if besides is None else [besides]), gaussian(multiplier)])

    whole = noise_for(budget, with_all, accountant)
    for features in dict.fromkeys((math.prod(shape) if each_number else shape[0], shape[0], 1)):
        if noise_of_moments(whole, MOST_SHARE, features, units) <= TOO_NOISY:
            part = share(whole, features, units)
            positions = math.prod(shape) // features
            return MomentsPlan(shape, features, positions, units, whole / math.sqrt(part), part)
    return None


def share(whole: float, features: int, units: int) -> float:
    """The part of the budget's mu^2 that is spent: as much as `PRECISION` needs, within bounds.

    ``whole`` is the multiplier with which one release would take all of the budget.

    >>> share(1.0, 10, 100), share(1.0, 10, 1_000_000), 0.03 < share(1.0, 10, 2000) < 0.04
    (0.1, 0.01, True)
    """
    wanted = (noise_of_moments(whole, 1.0, features, units) / PRECISION) ** 2
    return min(max(wanted, LEAST_SHARE), MOST_SHARE)


def noise_of_moments(whole: float, part: float, features: int, units: int) -> float:
    """The standard deviation of the last release's noise, in times of the range of what is averaged."""
    return whole / math.sqrt(part * PARTS[SPREADS]) * math.sqrt(2 * features + 1) / units
