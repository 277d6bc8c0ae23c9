"""What tree aggregation costs: the squared sensitivity of a tree, and trees as plain Gaussian releases.

A tree over `steps` leaves holds one noisy sum for each complete binary block of leaves (Dwork et al. 2010; Kairouz
et al. 2021), and the noise of each has std z times the clip norm. A unit with c participations below a node moves that
node by c clip norms at most. All nodes together are one Gaussian release, whose squared sensitivity is the sum of
c^2 over the complete nodes: the noise multiplier is z / sqrt(that sum). Nothing here assumes anything about sampling.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from sordino.privacy import dp
from sordino.privacy.events import compose, gaussian, repeat

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Trees = list[tuple[int, int]]  # (squared sensitivity, how many such trees)
_Integers = NDArray[np.int64]

_MOST_STEPS = 10**8  # of one tree: a few seconds and 1.3 GB at worst
_MOST_WORK = 300_000_000  # pairs of patterns looked at by `worst_case_sensitivity`: half a minute at most


# One tree -----------------------------------------------------------------------------------------------


def pattern_sensitivity(participations: Sequence[int], steps: int) -> int:
    """The squared sensitivity of a unit that takes part in exactly these steps, counted from 0.

    For a completed tree give the number of its leaves, virtual ones included, as `steps`.

    >>> pattern_sensitivity([0], 8), pattern_sensitivity(range(8), 8)
    (4, 120)
    """
    steps = _steps(steps)
    places = sorted(participations)
    if len(set(places)) < len(places) or any(not 0 <= place < steps for place in places):
        raise ValueError(f"participations must be distinct steps from 0 to {steps - 1}")
    total = 0
    for height in range(steps.bit_length()):
        counts: dict[int, int] = {}
        for place in places:
            block = place >> height
            if (block + 1) << height <= steps:
                counts[block] = counts.get(block, 0) + 1
        total += sum(count**2 for count in counts.values())
    return total


def fixed_order_sensitivity(steps: int, per_epoch: int, *, completed: bool = False) -> int:
    """The squared sensitivity of a tree whose batches come in the same order every epoch.

    The unit of batch j takes part at j, j + per_epoch, ... below `steps`; the result is that of the worst j.
    `completed`: virtual steps without data follow up to the next power of two, and the nodes they complete count.

    >>> fixed_order_sensitivity(1600, 1600)  # one participation: floor(log2(1600)) + 1 nodes
    11
    >>> fixed_order_sensitivity(20 * 240, 240)
    798
    """
    steps = _steps(steps)
    period = min(_whole("per_epoch", per_epoch, least=1), steps)
    leaves = leaves_of(steps, completed)
    # Every unit gets `common`; unit j also gets the sum of `changes` up to j, plus up to period + j: an interval of
    # units that runs over the end of an epoch goes on at its beginning.
    common = 0
    changes = np.zeros(2 * period + 1, dtype=np.int64)
    for height in range(leaves.bit_length()):
        size = 1 << height
        if size <= period:  # one participation in a block at most: count those below the last complete one
            epochs, rest = divmod(min(steps, leaves >> height << height), period)
            common += epochs
            changes[0] += 1
            changes[rest] -= 1
            continue
        starts = np.arange(leaves >> height, dtype=np.int64) << height
        counts, rest_of = np.divmod(np.clip(steps - starts, 0, size), period)
        common += int((counts**2).sum())
        first = starts % period  # these units, rest_of many, have one more: (c + 1)^2 - c^2
        np.add.at(changes, first, 2 * counts + 1)
        np.add.at(changes, first + rest_of, -(2 * counts + 1))
    more = np.cumsum(changes[:-1])
    return common + int((more[:period] + more[period:]).max())


def worst_case_sensitivity(
    steps: int, *, min_separation: int, max_participation: int | None = None, completed: bool = False
) -> int:
    """The squared sensitivity of a tree where nobody knows the order of the data, only two limits on it.

    Between two participations of a unit there are at least `min_separation` steps without it, as TensorFlow Privacy
    has it (so the steps differ by `min_separation + 1` or more), and there are `max_participation` at most.
    Exact: the maximum over all patterns that keep both limits.

    >>> worst_case_sensitivity(24, min_separation=2, max_participation=8)
    88
    """
    steps = _steps(steps)
    distance = _whole("min_separation", min_separation, least=0) + 1
    most = (steps - 1) // distance + 1  # that fit
    if max_participation is not None:
        most_allowed = _whole("max_participation", max_participation, least=1)
        capped = most_allowed < most
        most = min(most, most_allowed)
    else:
        capped = False
    return _worst_case(steps, distance, most, capped, completed)


@lru_cache(maxsize=1024)
def _worst_case(steps: int, distance: int, most: int, capped: bool, completed: bool) -> int:
    search = _WorstCase(distance, most, capped, completed)
    _, _, values = search.patterns((leaves_of(steps, True) - 1).bit_length(), steps, 0)
    return int(values.max())


_Patterns = tuple[_Integers, _Integers, _Integers]  # participations, earliest next step, squared sensitivity


class _WorstCase:
    """The patterns of a subtree worth looking at, by a recursion that shares equal subtrees.

    A block no longer than `distance` holds one participation at most, and within a block none is better placed than
    the earliest: it counts in no fewer complete nodes and leaves no less room behind. So a subtree depends on what is
    to its left only through the first of its steps that is allowed, which is below `distance`; what is to its right
    depends on it only through the number of participations (in nodes above both) and the same for the next subtree.
    """

    def __init__(self, distance: int, most: int, capped: bool, completed: bool) -> None:
        self.distance, self.most, self.capped, self.completed = distance, most, capped, completed
        self.known: dict[tuple[int, int, int], _Patterns] = {}
        self.work = 0

    def patterns(self, height: int, real: int, allowed: int) -> _Patterns:
        """For 2^height leaves, of which the first `real` have data, and none before `allowed` may be used."""
        key = (height, real, allowed)
        if key not in self.known:
            single = 1 << height <= self.distance
            self.known[key] = self._block(*key) if single else self._joined(*key)
        return self.known[key]

    def _block(self, height: int, real: int, allowed: int) -> _Patterns:
        """At most one participation, at the first step allowed."""
        size = 1 << height
        nothing = (0, max(0, allowed - size), 0)
        if allowed >= real:
            return _arrays([nothing])
        complete = height + 1
        if not self.completed:  # the complete blocks that hold it
            complete = sum((allowed >> h) + 1 << h <= real for h in range(height + 1))
        return _arrays([nothing, (1, max(0, allowed + self.distance - size), complete)])

    def _joined(self, height: int, real: int, allowed: int) -> _Patterns:
        half = 1 << (height - 1)
        left = self.patterns(height - 1, min(real, half), allowed)
        if real <= half:
            counts, following, values = left
        else:
            counts, following, values = self._beside(left, height - 1, real - half)
        if self.completed or real == 2 * half:
            values = values + counts**2
        if real < 2 * half:  # nothing real to the right: what is allowed there does not matter
            following = np.zeros_like(following)
        return self._worthy(counts, following, values)

    def _beside(self, left: _Patterns, height: int, real: int) -> _Patterns:
        """Each pattern of `left` with each of those the subtree to its right then has."""
        parts: list[_Patterns] = []
        for allowed in np.unique(left[1]):
            counts, following, values = self.patterns(height, real, int(allowed))
            columns, column_of = np.unique(following, return_inverse=True)
            these = np.flatnonzero(left[1] == allowed)
            self.work += len(these) * len(counts) + 1000  # and what every look takes
            if self.work > _MOST_WORK:
                raise ValueError(self._too_long())
            best = np.full((left[0][these].max() + counts.max() + 1, len(columns)), -1, dtype=np.int64)
            for i in these:
                at = (left[0][i] + counts, column_of)
                best[at] = np.maximum(best[at], left[2][i] + values)
            row, column = np.nonzero(best >= 0)
            parts.append((row, columns[column], best[row, column]))
        counts, following, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return counts, following, values

    def _too_long(self) -> str:
        quicker = (1 << (self.distance.bit_length() - 1)) - 1
        instead = "leave out max_participation" if self.capped else f"use min_separation {quicker}"
        return (
            "the worst case over unknown orders takes too long to find for these numbers: "
            f"{instead}, which gives a bound soon, or use a fixed order"
        )

    def _worthy(self, counts: _Integers, following: _Integers, values: _Integers) -> _Patterns:
        """Without patterns that another one beats: as many participations (or more, if they are not limited),
        the next step allowed no later, and a value no smaller."""
        few = counts <= self.most
        counts, following, values = counts[few], following[few], values[few]
        rows, row_of = np.unique(-counts, return_inverse=True)  # most participations first
        columns, column_of = np.unique(following, return_inverse=True)
        best = np.full((len(rows), len(columns)), -1, dtype=np.int64)
        np.maximum.at(best, (row_of, column_of), values)
        reached = np.maximum.accumulate(best, axis=1)
        if not self.capped:
            reached = np.maximum.accumulate(reached, axis=0)
        beaten = np.full_like(best, -1)
        beaten[:, 1:] = reached[:, :-1]
        if not self.capped:
            beaten[1:] = np.maximum(beaten[1:], reached[:-1])
        row, column = np.nonzero(best > beaten)
        return -rows[row], columns[column], best[row, column]


def _arrays(patterns: list[tuple[int, int, int]]) -> _Patterns:
    counts, following, values = np.array(patterns, dtype=np.int64).T
    return counts, following, values


def leaves_of(steps: int, completed: bool) -> int:
    """How many leaves a tree of `steps` has: with virtual ones up to a power of two if it is completed."""
    return 1 << (steps - 1).bit_length() if completed else steps


# Trees of a run -----------------------------------------------------------------------------------------


def tree_release(noise_multiplier: float, squared_sensitivity: float) -> DpEvent:
    """All nodes of one tree: a Gaussian release of noise multiplier z / sqrt(squared sensitivity).

    >>> tree_release(8, 4)
    GaussianDpEvent(noise_multiplier=4.0)
    """
    if not (math.isfinite(squared_sensitivity) and squared_sensitivity >= 0):
        raise ValueError(f"squared_sensitivity must be a finite number >= 0, not {squared_sensitivity}")
    gaussian(noise_multiplier)  # checks it
    if squared_sensitivity == 0:
        return dp.NoOpDpEvent()
    return gaussian(noise_multiplier / math.sqrt(squared_sensitivity))


def trees_plan(noise_multiplier: float, trees: Trees) -> DpEvent:
    """The trees of a run, one after the other: trees of equal sensitivity are equal events.

    >>> trees_plan(8, [(4, 3), (16, 1), (4, 1)])
    ComposedDpEvent(events=[SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=4.0), count=4), \
GaussianDpEvent(noise_multiplier=2.0)])
    """
    counts: dict[int, int] = {}
    for squared_sensitivity, count in trees:
        counts[squared_sensitivity] = counts.get(squared_sensitivity, 0) + count
    return compose([repeat(tree_release(noise_multiplier, square), n) for square, n in counts.items() if n])


def tree_plan(
    noise_multiplier: float,
    steps: int,
    per_epoch: int,
    *,
    restart_every: int | None = None,
    completion: bool = False,
) -> DpEvent:
    """A run of `steps` in the same order every epoch, with a new tree every `restart_every` epochs (None: one tree).

    `completion`: each tree but the last gets virtual steps up to the next power of two before the next one begins.
    The order may change where a tree ends, since each tree is priced for its own worst unit.

    >>> tree_plan(46.3, 10_000, 100, restart_every=20, completion=True) == trees_plan(46.3, [(926, 4), (425, 1)])
    True
    """
    return trees_plan(noise_multiplier, fixed_order_trees(steps, per_epoch, restart_every, completion))


def fixed_order_trees(
    steps: int, per_epoch: int, restart_every: int | None = None, completion: bool = False
) -> Trees:
    """The trees of `tree_plan`: their squared sensitivities, and how many have it."""
    return [
        (fixed_order_sensitivity(length, per_epoch, completed=completed), count)
        for length, count, completed in _tree_lengths(steps, per_epoch, restart_every, completion)
    ]


def worst_case_trees(
    steps: int,
    per_epoch: int,
    restart_every: int | None = None,
    completion: bool = False,
    *,
    min_separation: int,
    max_participation: int | None = None,
) -> Trees:
    """The same where the order is unknown.

    Both limits hold for the whole run. Each tree is priced as if all `max_participation` fell into it, and as if no
    participation before it were too near: more than a unit can have in all, so a bound.
    """
    return [
        (
            worst_case_sensitivity(
                length,
                min_separation=min_separation,
                max_participation=max_participation,
                completed=completed,
            ),
            count,
        )
        for length, count, completed in _tree_lengths(steps, per_epoch, restart_every, completion)
    ]


def as_printed_trees(steps: int, per_epoch: int, restart_every: int | None = None) -> Trees:
    """The same by the formula of the first paper: not a guarantee."""
    return [
        (as_printed_sensitivity(length, per_epoch), count)
        for length, count, _ in _tree_lengths(steps, per_epoch, restart_every, False)
    ]


def as_printed_sensitivity(steps: int, per_epoch: int) -> int:
    """What Kairouz et al. (2021) print for one tree, E ceil(log2(steps)) for E epochs: not a guarantee.

    Wrong where a node is above several participations, as it then moves by their number; and one node short where
    `steps` is a power of two. Here only to reproduce printed tables.

    >>> as_printed_sensitivity(20 * 240, 240)  # really 798
    260
    """
    steps = _steps(steps)
    epochs = math.ceil(steps / _whole("per_epoch", per_epoch, least=1))
    return epochs * (steps - 1).bit_length()


def _tree_lengths(
    steps: int, per_epoch: int, restart_every: int | None, completion: bool
) -> list[tuple[int, int, bool]]:
    """(steps of a tree, how many trees, whether they are completed): the last tree holds what is left."""
    steps, per_epoch = _whole("steps", steps, least=1), _whole("per_epoch", per_epoch, least=1)
    if restart_every is None:
        if completion:
            raise ValueError("completion is for trees that others follow: set restart_every, or leave it out")
        return [(steps, 1, False)]
    length = _whole("restart_every", restart_every, least=1) * per_epoch
    before = (steps - 1) // length
    last = (steps - before * length, 1, False)
    return [(length, before, completion), last] if before else [last]


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or operator.index(value) < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value}")
    return operator.index(value)


def _steps(value: int) -> int:
    steps = _whole("steps", value, least=1)
    if steps > _MOST_STEPS:
        raise ValueError(f"steps must be at most {_MOST_STEPS:,}, not {steps:,}: restart the tree more often")
    return steps
