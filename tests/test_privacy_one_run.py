"""The statistics of one run with many canaries: exact where they can be, and never against a claim that is true."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

from sordino.privacy import gaussian, poisson_gaussian, price, repeat
from sordino.privacy.audit import gdp_epsilon
from sordino.privacy.one_run import (
    LEAST_CANARIES,
    SHARES,
    GaussianCurve,
    Guessed,
    Lines,
    curve_of,
    curve_p_value,
    epsilon_of_guesses,
    guessed,
    mu_of_guesses,
    one_run,
    p_value,
)

Points = tuple[tuple[float, float], ...]


# Oracles ----------------------------------------------------------------------------------------------------


def tail_of_responses(m: int, right: int, epsilon: float) -> float:
    """Randomised response for each of m coins, all guessed: P[at least so many right], every outcome counted."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    return sum(
        truth ** sum(kept) * (1 - truth) ** (m - sum(kept))
        for kept in itertools.product((0, 1), repeat=m)
        if sum(kept) >= right
    )


def tail_with_slips(m: int, right: int, epsilon: float, delta: float) -> float:
    """The same, but with probability delta all coins are told at once: (epsilon, delta)-DP, and the coins are tied."""
    return delta + (1 - delta) * tail_of_responses(m, right, epsilon)


def most_of_tail(seen: Guessed, points: Points) -> float:
    """The largest P[at least v right] that the inequalities allow, by linear programming over all distributions."""
    m, r = seen.canaries, seen.made
    numbers = np.arange(r + 1)
    rows, limits = [], []
    for least in range(1, r + 1):
        right = np.where(numbers >= least, numbers, 0) / m
        wrong = np.where(numbers >= least - 1, r - numbers, 0) / m
        for epsilon, delta in points:
            factor = math.exp(epsilon)
            rows += [right - factor * wrong, factor * right - wrong]
            limits += [delta, factor - 1 + delta]
    aim = -(numbers >= seen.right).astype(float)
    found = linprog(aim, A_ub=rows, b_ub=limits, A_eq=[np.ones(r + 1)], b_eq=[1.0], bounds=(0, 1))
    return float(-found.fun)


# Steinke, Nasr and Jagielski ----------------------------------------------------------------------------------


def test_the_p_value_is_the_one_worked_out_by_hand() -> None:
    assert p_value(Guessed(3, 3, 3), 0.0, 0.0) == 1 / 8
    # Binomial(2, 1/2): P[2] = 1/4; P[1] / 1 = 1/2 beats P[0 or 1] / 2 = 3/8; so 1/4 + 2 * 2 * 0.1 * 1/2.
    assert p_value(Guessed(2, 2, 2), 0.0, 0.1) == pytest.approx(0.45)
    # Canaries nobody made a guess about count in what delta may do.
    assert p_value(Guessed(4, 2, 2), 0.0, 0.1) == pytest.approx(0.65)
    assert p_value(Guessed(9, 5, 0), 1.0, 0.1) == 1.0


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 2.5])
def test_without_delta_it_is_what_randomised_response_does(epsilon: float) -> None:
    for right in range(9):
        assert p_value(Guessed(8, 8, right), epsilon, 0.0) == pytest.approx(
            tail_of_responses(8, right, epsilon)
        )


@pytest.mark.parametrize("points", [((0.0, 0.05),), ((1.0, 0.02),), ((2.0, 0.3),)])
def test_no_bound_is_below_what_a_mechanism_that_slips_does(points: Points) -> None:
    ((epsilon, delta),) = points
    for right in range(1, 11):
        seen, really = Guessed(10, 10, right), tail_with_slips(10, right, epsilon, delta)
        assert p_value(seen, epsilon, delta) >= really - 1e-12
        assert curve_p_value(seen, Lines(points)) >= really - 1e-9
    # A bound that forgot what delta can do would be wrong about it.
    assert p_value(Guessed(10, 10, 10), epsilon, 0.0) < tail_with_slips(10, 10, epsilon, delta)


def test_the_bound_on_epsilon_is_where_the_p_value_is() -> None:
    seen = Guessed(1000, 100, 97)
    bound = epsilon_of_guesses(seen, 1e-5, 0.05)
    assert p_value(seen, bound, 1e-5) <= 0.05 < p_value(seen, bound + 1e-6, 1e-5)
    assert epsilon_of_guesses(Guessed(1000, 100, 55), 1e-5, 0.05) == 0.0
    assert epsilon_of_guesses(Guessed(1000, 100, 97), 1e-3, 0.05) < bound


# The curve ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [((0.0, 0.02),), ((1.0, 0.0),), ((0.5, 0.05), (1.0, 0.01), (2.0, 1e-3))])
@pytest.mark.parametrize("seen", [Guessed(10, 10, 9), Guessed(20, 8, 7), Guessed(30, 15, 12)])
def test_the_recursion_finds_what_linear_programming_finds(points: Points, seen: Guessed) -> None:
    assert curve_p_value(seen, Lines(points)) == pytest.approx(most_of_tail(seen, points), rel=1e-6)


def test_lines_are_below_the_curve_and_close_to_it() -> None:
    mu = 1.3
    deltas = [1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.48]
    lines = Lines(tuple((price(gaussian(1 / mu), delta).epsilon, delta) for delta in deltas))
    for right in (0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999):
        exact = GaussianCurve(mu).least(right)
        assert exact - 0.03 <= lines.least(right) <= exact + 1e-9


def test_events_have_the_curve_they_are_priced_by() -> None:
    assert curve_of(repeat(gaussian(2.0), 4), 1e-5) == GaussianCurve(1.0)
    sampled = curve_of(repeat(poisson_gaussian(1.0, 0.1), 20), 1e-5)
    assert isinstance(sampled, Lines)
    unsampled = GaussianCurve(math.sqrt(20))
    assert all(sampled.least(right) >= unsampled.least(right) for right in (0.2, 0.5, 0.9))
    assert sampled.least(0.5) > 0.1


def test_mu_is_where_the_curve_is_refuted() -> None:
    seen = Guessed(1000, 250, 245)
    mu = mu_of_guesses(seen, 0.01)
    assert (
        curve_p_value(seen, GaussianCurve(mu - 1e-6)) <= 0.01 < curve_p_value(seen, GaussianCurve(mu + 1e-3))
    )
    assert mu_of_guesses(Guessed(1000, 250, 130), 0.01) == 0.0


# The verdict --------------------------------------------------------------------------------------------------


def seen_of(rng: np.random.Generator, m: int, mu: float) -> tuple[Any, Any]:
    coins = rng.integers(0, 2, m).astype(bool)
    return coins, mu * coins + rng.normal(size=m)


def test_guesses_are_about_the_surest() -> None:
    scores = np.array([9.0, -7.0, 2.0, 0.5, -0.5, -1.0, 1.0, -2.0])
    coins = np.array([True, True, True, True, False, False, False, False])
    assert guessed(coins, scores, 1 / 4) == Guessed(8, 2, 1)  # 9 is there, and -7 is not what it seems
    assert guessed(coins, scores, 1.0) == Guessed(8, 8, 6)
    assert guessed(coins, scores + 100, 1.0) == guessed(coins, 3 * scores, 1.0)


def test_every_choice_is_paid_for() -> None:
    """Three ways to a bound, several numbers of guesses: each has its share of what may go wrong."""
    coins, scores = seen_of(np.random.default_rng(1), 1000, 2.0)
    event = gaussian(0.5)
    found = one_run(coins, scores, price(event, 1e-5), event, 0.95)
    each = 0.05 / 3 / len(SHARES)
    assert found.epsilon == max(epsilon_of_guesses(seen, 1e-5, each) for seen in found.guesses)
    assert found.gdp_mu == max(mu_of_guesses(seen, each) for seen in found.guesses)
    assert found.apart is not None
    assert found.apart.bounds[0].confidence == pytest.approx(1 - 0.05 / 6)
    alone = one_run(coins, scores, price(event, 1e-5), event, 0.95, apart=False)
    assert alone.apart is None
    assert alone.epsilon == max(
        epsilon_of_guesses(seen, 1e-5, 0.05 / 2 / len(SHARES)) for seen in found.guesses
    )


@pytest.mark.parametrize(("mu", "times"), [(0.5, 40), (2.0, 40)])
def test_a_true_claim_stands_and_half_the_noise_does_not(mu: float, times: int) -> None:
    """By the strongest guess there is: of claims that are true hardly one is refuted, and half the noise is."""
    rng, event = np.random.default_rng(7), gaussian(1 / mu)
    claimed = price(event, 1e-5)
    assert sum(one_run(*seen_of(rng, 400, mu), claimed, event).violated for _ in range(times)) <= 2
    assert all(one_run(*seen_of(rng, 4000, 2 * mu), claimed, event).violated for _ in range(3))


@pytest.mark.soak
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_true_claims_are_refuted_less_often_than_said(mu: float) -> None:
    rng, event = np.random.default_rng(8), gaussian(1 / mu)
    claimed = price(event, 1e-5)
    assert sum(one_run(*seen_of(rng, 400, mu), claimed, event).violated for _ in range(1000)) <= 50


def test_the_three_ways_find_more_the_more_they_assume() -> None:
    coins, scores = seen_of(np.random.default_rng(3), 2000, 2.0)
    event = gaussian(0.5)
    found = one_run(coins, scores, price(event, 1e-5), event)
    assert found.apart is not None
    assert 2 < found.epsilon < found.gdp_epsilon < found.apart.bounds[0].gdp_epsilon < found.claimed.epsilon
    assert found.gdp_epsilon == gdp_epsilon(found.gdp_mu, 1e-5)
    assert not found.violated
    assert found.finding == "the claim stands"


def test_each_way_can_refute_alone_and_says_so() -> None:
    rng = np.random.default_rng(5)
    coins, scores = seen_of(rng, 1000, 40.0)
    small = gaussian(5.0)
    found = one_run(coins, scores, price(small, 1e-5), small, apart=False)
    assert found.curve_refuted
    assert found.epsilon > found.claimed.epsilon
    assert "was claimed, and it is at least" in found.finding
    # What tells at once of all canaries, at small probability, is in nobody's epsilon: the curve has it.
    medium = gaussian(1.0)
    found = one_run(*seen_of(rng, 1000, 3.0), price(medium, 1e-5), medium, apart=False)
    assert found.epsilon < found.claimed.epsilon
    assert found.curve_refuted
    assert "guesses were right, which its events do not allow" in found.finding
    large = gaussian(0.5)
    found = one_run(*seen_of(rng, 1000, 4.0), price(large, 1e-5), large)
    assert not found.curve_refuted
    assert found.violated
    assert "the canaries show at least" in found.finding


def test_canaries_that_are_tied_together_do_not_refute_one_by_one() -> None:
    """Shown, where they are asked for, but not part of the verdict: a fault of one would be a fault of all."""
    large = gaussian(0.5)
    coins, scores = seen_of(np.random.default_rng(5), 1000, 4.0)
    found = one_run(coins, scores, price(large, 1e-5), large, counts=False)
    assert found.apart is not None
    assert found.apart.violated
    assert not found.violated


def test_too_few_canaries_and_odd_confidences_are_refused() -> None:
    coins, scores = seen_of(np.random.default_rng(0), 50, 1.0)
    with pytest.raises(ValueError, match=f"at least {LEAST_CANARIES}"):
        one_run(coins, scores, price(gaussian(1.0), 1e-5), gaussian(1.0))
    with pytest.raises(ValueError, match="confidence"):
        one_run(coins, scores, price(gaussian(1.0), 1e-5), gaussian(1.0), 1.0)


def test_binomials_are_those_of_another_library() -> None:
    for made, right, epsilon in ((100, 80, 1.0), (1000, 999, 5.0), (7, 7, 0.3)):
        chance = 1 / (1 + math.exp(-epsilon))
        expected = binom.sf(right - 1, made, chance)
        assert p_value(Guessed(made, made, right), epsilon, 0.0) == pytest.approx(expected)
