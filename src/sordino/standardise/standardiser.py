"""A door to private rows beside the gate: sums over all of them from which offsets and deviations of inputs are made.

Rows are read, counted, clipped and summed here, noise is added, and only then something leaves; it is charged before a
row is read. What is made of it is post-processing (``moments.py``). Whoever audits it reads this file, ``plan.py`` for
sensitivities and multipliers, and ``noise/``.

A unit is a row, or all the rows of a user, which count as one: as their mean. So a unit moves a release by no more than
one row does, however many rows it has. What a row adds is cut off, towards zero, at whole multiples of a power of two,
and sums of these are exact: in which order, by how many threads and beside whom a row is added makes no difference, and
no rounding adds to what a unit does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sordino.data import Examples
from sordino.data.chance import seeded
from sordino.data.standardised import Moments
from sordino.gate import Members
from sordino.noise import GaussianNoise, Streams
from sordino.noise.grid import ROUNDING, grid_for
from sordino.standardise.moments import (
    BINS,
    CELLS,
    HIGHEST,
    LOWEST,
    are_sparse,
    centres,
    floors,
    looked_at_twice,
    scales,
    spreads,
)
from sordino.standardise.plan import DISTANCES, MAGNITUDES, PLACES, SPREADS, MomentsPlan

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_TOGETHER = 1 << 20  # numbers of rows that are in memory at a time
_FINER = (
    2.0**-8
)  # than the grid of the noise need be, so that parts of a unit lose little when they are cut off
_WHOLE = 2.0**50  # steps of the grid that sums have at most: they are exact

Pay = Callable[["DpEvent"], None]
Record = Callable[[int, Tensor], None]
Look = Callable[[Tensor, Tensor, float], Tensor]  # what rows of some weights add to a sum on a grid


class Standardiser:
    """Releases the moments of the inputs of ``examples``, once.

    Guarantee: one Gaussian release of ``plan.multiplier`` over all units, under the zero-out relation. Its noise is a
    function of the streams: asked again it makes the same release of the same rows, and never a second one.
    """

    def __init__(self, plan: MomentsPlan, examples: Examples, members: Members, streams: Streams) -> None:
        assert plan.units == members.count
        self.plan, self._examples, self._members, self._streams = plan, examples, members, streams
        self._draw = GaussianNoise(streams)

    def release(self, pay: Pay, record: Record) -> Moments:
        """``pay`` is called before a row is read, ``record`` with every release before anything is made of it."""
        plan, units = self.plan, self.plan.units
        pay(plan.event)  # first, whatever happens
        zero = torch.zeros(plan.features, dtype=torch.float64)
        sizes, std = self._released(MAGNITUDES, partial(magnitudes, zero), record)
        sizes = sizes.view(-1, BINS)
        sparse = are_sparse(sizes, units)
        wide = scales(sizes, std, units, sparse)
        where, std = self._released(PLACES, partial(located, wide), record)
        centre = centres(where.view(-1, CELLS), std, units, wide)
        distances, std = self._released(DISTANCES, partial(magnitudes, centre), record)
        near = scales(looked_at_twice(sizes, distances.view(-1, BINS), centre), std, units, sparse)
        sums, std = self._released(SPREADS, partial(sums_within, centre, near), record)
        offset, deviation = spreads(sums, std, units, centre, near, floors(sparse))
        shape = plan.shape_of_moments
        return Moments(offset.float().view(shape), deviation.float().view(shape))

    def _released(self, number: int, look: Look, record: Record) -> tuple[Tensor, float]:
        """The sum of what rows add, with its noise; and the noise's standard deviation."""
        plan = self.plan
        total = self.total(number, look)
        # Twice the room: rounding to the grid of the noise, and what is far less, that of a mean over pixels, say.
        std = plan.multiplier_of(number) * plan.sensitivity(number) * (1 + 2 * ROUNDING)
        noisy = self._draw.add_(total, std, "standardise", number, self.grid_of_noise(number))
        record(number, noisy)
        return noisy, std

    def grid_of_noise(self, number: int) -> float:
        """On which sum and noise meet: that of any sum of this sensitivity and size, far wider than the gaps that a
        generator of doubles has between its numbers."""
        return max(grid_for(self.plan.sensitivity(number), self.plan.size(number)), self.grid(number))

    def grid(self, number: int) -> float:
        """The step at which what a row adds is cut off: a power of two, fine, but not so fine that sums were not
        exact."""
        plan = self.plan
        least = 2.0 ** math.ceil(math.log2(plan.units)) / _WHOLE
        return max(grid_for(plan.sensitivity(number), plan.size(number)) * _FINER, least)

    def total(self, number: int, look: Look) -> Tensor:
        """What all rows add, exactly: it never leaves this file without its noise."""
        grid, total = self.grid(number), torch.zeros(self.plan.size(number), dtype=torch.float64)
        for rows, weights in self._parts():
            total += look(rows, weights, grid)
        return total

    def _parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Some rows at a time, as doubles [n, features, positions], and of each how much of its unit it is: nothing, if
        it cannot be read or has a number that is not finite."""
        plan, count = self.plan, len(self._examples)
        together = max(1, _TOGETHER // (plan.features * plan.positions))
        sizes = None if self._members.groups is None else torch.bincount(self._members.groups)
        for start in range(0, count, together):
            places = torch.arange(start, min(start + together, count))
            kept, rows = self._readable(places, start)
            rows = rows.detach().to("cpu", torch.float64).reshape(len(kept), plan.features, plan.positions)
            finite = rows.isfinite().flatten(1).all(1)
            weights = finite.double()
            if sizes is not None and self._members.groups is not None:
                weights /= sizes[self._members.groups[places[kept]]]
            yield rows.where(finite.view(-1, 1, 1), 0.0), weights  # 0 times what is not finite is no number

    def _readable(self, places: Tensor, start: int) -> tuple[Tensor, Any]:
        """As the gate reads them: what a data set draws is the same whenever it is asked, and no warning is seen."""
        draws = self._examples.may_draw_randomness
        chance = seeded(self._streams.seed_for("standardise rows", start)) if draws else nullcontext()
        with chance, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept, inputs, _ = self._examples.take_readable(places)
        return kept, inputs


def magnitudes(centre: Tensor, rows: Tensor, weights: Tensor, grid: float) -> Tensor:
    """Counts of distances from ``centre`` [F], by their power of two [F * BINS]."""
    distances = (rows - centre.view(1, -1, 1)).abs_()
    # frexp: a number is m 2^e, with m from 1/2 to 1.
    bins = distances.frexp().exponent.sub_(1 + LOWEST).clamp_(0, HIGHEST - LOWEST).add_(1)
    return _counts(bins.where(distances >= 2.0**LOWEST, 0), BINS, weights, grid)


def located(scale: Tensor, rows: Tensor, weights: Tensor, grid: float) -> Tensor:
    """Counts of values by equal parts of -``scale`` [F] to ``scale``, beyond which they are in the last [F * CELLS]."""
    cells = rows.div(scale.view(1, -1, 1)).clamp_(-1, 1).add_(1).mul_(CELLS / 2).long().clamp_(max=CELLS - 1)
    return _counts(cells, CELLS, weights, grid)


def _counts(bins: Tensor, number: int, weights: Tensor, grid: float) -> Tensor:
    """By this ``number`` of bins of each feature. A row of weight 1 adds 1 in all to those of a feature, in equal parts
    for its positions."""
    _, features, positions = bins.shape
    each = cut_off(weights / positions, grid).view(-1, 1, 1).expand_as(bins)
    bins = bins + torch.arange(features).view(1, -1, 1) * number
    return torch.bincount(bins.flatten(), each.flatten(), minlength=features * number)


def sums_within(centre: Tensor, scale: Tensor, rows: Tensor, weights: Tensor, grid: float) -> Tensor:
    """Sums of (x - centre) / scale, cut off at -1 and 1, a mean over positions; of its square; and of the rows:
    [2 F + 1]."""
    values = rows.sub(centre.view(1, -1, 1)).div_(scale.view(1, -1, 1)).clamp_(-1, 1)
    parts = [values.mean(2), values.square().mean(2), torch.ones(len(rows), 1, dtype=torch.float64)]
    return cut_off(torch.cat(parts, 1) * weights.unsqueeze(1), grid).sum(0)


def cut_off(values: Tensor, grid: float) -> Tensor:
    """Whole multiples of the grid, none further from zero than before."""
    return values.mul(1 / grid).trunc_().mul_(grid)
