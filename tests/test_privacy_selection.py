"""Private selection: how many runs, and what it costs (golden values B1 to B5 of ALGORITHMS.md)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import dp_accounting as dp
import numpy as np
import pytest
from scipy.special import ndtr

from sordino.privacy import compose, gaussian, poisson_gaussian, price, repeat
from sordino.privacy.events import event_from_json, event_to_json, repeat_and_select
from sordino.privacy.loss_distribution import pld_delta, pld_epsilon, pld_supports
from sordino.privacy.selection import (
    POISSON,
    Stopping,
    epsilon_by_profile,
    gamma_of,
    liu_talwar,
    mean_of,
    selected_rdp,
)

if TYPE_CHECKING:
    from dp_accounting import DpEvent

SHAPES = (0.0, 0.5, 1.0, 2.5, POISSON)
SUBSAMPLED = compose([repeat(poisson_gaussian(1.0, 0.05), 40), gaussian(30.0)])


# How many runs ----------------------------------------------------------------------------------------------


def test_b1_geometric_runs() -> None:
    stopping = Stopping(mean=4)
    assert [stopping.probability(k) for k in (1, 2, 3)] == pytest.approx([0.25, 0.1875, 0.140625], rel=1e-12)
    assert stopping.gamma == 0.25


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [(1.0, (0.5, 0.3, 0.2)), (0.25, (0.2, 0.3, 0.5)), (0.05, (1 / 21, 5 / 42, 5 / 6))],
)
def test_b2_the_best_of_so_many_runs_wins(gamma: float, expected: tuple[float, ...]) -> None:
    stopping, base = Stopping(mean=1 / gamma), np.array([0.5, 0.3, 0.2])
    below = np.cumsum(base)
    wins = np.zeros(3)
    for k in range(1, 2000):  # P(best of k <= y) = F(y)^k
        wins += stopping.probability(k) * np.diff(np.concatenate([[0.0], below**k]))
    assert wins == pytest.approx(expected, abs=1e-6)


def test_b3_means_and_their_inverses() -> None:
    assert mean_of(0.01, 0.0) == pytest.approx(21.4975768542, abs=1e-9)
    assert mean_of(0.01, 0.5) == pytest.approx(55.0, abs=1e-9)
    assert gamma_of(10, 0.0) == pytest.approx(0.0269182596, abs=1e-10)
    assert gamma_of(10, 0.5) == pytest.approx(0.0625, abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.0, 1.3, 7.0, 40.0])
def test_probabilities_add_up_to_one_and_have_their_mean(shape: float, mean: float) -> None:
    stopping = Stopping(mean, shape)
    probabilities = np.array([stopping.probability(k) for k in range(6000)])
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    assert probabilities @ np.arange(6000) == pytest.approx(mean, rel=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_runs_drawn_are_distributed_as_said(shape: float) -> None:
    stopping = Stopping(5.0, shape)
    drawn = [stopping.runs(float(u)) for u in np.random.default_rng(3).random(20_000)]
    for k in range(1, 6):
        share = np.mean(np.array(drawn) == k)
        expected = stopping.probability(k)
        assert abs(share - expected) < 4.5 * math.sqrt(expected / 20_000)
    assert abs(np.mean(drawn) - 5) < 0.35


@pytest.mark.parametrize("shape", [1e-6, 1e-3, 300.0, 1e4])
@pytest.mark.parametrize("mean", [1.2, 30.0, 3000.0])
def test_extreme_shapes_are_drawn_as_they_are_priced(shape: float, mean: float) -> None:
    stopping, most = Stopping(mean, shape), round((400 if mean < 100 else 60) * mean) + 200
    probabilities = np.array([stopping.probability(k) for k in range(most)])
    assert probabilities.sum() == pytest.approx(1, abs=1e-2 if shape < 1 and mean > 100 else 1e-8)
    assert mean_of(stopping.gamma, shape) == pytest.approx(mean, rel=1e-9)
    assert stopping.runs(0.5) <= 3 * mean


@pytest.mark.parametrize("event", [gaussian(1e9), repeat(poisson_gaussian(20.0, 1e-8), 10)])
def test_what_costs_next_to_nothing_has_a_price_too(event: DpEvent) -> None:
    for shape in SHAPES:
        assert 0 <= price(repeat_and_select(event, 5.0, shape), 1e-6, "rdp").epsilon < 0.1


@pytest.mark.parametrize(
    ("mean", "shape"),
    [(0.5, 1.0), (math.nan, 1.0), (5, -1.0), (5, math.nan), (1e9, 1.0), (5, 1e14), (5, 1e-9)],
)
def test_numbers_of_runs_that_cannot_be_are_refused(mean: float, shape: float) -> None:
    with pytest.raises(ValueError, match=r"runs|shape"):
        Stopping(mean, shape)
    with pytest.raises(ValueError, match="selection"):
        repeat_and_select(gaussian(1.0), mean, shape)


# What it costs ----------------------------------------------------------------------------------------------


def test_b4_prices_of_a_gaussian() -> None:
    run = gaussian(4.0)
    assert price(run, 1e-5, "rdp").epsilon == pytest.approx(1.012551, abs=1e-6)
    assert price(repeat_and_select(run, 10, 1.0), 1e-5, "rdp").epsilon == pytest.approx(2.153654, abs=1e-6)
    assert price(repeat_and_select(run, 10, 0.0), 1e-5, "rdp").epsilon == pytest.approx(1.784136, abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("noise", [0.7, 2.0, 9.0])
@pytest.mark.parametrize("mean", [1.0, 3.0, 60.0])
def test_renyi_prices_agree_with_dp_accounting(shape: float, noise: float, mean: float) -> None:
    event = repeat_and_select(repeat(gaussian(noise), 3), mean, shape)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    orders = np.array(accountant._orders)
    accountant.compose(event)
    one = 3 * orders / (2 * noise**2)
    assert selected_rdp(orders, one, mean, shape) == pytest.approx(accountant.rdp, rel=1e-6)


def test_b5_liu_and_talwars_theorem() -> None:
    natural = liu_talwar(1.0, 1e-20, gamma=0.01, cut_off=1e-7)
    assert natural.most == pytest.approx(1611.8096, abs=1e-4)
    assert natural.delta == pytest.approx(3.27944e-7, rel=1e-5)
    assert natural.epsilon - 3 == pytest.approx(4.2426e-10, rel=1e-4)
    binary = liu_talwar(1.0, 1e-20, gamma=0.01, cut_off=1e-7, base=2)
    assert binary.most == pytest.approx(2325.3497, abs=1e-4)
    assert binary.delta == pytest.approx(4.28854e-7, rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("run", [gaussian(2.0), SUBSAMPLED], ids=["gaussian", "sampled"])
def test_profiles_give_less_than_renyi_and_more_than_one_run(shape: float, run: DpEvent) -> None:
    event = repeat_and_select(run, 12.0, shape)
    by_profile, by_rdp = price(event, 1e-6, "pld").epsilon, price(event, 1e-6, "rdp").epsilon
    assert price(run, 1e-6, "pld").epsilon < by_profile < by_rdp
    assert price(event, 1e-6).epsilon == by_profile


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("noise", [0.6, 1.5, 4.0])
@pytest.mark.parametrize("mean", [1.5, 10.0, 100.0])
def test_the_price_by_profiles_holds_for_gaussian_runs(shape: float, noise: float, mean: float) -> None:
    """One run shows a normal, which is its own score, good or bad: delta of the winner by integration."""
    event = repeat_and_select(gaussian(noise), mean, shape)
    y = np.linspace(-12 * noise, 1 + 12 * noise, 20_001)
    step = y[1] - y[0]
    for delta in (1e-6, 1e-3, 0.05):
        epsilon = price(event, delta, "pld").epsilon
        for sign in (1, -1):  # whether the larger or the smaller number wins
            winners = [_winner(y, at, noise, mean, shape, sign) for at in (0.0, 1.0)]
            for one, other in (winners, winners[::-1]):
                excess = np.maximum(one - math.exp(epsilon) * other, 0).sum() * step
                assert excess <= delta * (1 + 1e-6) + 1e-9


def _winner(y: np.ndarray, at: float, noise: float, mean: float, shape: float, sign: int) -> np.ndarray:
    density = np.exp(-0.5 * ((y - at) / noise) ** 2) / (noise * math.sqrt(2 * math.pi))
    below = ndtr(sign * (y - at) / noise)
    if shape == POISSON:
        return np.asarray(density * mean * np.exp(mean * (below - 1)))
    gamma = gamma_of(mean, shape)
    slope = (1 - (1 - gamma) * below) ** (-shape - 1)
    return np.asarray(density * mean * slope * gamma ** (shape + 1))  # phi'(1) is the mean


def test_the_price_by_profiles_is_at_most_that_of_the_paper() -> None:
    """Koskela, Redberg and Wang bound the ratio by e^e2 + (1-g)/g delta(e2), for any e2."""
    run, mean, delta = gaussian(1.0), 20.0, 1e-5
    for shape in (0.0, 1.0):
        gamma = gamma_of(mean, shape)
        ratios = [
            math.log(math.exp(e2) + (1 - gamma) / gamma * pld_delta(run, e2)) for e2 in np.linspace(0, 6, 400)
        ]
        theirs = pld_epsilon(run, delta / mean) + (1 + shape) * min(ratios)
        ours = price(repeat_and_select(run, mean, shape), delta, "pld").epsilon
        assert ours <= theirs + 1e-9
        assert ours > 0.8 * theirs


def test_a_pure_run_costs_three_times_its_epsilon_at_most() -> None:
    """Liu and Talwar, theorem 3.1: the profile of pure DP is (1 - e^(e - eps))+ and its epsilon at any delta is eps."""
    found = epsilon_by_profile(lambda _: 0.5, lambda e: max(0.0, -math.expm1(e - 0.5)), 1000.0, 1.0, 1e-9)
    assert 1.0 < found <= 1.5 + 1e-6


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0])
def test_the_profile_of_a_gaussian_is_never_understated(noise: float) -> None:
    for epsilon in (0.0, 0.1, 1.0, 5.0):
        exact = ndtr(1 / (2 * noise) - epsilon * noise)
        exact -= math.exp(epsilon) * ndtr(-1 / (2 * noise) - epsilon * noise)
        assert exact <= pld_delta(gaussian(noise), epsilon) <= exact + 1e-12


def test_profile_and_epsilon_are_inverse() -> None:
    epsilon = pld_epsilon(SUBSAMPLED, 1e-6)
    assert pld_delta(SUBSAMPLED, epsilon) == pytest.approx(1e-6, rel=1e-3)


# As an event ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_event_goes_to_json_and_back(shape: float) -> None:
    event = repeat_and_select(SUBSAMPLED, 12.5, shape)
    assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": 0.5},
        {"mean": "many"},
        {"shape": -1},
        {"shape": "infinite"},
        {"shape": math.nan},
        {"event": {"type": "non_private"}},
    ],
)
def test_events_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    stated = event_to_json(repeat_and_select(gaussian(1.0), 2.0, 1.0))
    with pytest.raises(ValueError, match=r"selection|repeat_and_select"):
        event_from_json({**stated, **wrong})


def test_a_selection_among_selections_is_refused() -> None:
    with pytest.raises(ValueError, match="select once"):
        repeat_and_select(repeat_and_select(gaussian(1.0), 2.0, 1.0), 2.0, 1.0)


def test_beside_other_releases_a_selection_is_priced_by_renyi_alone() -> None:
    both = compose([repeat_and_select(gaussian(2.0), 4.0, 1.0), gaussian(5.0)])
    assert not pld_supports(both)
    assert price(both, 1e-5).accountant == "rdp"
    with pytest.raises(ValueError, match="rdp"):
        price(both, 1e-5, "pld")


def test_without_noise_a_selection_is_not_private() -> None:
    assert math.isinf(price(repeat_and_select(gaussian(0.0), 2.0, 1.0), 1e-5).epsilon)
