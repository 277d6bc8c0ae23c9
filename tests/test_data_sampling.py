from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sordino.data import FixedOrder, Poisson, Shuffled
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
    epochs = [np.concatenate([sampling.units(3 * e + s, 10, streams) for s in range(3)]) for e in range(2)]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert not np.array_equal(*epochs)
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
