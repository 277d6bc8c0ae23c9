"""Bounds and values from the rows, under the budget: paid first, by counts that a row moves by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.data import private_bounds as module
from sordino.data.private_bounds import BINS, EDGES, binned, bounds_from, noise_alone, private_bounds
from sordino.data.schema import Column, Schema, TargetColumn
from sordino.privacy import approximate

LACKING = Schema(
    TargetColumn("y"),
    (Column("age", "number"), Column("gain", "number", low=0), Column("job", "category")),
    user="who",
)


def rows(count: int = 3000) -> dict[str, list[str]]:
    rng = np.random.default_rng(0)
    return {
        "age": [str(each) for each in rng.integers(18, 90, count)],
        "gain": [f"{each:.2f}" for each in rng.uniform(1, 5000, count)],
        "job": [("baker", "smith")[each] for each in rng.integers(0, 2, count)],
        "y": [("no", "yes")[each] for each in rng.integers(0, 2, count)],
        "who": [str(each // 2) for each in range(count)],
    }


class Paid:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any, words: str) -> None:
        self.events.append(event)


def test_what_is_missing_is_found_and_what_is_rare_is_not() -> None:
    pay, table = Paid(), rows()
    table["job"][7] = "the only astronaut"
    table["age"][7] = "1e11"
    found = private_bounds(LACKING, table, 2.0, 1e-6, pay)
    assert found is not None
    assert pay.events == [found.event] == [approximate(2.0, 1e-6)]
    age, gain, job = found.schema.columns
    assert (age.low, age.high, age.obtained) == (17.7828, 100.0, "private")
    assert (gain.low, gain.high) == (0.0, 5623.41)  # the owner's own bound stays
    assert job.values == ("baker", "smith")
    assert found.schema.target.labels == ("no", "yes")
    assert found.schema.is_complete


def test_numbers_alone_cost_no_delta_and_what_lacks_nothing_costs_and_reads_nothing() -> None:
    pay = Paid()
    numbers = Schema(TargetColumn("y", labels=("no", "yes")), (Column("age", "number"),))
    found = private_bounds(numbers, rows(), 1.0, 1e-6, pay)
    assert found is not None
    assert found.event == approximate(1.0)
    assert private_bounds(found.schema, "no such file.csv", 1.0, 1e-6, pay) is None
    assert len(pay.events) == 1


def test_it_is_paid_before_a_value_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    class Columns:
        def names(self) -> tuple[str, ...]:
            return tuple(rows(1))

        def batches(self, read: list[str]) -> Any:
            looked.append("rows")
            raise AssertionError

    def refuse(event: Any, words: str) -> None:
        raise ValueError("the cap has no room for this")

    monkeypatch.setattr(module, "columns_of", lambda source, schema: Columns())
    with pytest.raises(ValueError, match="no room"):
        private_bounds(LACKING, "a.csv", 1.0, 1e-6, refuse)
    assert looked == []


def exact_counts(monkeypatch: pytest.MonkeyPatch, table: dict[str, list[str]], **more: Any) -> list[Any]:
    """What goes into the noise, and for which sensitivity, epsilon and delta."""
    seen: list[Any] = []

    def counts(values: list[int], sensitivity: int, epsilon: float) -> list[int]:
        seen.append((list(values), sensitivity, epsilon, 0.0))
        return [0] * BINS

    def of_values(values: Any, sensitivity: int, epsilon: float, delta: float) -> dict[str, int]:
        seen.append((dict(values), sensitivity, epsilon, delta))
        return {"a": 1, "b": 2}

    monkeypatch.setattr(module, "noisy_counts", counts)
    monkeypatch.setattr(module, "noisy_values", of_values)
    private_bounds(LACKING, table, 1.0, 1e-6, Paid(), **more)
    return seen


def difference(one: Any, other: Any) -> int:
    if isinstance(one, list):
        return int(np.abs(np.array(one) - np.array(other)).sum())
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in {*one, *other})


def test_a_row_moves_each_column_by_one_and_epsilon_and_delta_are_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = rows(50)
    nulled = {name: [*cells[:20], "", *cells[21:]] for name, cells in table.items()}
    nulled["who"] = table["who"]
    with_row, without = exact_counts(monkeypatch, table), exact_counts(monkeypatch, nulled)
    assert len(with_row) == 4
    assert [difference(one[0], other[0]) for one, other in zip(with_row, without, strict=True)] == [1] * 4
    assert {each[1] for each in with_row} == {1}
    assert 0.999999 < sum(each[2] for each in with_row) <= 1.0
    assert 0.999999e-6 < sum(each[3] for each in with_row) <= 1e-6


def test_a_user_counts_with_so_many_rows_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(60)
    table["who"] = ["7"] * 30 + [str(each) for each in range(100, 130)]
    gone = {
        name: ["" if place < 30 else cell for place, cell in enumerate(cells)]
        for name, cells in table.items()
    }
    with_user = exact_counts(monkeypatch, table, rows_per_user=4)
    without = exact_counts(monkeypatch, gone, rows_per_user=4)
    assert [difference(one[0], other[0]) for one, other in zip(with_user, without, strict=True)] == [4] * 4
    assert {each[1] for each in with_user} == {4}


def test_nothing_but_the_noisy_result_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the noisy counts of any table replaced by the same ones, any two tables give the same."""
    seen = [
        (monkeypatch.setattr(module, "noisy_counts", lambda *_: [0] * 90 + [9999] + [0] * (BINS - 91)))
        or monkeypatch.setattr(module, "noisy_values", lambda *_: {"a": 5, "b": 6})
        or private_bounds(LACKING, table, 1.0, 1e-6, Paid())
        for table in (rows(50), {name: cells[:9] for name, cells in rows(50).items()})
    ]
    assert seen[0] == seen[1]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), max_size=50))
def test_every_number_is_in_one_bin_and_what_is_none_in_no_bin(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    counts = binned(array)
    assert counts.sum() == (~np.isnan(array)).sum()
    for value in array[~np.isnan(array)]:
        (place,) = np.flatnonzero(binned(np.array([value])))
        clipped = min(max(value, EDGES[0]), EDGES[-1])
        assert EDGES[place] <= clipped <= EDGES[place + 1]


def test_empty_bins_stay_below_what_noise_alone_reaches() -> None:
    assert noise_alone(4, 0.5) == pytest.approx(
        8 * noise_alone(1, 1.0)
    )  # of users with four rows, at half the epsilon
    """The rule is for a chance of one in a thousand: a hundred empty tables show at most a few."""
    from sordino.privacy.counts import noisy_counts

    shown = sum(
        bounds_from(noisy_counts([0] * BINS, 1, 0.5), noise_alone(1, 0.5)) != (-1.0, 1.0) for _ in range(200)
    )
    assert shown <= 4


def test_columns_whose_kind_nobody_said_are_refused_before_anything_is_paid() -> None:
    pay = Paid()
    with pytest.raises(ValueError, match="fill in 'job' \\(kind\\)"):
        private_bounds(
            Schema(TargetColumn("y", labels=("a", "b")), (Column("job"),)), rows(5), 1.0, 1e-6, pay
        )
    assert pay.events == []


@pytest.mark.parametrize("known", [{"low": 1e16}, {"high": -1e16}, {"low": float(EDGES[-1])}])
def test_one_bound_beyond_the_grid_is_refused_before_anything_is_paid(known: dict[str, Any]) -> None:
    schema = Schema(TargetColumn("y", labels=("a", "b")), (Column("x", "number", **known),))
    with pytest.raises(ValueError, match="column 'x' has one bound that is beyond 1e\\+12"):
        private_bounds(schema, {"x": ["1"], "y": ["a"]}, 1.0, 1e-5, lambda *_: pytest.fail("it was paid"))


@pytest.mark.parametrize("known", [{"low": 9e11}, {"high": -9e11}, {"low": -1e16}, {"high": 1e16}])
def test_one_bound_of_the_owner_stays_and_the_other_lies_beyond_it(known: dict[str, Any]) -> None:
    schema = Schema(TargetColumn("y", labels=("a", "b")), (Column("x", "number", **known),))
    rows = {"x": ["1", "2"] * 500, "y": ["a", "b"] * 500}
    found = private_bounds(schema, rows, 50.0, 1e-5, lambda *_: None)
    assert found is not None
    (column,) = found.schema.columns
    assert not column.missing
    assert known.items() <= column.to_json().items()
