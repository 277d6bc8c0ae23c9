"""What is chosen when the user chooses nothing: by the number of units and by speed on made-up rows, both public."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_MOST = 4  # times the default epochs and batch: beyond that time brings nothing
_RESERVE = 0.1  # of the time that is given, for what is not measured


def default_batch_size(units: int) -> int:
    """8 sqrt(n).

    >>> [default_batch_size(n) for n in (5, 1437, 32561, 60000)]
    [5, 303, 1444, 1960]
    """
    return max(1, min(units, round(8 * math.sqrt(units))))


def default_epochs(units: int) -> float:
    """About 1,200,000 gradients, in at least 10 and at most 40 passes.

    >>> [round(default_epochs(n), 1) for n in (1437, 32561, 60000, 1_000_000)]
    [40.0, 36.9, 20.0, 10.0]
    """
    return min(40.0, max(10.0, 1_200_000 / units))


@dataclass(frozen=True)
class Speed:
    """Seconds that the gradient of a unit takes, and a step besides (who takes part, noise); of made-up rows."""

    per_unit: float
    per_step: float

    def minutes(self, batches: int, batch_size: int) -> float:
        """
        >>> Speed(per_unit=1e-4, per_step=0.02).minutes(600, 1000)
        1.2
        """
        return batches * (batch_size * self.per_unit + self.per_step) / 60

    def to_state(self) -> dict[str, float]:
        return {"per_unit": self.per_unit, "per_step": self.per_step}


@dataclass(frozen=True)
class Pace:
    """So many batches of so many units, of which a sampling makes ``per_epoch`` an epoch."""

    units: int
    batches: int
    batch_size: int
    per_epoch: int
    whole: bool = False  # what is left over of whole batches is never used

    @property
    def gradients(self) -> int:
        return self.batches * self.batch_size

    @property
    def largest(self) -> Pace:
        """As many batches of the largest size that brings something."""
        return self._with_batches_of(min(self.units, _MOST * self.batch_size))

    def within(self, minutes: float, speed: Speed) -> Pace:
        """This pace, the default one, in the time that is given: in less of it fewer batches, down to one epoch (which
        may take longer), in more of it larger ones, up to four times.

        Larger batches and as many epochs more are as many steps; more steps were tried too, and brought nothing.

        >>> usual, speed = Pace(60_000, 612, 1960, 31), Speed(1e-4, 0.0)  # two minutes
        >>> [(each.batches, each.batch_size) for each in (usual.within(t, speed) for t in (0.01, 1, 2.3, 5, 60))]
        [(31, 1960), (275, 1960), (612, 2029), (612, 4411), (612, 7840)]
        """
        room = (1 - _RESERVE) * minutes
        if room < speed.minutes(self.batches, self.batch_size):
            fit = math.floor(room / speed.minutes(1, self.batch_size))
            return replace(self, batches=min(self.batches, max(self.per_epoch, fit)))
        fit = math.floor((60 * room / self.batches - speed.per_step) / speed.per_unit)
        return self._with_batches_of(max(self.batch_size, min(self.largest.batch_size, fit)))

    def enough(self, speed: Speed) -> float:
        """Minutes, rounded up, beyond which `within` has no use for more of them."""
        needed = speed.minutes(self.batches, self.largest.batch_size) / (1 - _RESERVE)
        return float(math.ceil(needed)) if needed > 1 else math.ceil(10 * needed) / 10

    def _with_batches_of(self, size: int) -> Pace:
        if self.whole:  # as large as leaves few over
            size = max(self.batch_size, self.units // math.ceil(self.units / size))
        return replace(self, batch_size=size)
