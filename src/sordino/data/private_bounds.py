"""Bounds and values that a schema lacks, from the rows, under the budget.

A row is counted once in each column that lacks something: a number in a fixed public grid of bins, a category under its
value. What leaves is made of noisy counts alone. Epsilon is divided over the columns equally, delta over the
categories; a row is in all of them, so they add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sordino.data.cells import numbers_of, texts_of, user_numbers, users_of
from sordino.data.columns import check_names, columns_of
from sordino.data.schema import Column, Schema, TargetColumn
from sordino.privacy.budget import check_delta, check_epsilon
from sordino.privacy.counts import check_installed, noisy_counts, noisy_values
from sordino.privacy.events import approximate
from sordino.ranks import refuse_several

if TYPE_CHECKING:
    import pyarrow as pa
    from dp_accounting import DpEvent

PARTS_OF_DELTA = 100  # one of them, of a run's delta, is for categories
_SURE = 1e-3  # the chance that an empty bin of any column is taken for a full one
_SMALLEST, _LARGEST, _PER_DECADE = -6, 12, 4
_LONGEST_VALUE = 200  # characters: longer ones are no categories


def _edges() -> npt.NDArray[np.float64]:
    """From -1e12 to 1e12: four to a power of ten, on both sides of zero, down to 1e-6."""
    steps = range(_SMALLEST * _PER_DECADE, _LARGEST * _PER_DECADE + 1)
    above = [float(f"{10 ** (step / _PER_DECADE):.6g}") for step in steps]
    return np.array([-edge for edge in reversed(above)] + above)


EDGES = _edges()
BINS = len(EDGES) - 1  # the middle one holds zero, and all that is nearer to it than 1e-6


@dataclass(frozen=True)
class Estimate:
    """A schema with nothing missing that could be estimated, what that cost, and what it was, in words."""

    schema: Schema
    event: DpEvent
    words: str


def _all(schema: Schema) -> list[Column | TargetColumn]:
    return [*schema.columns, schema.target]


def missing_columns(schema: Schema) -> tuple[list[str], list[str]]:
    """Names of numbers that lack bounds, and of categories that lack values, the target among them."""
    numbers, categories = [], []
    for each in _all(schema):
        if "kind" in each.missing:
            continue  # whether it is a number is the owner's to say
        if set(each.missing) & {"low", "high"}:
            numbers.append(each.name)
        elif each.missing:
            categories.append(each.name)
    return numbers, categories


def cost_of(schema: Schema, epsilon: float, delta: float) -> DpEvent | None:
    """What `private_bounds` will pay; None where the schema lacks nothing."""
    numbers, categories = missing_columns(schema)
    return approximate(epsilon, delta if categories else 0.0) if numbers or categories else None


def with_made_up(schema: Schema) -> Schema:
    """With something in the place of all that is to be estimated: to see, before it is, whether the rest is right."""
    numbers, categories = missing_columns(schema)
    for name in numbers:
        schema = schema.with_bounds(name, -1.0, 1.0)
    for name in categories:
        schema = schema.with_values(name, ("made up", "made up too"))
    return schema


def private_bounds(
    schema: Schema,
    source: Any,
    epsilon: float,
    delta: float,
    pay: Callable[[DpEvent, str], None],
    *,
    rows_per_user: int | None = None,
) -> Estimate | None:
    """Estimate what ``schema`` lacks from the rows of ``source``; None, and nothing is looked at, if it lacks nothing.

    Guarantee: (epsilon, delta)-DP for a row, or for a user, of whom then the first ``rows_per_user`` rows count.
    ``pay`` is called with the event and what it is for before a value is looked at; if it raises, none is.

    Args:
        schema: What is known.
        source: A path or a table in memory, as for `Table`.
        epsilon: For all of it together.
        delta: Likewise; used only if a category lacks its values.
        pay: Counts it.
        rows_per_user: If the unit of privacy is a user.
    """
    refuse_several("estimating bounds")
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    numbers, categories = missing_columns(schema)
    if any(each.what == "kind" for each in schema.missing()):
        schema.check_complete()  # refuses: what kind a column is, only its owner can say
    if not numbers and not categories:
        return None
    if rows_per_user is not None and schema.user is None:
        raise ValueError("users are told apart by a column: name it in the schema, as user")
    _check_within_grid(schema, numbers)
    check_installed()
    columns = columns_of(source, schema)
    read = [*numbers, *categories, *([schema.user] if rows_per_user is not None and schema.user else [])]
    check_names(columns.names(), read, "the table")
    event = cost_of(schema, epsilon, delta)
    assert event is not None
    words = _words(numbers, categories)
    pay(event, words)
    counted = _Counted(numbers, categories, rows_per_user)
    for batch, _ in columns.batches(read):
        counted.add(batch)
    return Estimate(_filled(schema, counted, epsilon, delta, rows_per_user or 1), event, words)


def _check_within_grid(schema: Schema, numbers: Sequence[str]) -> None:
    """Refuse, before anything is paid, one bound of the owner's for which no other can be found."""
    for each in _all(schema):
        low, high = (
            (-math.inf if each.low is None else each.low),
            (math.inf if each.high is None else each.high),
        )
        if each.name in numbers and not (low < EDGES[-1] and high > EDGES[0]):
            raise ValueError(
                f"column {each.name!r} has one bound that is beyond {EDGES[-1]:g}, where none is looked for: give the "
                "other one too"
            )


def _words(numbers: Sequence[str], categories: Sequence[str]) -> str:
    parts = []
    if numbers:
        parts.append(f"bounds of {', '.join(map(repr, numbers))} from noisy counts in a fixed public grid")
    if categories:
        parts.append(f"values of {', '.join(map(repr, categories))} with noisy counts above a threshold")
    return f"Private preprocessing: {'; '.join(parts)}. All rows of the file were counted, held-out ones too."


@dataclass
class _Counted:
    """Exact counts, which never leave this file without noise."""

    numbers: Sequence[str]
    categories: Sequence[str]
    rows_per_user: int | None
    bins: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    values: dict[str, Counter[str]] = field(default_factory=dict)
    seen: Counter[int] = field(default_factory=Counter)

    def add(self, batch: pa.Table) -> None:
        arrays = [column.combine_chunks() for column in batch.columns]
        if self.rows_per_user is not None:
            import pyarrow as pa

            kept = pa.array(self._first_rows(user_numbers(users_of(arrays[-1]))))
            arrays = [array.filter(kept) for array in arrays]
        for name, array in zip(self.numbers, arrays, strict=False):
            self.bins[name] = self.bins.get(name, np.zeros(BINS, dtype=np.int64)) + binned(numbers_of(array))
        for name, array in zip(self.categories, arrays[len(self.numbers) :], strict=False):
            self._count(self.values.setdefault(name, Counter()), texts_of(array))

    def _first_rows(self, users: npt.NDArray[np.int64]) -> list[bool]:
        """Which rows are among the first of their user; a row of nobody is not counted."""
        assert self.rows_per_user is not None
        kept = []
        for user in users.tolist():
            self.seen[user] += 1
            kept.append(user != 0 and self.seen[user] <= self.rows_per_user)
        return kept

    def _count(self, counts: Counter[str], texts: pa.Array) -> None:
        coded = texts.drop_null().value_counts()
        for value, count in zip(coded.field(0).to_pylist(), coded.field(1).to_pylist(), strict=True):
            if len(value) <= _LONGEST_VALUE:
                counts[value] += count


def binned(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """How many values are in each bin; those beyond the grid are in its first or last, those that are none nowhere."""
    there = np.clip(values[~np.isnan(values)], EDGES[0], EDGES[-1])
    places = np.clip(np.searchsorted(EDGES, there, side="right") - 1, 0, BINS - 1)
    return np.bincount(places, minlength=BINS).astype(np.int64)


def _filled(schema: Schema, counted: _Counted, epsilon: float, delta: float, rows: int) -> Schema:
    share = epsilon / (len(counted.numbers) + len(counted.categories)) * (1 - 1e-12)  # they add up to no more
    for name in counted.numbers:
        counts = noisy_counts(counted.bins.get(name, np.zeros(BINS, dtype=np.int64)).tolist(), rows, share)
        known = next(each for each in _all(schema) if each.name == name)
        low, high = bounds_from(counts, noise_alone(rows, share))
        low, high = (low if known.low is None else known.low), (high if known.high is None else known.high)
        if not low < high:  # the owner's own bound lies beyond what was found, and within the grid
            low, high = (low, low + 1.0) if known.low is not None else (high - 1.0, high)
        schema = schema.with_bounds(name, low, high)
    for name in counted.categories:
        of_each = delta / len(counted.categories) * (1 - 1e-12)
        found = noisy_values(counted.values.get(name, Counter()), rows, share, of_each)
        schema = schema.with_values(name, list(found))
    return schema


def noise_alone(rows: int, epsilon: float) -> float:
    """Below this the noise of all empty bins of a column stays, but for a chance of one in a thousand: b ln(bins / p)
    for Laplace noise of scale b."""
    return rows / epsilon * math.log(BINS / _SURE)


def bounds_from(counts: Sequence[int], threshold: float) -> tuple[float, float]:
    """The smallest range of whole bins with every count above ``threshold``; if none is, from -1 to 1.

    >>> bounds_from([0] * (BINS // 2 + 1) + [100, 100] + [0] * (BINS // 2 - 2), 10.0)
    (1e-06, 3.16228e-06)
    """
    assert len(counts) == BINS
    full = [place for place, count in enumerate(counts) if count > threshold]
    if not full:
        return -1.0, 1.0
    return float(EDGES[full[0]]), float(EDGES[full[-1] + 1])
