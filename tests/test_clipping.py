from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.clipping import ClippingPolicy, Fixed, PerLayer, Quantile, Unclipped
from sordino.gradients import Norms

NAMES = ["a.weight", "a.bias", "b.weight"]


def norms_of(squares_PU: torch.Tensor) -> Norms:
    return Norms(tuple(NAMES), squares_PU, squares_PU.sum(0).sqrt())


@pytest.mark.parametrize("policy", [Fixed(0.7), PerLayer(0.7), PerLayer((0.3, 0.9)), Quantile(0.5, 0.7)])
@given(squares=st.lists(st.floats(0, 2.0**40, width=32), min_size=9, max_size=9))
def test_no_unit_contributes_more_than_the_sensitivity(policy: ClippingPolicy, squares: list[float]) -> None:
    squares_PU = torch.tensor(squares).view(3, 3)
    state = policy.start(NAMES)
    weights = policy.weights(norms_of(squares_PU), state)[0]
    contributed = (weights.square() * squares_PU).sum(0).sqrt()
    assert torch.all(contributed <= policy.sensitivity(state) * (1 + 1e-5))


def test_short_gradients_are_left_alone() -> None:
    squares = torch.tensor([[0.01], [0.01], [0.01]])
    for policy in (Fixed(1.0), PerLayer(1.0), Quantile(0.5, 1.0), Unclipped()):
        assert torch.all(policy.weights(norms_of(squares), policy.start(NAMES)) == 1)


def test_zero_gradients_do_not_divide_by_zero() -> None:
    assert Fixed(1.0).weights(norms_of(torch.zeros(3, 2)), {"threshold": 1.0}).tolist() == [[1.0, 1.0]]


def test_per_layer_shares_equally_and_noises_the_root_of_the_sum_of_squares() -> None:
    state = PerLayer(2.0).start(NAMES)
    assert state["threshold"] == 2.0
    assert state["threshold:0"] == state["threshold:1"] == pytest.approx(2 / math.sqrt(2))
    assert PerLayer((3.0, 4.0)).start(NAMES)["threshold"] == 5.0
    with pytest.raises(ValueError, match="2 layers"):
        PerLayer((1.0, 1.0, 1.0)).start(NAMES)


def test_quantile_golden_value() -> None:
    """ALGORITHMS.md D5."""
    policy = Quantile(0.5, 0.1)
    moved = policy.update(policy.start(NAMES), torch.zeros(1), {"fraction_within": 0.3 - 0.5})
    assert moved["threshold"] == pytest.approx(0.104081077419, abs=1e-12)


def test_quantile_clamps_a_noisy_fraction() -> None:
    policy = Quantile(0.5, 1.0)
    up = policy.update({"threshold": 1.0}, torch.zeros(1), {"fraction_within": -7.0})
    assert up["threshold"] == pytest.approx(math.exp(0.2 * 0.5))


def test_quantile_asks_a_centred_count_with_its_own_noise() -> None:
    (probe,) = Quantile().probes(noise_multiplier=1.0, expected_batch=512)
    assert probe.sensitivity == 0.5
    assert probe.sensitivity * probe.multiplier == pytest.approx(25.6)  # m / 20
    (probe,) = Quantile().probes(noise_multiplier=3.0, expected_batch=20)
    assert probe.sensitivity * probe.multiplier == pytest.approx(3.0)  # z, where the batch is small
    numbers = Quantile(0.5, 1.0).numbers(norms_of(torch.tensor([[0.1, 4.0]] * 3)), {"threshold": 1.0})
    assert numbers.tolist() == [[0.5, -0.5]]


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan])
def test_impossible_thresholds(threshold: float) -> None:
    for make in (Fixed, PerLayer, lambda c: Quantile(0.5, c)):
        with pytest.raises(ValueError, match="threshold"):
            make(threshold)
