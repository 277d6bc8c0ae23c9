from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from sordino.data import Cyclic, FixedOrder, Poisson, Sampling, Separated, Shuffled, WithoutReplacement
from sordino.noise import Streams


def test_poisson_takes_each_unit_with_its_rate_independently() -> None:
    sampling, streams, n, steps = Poisson(0.03), Streams.from_seed(1), 2000, 200
    counts, sizes = np.zeros(n), []
    for step in range(steps):
        units = sampling.units(step, n, streams)
        assert np.all(np.diff(units) > 0)
        counts[units] += 1
        sizes.append(len(units))
    # Both the sizes of batches and the participations of a unit are binomial.
    assert abs(np.mean(sizes) - 60) < 5 * np.sqrt(60 * 0.97 / steps)
    assert 0.7 < np.var(sizes) / (60 * 0.97) < 1.4
    assert (
        stats.chisquare(
            np.bincount(np.minimum(counts.astype(int), 15), minlength=16),
            n * np.append(stats.binom.pmf(range(15), steps, 0.03), stats.binom.sf(14, steps, 0.03)),
        ).pvalue
        > 1e-3
    )


def test_poisson_batches_can_be_empty_and_rate_one_takes_all() -> None:
    streams = Streams.from_seed(1)
    assert any(len(Poisson(0.01).units(s, 20, streams)) == 0 for s in range(20))
    assert np.array_equal(Poisson(1.0).units(0, 5, streams), np.arange(5))
    assert Poisson(0.25).expected_batch(10) == 2.5
    assert Poisson(0.25).amplified_rate(10) == 0.25
    assert Poisson(0.25).charges(7, 10) == 7


def test_shuffled_batches_are_disjoint_and_new_every_epoch() -> None:
    sampling, streams = Shuffled(3), Streams.from_seed(2)
    one, two = (np.concatenate([sampling.units(3 * e + s, 10, streams) for s in range(3)]) for e in range(2))
    assert all(len(set(epoch)) == 9 for epoch in (one, two))
    assert not np.array_equal(one, two)
    assert sampling.steps_per_epoch(10) == 3
    assert sampling.amplified_rate(10) is None
    assert sampling.charges(7, 10) == 3
    assert [sampling.charge_key(s, 10) for s in (0, 2, 3)] == ["epoch:0", "epoch:0", "epoch:1"]


def test_shuffled_is_a_uniform_permutation() -> None:
    streams = Streams.from_seed(3)
    first = [Shuffled(1).units(5 * e, 5, streams)[0] for e in range(2000)]
    assert stats.chisquare(np.bincount(first, minlength=5)).pvalue > 1e-3


def test_pricing_shuffled_batches_as_poisson_says_so() -> None:
    sampling = Shuffled(5, assume_poisson=True)
    assert sampling.amplified_rate(50) == 0.1
    assert sampling.charge_key(3, 50) == "step:3"
    assert "NOT A GUARANTEE" in sampling.assumption
    assert "NOT A GUARANTEE" not in Shuffled(5).assumption


def test_fixed_order_is_the_order_of_the_data() -> None:
    sampling, streams = FixedOrder(4), Streams.from_seed(1)
    batches = [sampling.units(s, 9, streams).tolist() for s in range(3)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert sampling.charges(3, 9) == 2


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_impossible_rates(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        Poisson(rate)


def test_impossible_batches() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Shuffled(0)
    with pytest.raises(ValueError, match="at most 4"):
        FixedOrder(5).check(4)


# A fixed number of units ------------------------------------------------------------------------------------

Draw = Callable[[int], list[int]]  # of a step


class CountedWords:
    """Streams that remember how much was asked of them."""

    def __init__(self, seed: int = 1) -> None:
        self.streams, self.asked = Streams.from_seed(seed), 0

    def words(self, purpose: str, step: int, count: int) -> npt.NDArray[np.uint64]:
        self.asked += count
        return self.streams.words(purpose, step, count)


def chance_of(draw: Draw, n: int, count: int, steps: int = 4000) -> float:
    """The p-value of the samples being uniform among all of their size."""
    found = dict.fromkeys(combinations(range(n), count), 0)
    for step in range(steps):
        found[tuple(sorted(draw(step)))] += 1
    return float(stats.chisquare(list(found.values())).pvalue)


@pytest.mark.parametrize(("n", "count"), [(1, 1), (5, 5), (7, 3), (100, 99), (1000, 10)])
def test_without_replacement_draws_exactly_so_many_different_units(n: int, count: int) -> None:
    streams = Streams.from_seed(4)
    for step in range(50):
        units = WithoutReplacement(count).units(step, n, streams)
        assert len(units) == count
        assert np.all(np.diff(units) > 0)
        assert 0 <= units[0] <= units[-1] < n


@pytest.mark.parametrize(("n", "count"), [(7, 1), (7, 3), (6, 5)])
def test_without_replacement_is_uniform_among_all_samples(n: int, count: int) -> None:
    streams = Streams.from_seed(5)
    assert chance_of(lambda step: WithoutReplacement(count).units(step, n, streams).tolist(), n, count) > 1e-3


def test_a_biased_sample_is_noticed() -> None:
    """Floyd's algorithm with the free number that is next after a collision, which prefers neighbours."""
    streams, n, count = Streams.from_seed(5), 7, 3

    def neighbours(step: int) -> list[int]:
        found: list[int] = []
        for word in streams.words("sampling", step, count).tolist():
            unit = word * n >> 64
            while unit in found:
                unit = (unit + 1) % n
            found.append(unit)
        return found

    assert chance_of(neighbours, n, count) < 1e-6


@pytest.mark.parametrize("sampling", [WithoutReplacement(5), Separated(5, 3)])
def test_who_takes_part_is_a_function_of_key_and_step(sampling: Sampling) -> None:
    def drawn(seed: int, step: int) -> list[int]:
        found: list[int] = sampling.units(step, 1000, Streams.from_seed(seed)).tolist()
        return found

    streams = Streams.from_seed(1)
    backwards = [sampling.units(step, 1000, streams).tolist() for step in reversed(range(8))]
    assert backwards[::-1] == [drawn(1, step) for step in range(8)]
    assert len({tuple(units) for units in backwards}) == 8
    assert drawn(1, 4) != drawn(2, 4)


@pytest.mark.parametrize("sampling", [WithoutReplacement(100), Separated(100, 9)])
def test_a_billion_units_cost_what_those_drawn_cost(sampling: Sampling) -> None:
    few, many = CountedWords(), CountedWords()
    sampling.units(3, 1000, few)
    units = sampling.units(3, 10**9, many)
    assert few.asked == many.asked == 100
    assert len(np.unique(units)) == 100
    assert units.max() > 5 * 10**8


def test_a_step_without_replacement_is_a_charge_of_its_own_and_not_poissons() -> None:
    sampling = WithoutReplacement(20)
    assert sampling.expected_batch(100) == 20
    assert sampling.steps_per_epoch(100) == 5
    assert sampling.charges(7, 100) == 7
    assert [sampling.charge_key(step, 100) for step in (0, 6)] == ["step:0", "step:6"]
    assert sampling.amplified_rate(100) is None  # Poisson's price is not that of this sampling
    event = sampling.release(3.0, 100)
    assert (event.source_dataset_size, event.sample_size) == (100, 20)
    assert event.event.noise_multiplier == 1.5
    assert "replaced by another" in sampling.assumption


@pytest.mark.parametrize(("count", "separation", "n"), [(1, 1, 2), (2, 2, 7), (3, 4, 17), (1, 6, 7)])
def test_separated_units_sit_out(count: int, separation: int, n: int) -> None:
    sampling, streams = Separated(count, separation), Streams.from_seed(6)
    last: dict[int, int] = {}
    gaps = []
    for step in range(400):
        units = sampling.units(step, n, streams).tolist()
        assert len(set(units)) == len(units) == count
        gaps += [step - last[unit] - 1 for unit in units if unit in last]
        last |= dict.fromkeys(units, step)
    assert min(gaps) == separation  # never less, and it happens
    assert set(last) == set(range(n))  # everybody's turn comes


def test_within_its_group_a_separated_sample_is_uniform() -> None:
    sampling, streams = Separated(2, 3), Streams.from_seed(7)
    for group, size in ((0, 6), (1, 5), (3, 5)):  # of 21 units

        def draw(turn: int, group: int = group) -> list[int]:
            found: list[int] = ((sampling.units(4 * turn + group, 21, streams) - group) // 4).tolist()
            return found

        assert chance_of(draw, size, 2, 1000) > 1e-3


@pytest.mark.parametrize(("count", "separation", "n"), [(2, 2, 7), (1, 4, 5)])
def test_a_separated_unit_takes_part_once_in_a_charge(count: int, separation: int, n: int) -> None:
    sampling, streams, steps = Separated(count, separation), Streams.from_seed(8), 100
    by_charge: dict[str, list[int]] = {}
    for step in range(steps):
        units = by_charge.setdefault(sampling.charge_key(step, n), [])
        units += sampling.units(step, n, streams).tolist()
        assert len(by_charge) == sampling.charges(step + 1, n)
    for units in by_charge.values():
        assert len(set(units)) == len(units)
    assert sampling.amplified_rate(n) is None
    assert sampling.min_separation == separation
    assert f"at least {separation} steps" in sampling.assumption


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WithoutReplacement(0), "at least 1"),
        (lambda: WithoutReplacement(-3), "at least 1"),
        (lambda: Separated(0, 2), "at least 1"),
        (lambda: Separated(2, 0), "separation"),
        (lambda: Separated(2, -1), "separation"),
        (lambda: Separated(2, 1.5), "separation"),  # type: ignore[arg-type]
    ],
)
def test_impossible_counts_and_separations(make: Callable[[], Sampling], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_more_units_than_there_are() -> None:
    streams = Streams.from_seed(1)
    WithoutReplacement(4).check(4)
    Separated(2, 2).check(6)
    for sampling, n in ((WithoutReplacement(5), 4), (Separated(2, 2), 5)):
        with pytest.raises(ValueError, match="use"):
            sampling.check(n)
        with pytest.raises(ValueError, match="use"):
            sampling.units(0, n, streams)


@pytest.mark.parametrize(("rate", "groups", "n"), [(0.3, 4, 50), (0.5, 1, 20), (1.0, 3, 10), (0.2, 7, 7)])
def test_cyclic_draws_from_the_group_whose_turn_it_is_and_from_no_other(
    rate: float, groups: int, n: int
) -> None:
    sampling, streams = Cyclic(rate, groups), Streams.from_seed(9)
    counts, steps = np.zeros(n), 400 * groups
    everybody = np.arange(n)
    for step in range(steps):
        units = sampling.units(step, n, streams)
        assert (units % groups == step % groups).all()
        assert np.array_equal(everybody[sampling.turns(step, everybody)], everybody[step % groups :: groups])
        assert (units < n).all()
        assert np.all(np.diff(units) > 0)
        counts[units] += 1
    # Of 400 turns each unit takes part in a binomial number.
    assert np.abs(counts - 400 * rate).max() <= 5 * np.sqrt(400 * rate * (1 - rate)) + 1e-9
    assert sampling.expected_batch(n) == pytest.approx(counts.sum() / steps, rel=0.1)


def test_cyclic_is_paid_once_a_turn_at_the_rate_of_its_group() -> None:
    sampling = Cyclic(0.2, 4)
    assert sampling.amplified_rate(100) == 0.2
    assert sampling.expected_batch(100) == 5
    assert sampling.steps_per_epoch(100) == 20
    assert sampling.returns_after(100) == 4
    assert [sampling.charge_key(step, 100) for step in (0, 3, 4, 11)] == [
        "turn:0",
        "turn:0",
        "turn:1",
        "turn:2",
    ]
    assert [sampling.charges(steps, 100) for steps in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert sampling.order_lasts(100) == 0  # it is known when a unit may come, and not that it does
    assert "4 groups" in sampling.assumption
    assert "secret" in sampling.assumption
    assert "nothing is assumed to be random" in Cyclic(1.0, 4).assumption


def test_how_soon_a_unit_may_return_is_what_its_sampling_does() -> None:
    """By counting: in no sampling does a unit come back sooner than it says."""
    streams, n, steps = Streams.from_seed(10), 24, 300
    for sampling in (
        Cyclic(0.5, 5), FixedOrder(5), Shuffled(5, every=None), Separated(2, 3), Shuffled(5), Poisson(0.5),
        WithoutReplacement(5), Shuffled(5, every=2), Shuffled(5, assume_poisson=True),
    ):  # fmt: skip
        last, soonest = np.full(n, -(10**6)), steps
        for step in range(steps):
            units = sampling.units(step, n, streams)
            soonest = min([soonest, *(step - last[units]).tolist()])
            last[units] = step
        assert soonest >= sampling.returns_after(n)
        assert soonest == sampling.returns_after(n) or sampling.returns_after(n) == 1


@pytest.mark.parametrize("wrong", [(0.0, 2), (1.1, 2), (0.5, 0), (0.5, 1.5)])
def test_cyclic_is_checked(wrong: tuple[float, int]) -> None:
    with pytest.raises(ValueError, match=r"the sampling rate must|groups is a whole number"):
        Cyclic(*wrong)
    Cyclic(0.5, 6).check(6)
    with pytest.raises(ValueError, match="at most 5"):
        Cyclic(0.5, 6).check(5)
