"""Lower bounds on epsilon from scores: they hold as often as they say, and come close where they can."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino.privacy import gaussian, poisson_gaussian, price, repeat
from sordino.privacy.audit import (
    LEAST_RUNS,
    Array,
    Audit,
    Scores,
    _upper,
    audit,
    epsilon_of_errors,
    gaussian_ratio,
    gdp_epsilon,
    mixed_ratio,
    mu_of_errors,
    profile_of,
    sampled_ratio,
    whitened_ratio,
)


def gaussian_scores(mu: float, runs: int, seed: int, useless: int = 2) -> Scores:
    """Log-likelihood ratios of a mu-GDP mechanism, beside scores that say nothing."""
    generator = np.random.default_rng(seed)
    sides = []
    for sign in (1, -1):
        ratio = sign * mu**2 / 2 + mu * generator.normal(size=runs)
        sides.append(np.column_stack([ratio, generator.normal(size=(runs, useless))]))
    return Scores(*sides)


def audited(mu: float, runs: int, seed: int, claimed_mu: float | None = None) -> Audit:
    event = gaussian(1 / (claimed_mu or mu))
    return audit(gaussian_scores(mu, runs, seed), price(event, 1e-5), profile_of(event, 1e-5))


def test_the_bound_on_a_rate_is_that_of_clopper_and_pearson() -> None:
    for count, trials, alpha in ((0, 50, 0.01), (7, 50, 0.05), (49, 50, 0.001), (50, 50, 0.01)):
        (found,) = _upper(np.array([float(count)]), trials, alpha)
        exact = stats.binomtest(count, trials, alternative="less").proportion_ci(1 - alpha, "exact").high
        assert found == pytest.approx(exact)
    assert _upper(np.array([0.0]), 100, 0.05)[0] == pytest.approx(1 - 0.05**0.01)


def test_bounds_hold_as_often_as_they_say() -> None:
    """Of 150 audits of sound Gaussians 5 % may be wrong: 8 or so, and 24 with probability below 1e-6."""
    event = gaussian(1.0)
    claimed, profile = price(event, 1e-5), profile_of(event, 1e-5)
    wrong_mu = wrong_epsilon = wrong_profile = 0
    for seed in range(150):
        found = audit(gaussian_scores(1.0, 120, seed), claimed, profile)
        wrong_mu += found.bounds[0].gdp_mu > 1.0
        wrong_epsilon += found.bounds[0].epsilon > found.claimed.epsilon
        wrong_profile += found.refuted is not None
    assert wrong_mu < 24
    assert wrong_epsilon < 24
    assert wrong_profile <= 4  # at 99.9 %: 5 with probability below 1e-6


def test_the_gaussian_bound_comes_close_with_a_few_thousand_runs() -> None:
    found = audited(2.0, 4000, seed=1)
    assert 0.85 * found.claimed.epsilon < found.bounds[0].gdp_epsilon < found.claimed.epsilon
    assert not found.violated
    assert found.finding == "the claim stands"


def test_a_claim_of_two_thirds_is_refuted_without_the_gaussian_assumption() -> None:
    found = audited(1.5, 4000, seed=2, claimed_mu=1.0)
    assert found.violated
    assert found.refuted is not None
    assert found.refuted.epsilon > found.refuted.claimed
    assert found.finding.startswith("the claim is violated: the events of the claim promise epsilon")
    assert "\n" not in found.finding


def test_the_plain_bound_refutes_a_claim_at_its_own_delta() -> None:
    scores = gaussian_scores(8.0, 1000, seed=3)
    claimed = price(gaussian(2.0), 1e-5)
    found = audit(scores, claimed, {})
    assert found.violated
    assert found.refuted is None
    assert "was claimed, and it is at least" in found.finding
    assert claimed.epsilon < found.bounds[-1].epsilon <= found.largest


def test_more_confidence_proves_less() -> None:
    for seed in range(5):
        low, high = audited(2.0, 1000, seed).bounds
        assert (low.confidence, high.confidence) == (0.95, 0.999)
        assert high.epsilon < low.epsilon
        assert high.gdp_mu < low.gdp_mu + 0.1  # another threshold may be chosen, but hardly another bound


def test_no_runs_prove_more_than_the_largest() -> None:
    perfect = Scores(np.ones((200, 1)), np.zeros((200, 1)))
    found = audit(perfect, price(gaussian(1.0), 1e-5), {})
    assert found.bounds[-1].epsilon == pytest.approx(found.largest)
    limit = 1 - 0.0005 ** (1 / 150)  # a quarter of the runs chose
    assert found.largest == pytest.approx(math.log((1 - 1e-5 - limit) / limit))


def test_a_fault_that_shows_in_another_score_is_found() -> None:
    """The first score is what the claim looks at; the leak is in the third."""
    scores = gaussian_scores(1.0, 600, seed=4)
    scores.present[:, 2] += 6
    event = gaussian(1.0)
    assert audit(scores, price(event, 1e-5), profile_of(event, 1e-5)).violated


def test_a_fault_that_shows_only_in_two_scores_together_is_found() -> None:
    generator = np.random.default_rng(5)
    sides = []
    for shift in (0.5, -0.5):
        hidden = 30 * generator.normal(size=600)
        sides.append(np.column_stack([generator.normal(size=600), hidden, shift * 6 - hidden]))
    event = gaussian(1.0)
    assert audit(Scores(*sides), price(event, 1e-5), profile_of(event, 1e-5)).violated


def test_scores_that_say_nothing_prove_nothing() -> None:
    found = audited(1e-9, 500, seed=6, claimed_mu=0.5)
    assert found.bounds[-1].epsilon == 0
    assert found.bounds[-1].gdp_epsilon == 0
    assert not found.violated


def test_infinite_scores_are_scores() -> None:
    present, absent = np.full((80, 1), math.inf), np.full((80, 1), -math.inf)
    assert audit(Scores(present, absent), price(gaussian(4.0), 1e-5), {}).bounds[0].epsilon > 1


@pytest.mark.parametrize(
    ("present", "absent", "message"),
    [
        (np.zeros((LEAST_RUNS - 1, 1)), np.zeros((80, 1)), "prove nothing"),
        (np.zeros((80, 2)), np.zeros((80, 1)), "a column for each score"),
        (np.full((80, 1), math.nan), np.zeros((80, 1)), "no number"),
    ],
)
def test_what_cannot_be_judged_is_refused(present: Array, absent: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(Scores(present, absent), price(gaussian(1.0), 1e-5), {})


@given(st.floats(0.05, 6), st.floats(-3, 3), st.floats(1e-8, 0.3))
@settings(max_examples=60, deadline=None)
def test_no_guess_about_a_gaussian_beats_its_price(mu: float, threshold: float, delta: float) -> None:
    """With exact error rates the bounds are never above the truth."""
    alarms, misses = (np.array([stats.norm.sf(threshold)]), np.array([stats.norm.cdf(threshold - mu)]))
    assert epsilon_of_errors(alarms, misses, delta)[0] <= gdp_epsilon(mu, delta) + 1e-6
    assert mu_of_errors(alarms, misses)[0] == pytest.approx(mu, abs=1e-6)


def test_the_profile_of_sampled_releases_is_never_too_small() -> None:
    event = repeat(poisson_gaussian(1.0, 0.3), 6)
    for delta, epsilon in profile_of(event, 0.4).items():
        assert delta > 0.4
        assert epsilon >= price(event, delta, "pld").epsilon - 1e-9


# Scores -------------------------------------------------------------------------------------------------------


def log_ratio(
    seen: float, with_unit: list[tuple[float, float]], without: list[tuple[float, float]], std: float
) -> float:
    """The definition: mixtures of (probability, mean)."""
    density = [sum(p * stats.norm.pdf(seen, mean, std) for p, mean in side) for side in (with_unit, without)]
    return math.log(density[0] / density[1])


def test_ratios_are_those_of_the_densities() -> None:
    seen, std = np.array([0.7]), np.array([1.3])
    ratio = gaussian_ratio(seen, np.array([2.0]), std)
    assert ratio[0] == pytest.approx(log_ratio(0.7, [(1, 2.0)], [(1, 0.0)], 1.3))
    sampled = sampled_ratio(ratio, 0.25)
    assert sampled[0] == pytest.approx(log_ratio(0.7, [(0.25, 2.0), (0.75, 0.0)], [(1, 0.0)], 1.3))
    assert sampled_ratio(ratio, 1.0)[0] == ratio[0]
    means, weights = np.array([[0.0, 1.0]]), np.array([0.4, 0.6])
    mixed = mixed_ratio(seen, np.array([-0.5]), std, means, weights)
    expected = log_ratio(0.7, [(0.4, -0.5), (0.6, 0.5)], [(0.4, 0.0), (0.6, 1.0)], 1.3)
    assert mixed[0] == pytest.approx(expected)


def test_ratios_of_correlated_releases_are_those_of_the_densities() -> None:
    noise = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.5, 2.0]])
    moved, seen = np.array([1.0, 0.0, 1.0]), np.array([0.3, -0.2, 1.1])
    law = stats.multivariate_normal(np.zeros(3), noise @ noise.T)
    expected = law.logpdf(seen - moved) - law.logpdf(seen)
    assert whitened_ratio(seen, moved, noise) == pytest.approx(expected, rel=1e-6)


def test_noise_that_is_missing_makes_a_huge_ratio_and_no_error() -> None:
    noise = np.array([[1.0], [1.0]])  # two releases, one normal
    assert whitened_ratio(np.array([1.5, 0.5]), np.array([1.0, 0.0]), noise) > 1e6
    assert math.isfinite(whitened_ratio(np.zeros(2), np.ones(2), np.zeros((2, 1))))
