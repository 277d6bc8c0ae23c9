"""Golden values, agreement with dp-accounting, and what must hold between accountants."""

import math
from collections.abc import Sequence
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino.privacy import compose, epsilon_after, gaussian, poisson_gaussian, price, repeat
from sordino.privacy.events import sampled_without_replacement
from sordino.privacy.renyi import ORDERS, _poisson_gaussian_rdp, rdp_of, relation_of

ZERO_OUT = dp.NeighboringRelation.REPLACE_SPECIAL


def plan(noise_multiplier: float, rate: float, steps: int) -> dp.DpEvent:
    return repeat(poisson_gaussian(noise_multiplier, rate), steps)


def test_golden_rdp() -> None:
    assert price(plan(1.5, 0.04, 2250), 1e-5, "rdp").epsilon == pytest.approx(7.3291, abs=5e-5)


def test_golden_pld() -> None:
    guarantee = price(plan(0.7, 0.01, 120), 1e-5, "pld")
    assert guarantee.epsilon == pytest.approx(2.4612, abs=5e-5)
    assert (guarantee.accountant, guarantee.conversion) == ("pld", "none")


@pytest.mark.parametrize(
    ("noise", "moments", "improved"),
    [(2, 1.5361, 1.2796), (4, 0.7169, 0.5693), (6, 0.5152, 0.3635), (8, 0.4465, 0.2654)],
)
def test_golden_moments_accountant_of_adadp(noise: float, moments: float, improved: float) -> None:  # A5
    event = plan(noise, 1 / 300, 30000)
    assert price(event, 1e-5, "moments").epsilon == pytest.approx(moments, abs=1e-4)
    assert price(event, 1e-5, "rdp").epsilon == pytest.approx(improved, abs=1e-4)


def test_moments_accountant_is_basic_conversion_on_orders_2_to_33() -> None:
    event = plan(2, 1 / 300, 30000)
    orders = np.arange(2, 34)
    rdp = RdpAccountant(orders, ZERO_OUT).compose(event).rdp
    guarantee = price(event, 1e-5, "moments")
    assert guarantee.conversion == "basic"
    assert guarantee.epsilon == pytest.approx(min(rdp + math.log(1e5) / (orders - 1)), rel=1e-12)


def test_basic_conversion_of_a_gaussian_is_near_its_closed_form() -> None:
    s2 = 100 / 20.0**2  # eps = s2 / 2 + sqrt(2 s2 ln(1/delta)), attained only at the best order
    closed = s2 / 2 + math.sqrt(2 * s2 * math.log(1e5))
    epsilon = price(repeat(gaussian(20.0), 100), 1e-5, "rdp", "basic").epsilon
    assert closed <= epsilon * (1 + 1e-12) <= closed * 1.001
    assert price(repeat(gaussian(20.0), 100), 1e-5, "rdp", "improved").epsilon < epsilon


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.1, 5.0, 50.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.97])
def test_quadrature_agrees_with_dp_accounting_at_whole_orders(noise: float, rate: float) -> None:
    orders = np.array([2.0, 3.0, 6.0, 10.0])
    theirs = RdpAccountant(orders, ZERO_OUT).compose(poisson_gaussian(noise, rate)).rdp
    ours = _poisson_gaussian_rdp(rate, noise, orders)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(("noise", "rate"), [(1.5, 0.04), (0.6, 0.004), (20.0, 1e-5), (3.0, 0.5)])
def test_quadrature_is_convex_between_whole_orders_and_never_above_dp_accounting(
    noise: float, rate: float
) -> None:
    # log A(a) = (a - 1) RDP(a) is convex in a: a check of fractional orders that needs no reference.
    orders = np.linspace(1.5, 6.0, 46)
    log_a = (orders - 1) * _poisson_gaussian_rdp(rate, noise, orders)
    assert (np.diff(log_a, 2) > -1e-9 * log_a[1:-1]).all()
    theirs = RdpAccountant(orders, ZERO_OUT).compose(poisson_gaussian(noise, rate)).rdp
    assert (_poisson_gaussian_rdp(rate, noise, orders) <= theirs * (1 + 1e-5)).all()


def test_rdp_never_falls_with_the_order_even_where_rounding_would_make_it() -> None:
    for noise, rate in [(8.0, 1e-7), (100.0, 1e-5), (1.0, 1e-8), (1.0, 0.5)]:
        rdp = rdp_of(poisson_gaussian(noise, rate))
        finite = rdp[np.isfinite(rdp)]
        assert (finite >= 0).all()
        assert (np.diff(finite) >= 0).all()


def test_tiny_noise_still_has_a_finite_rdp_epsilon() -> None:
    assert math.isfinite(price(plan(0.02, 0.01, 10), 1e-5, "rdp").epsilon)


def test_orders_hold_those_of_dp_accounting_and_a_conversion_can_use_all() -> None:
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    assert set(DEFAULT_RDP_ORDERS) <= set(ORDERS)
    assert min(ORDERS) > 1.01
    assert list(ORDERS) == sorted(set(ORDERS))


def test_pld_is_dp_accountings() -> None:
    event = compose([plan(1.1, 0.02, 200), repeat(gaussian(8.0), 2), plan(2.0, 0.1, 10)])
    theirs = PLDAccountant(ZERO_OUT).compose(event).get_epsilon(1e-6)
    assert price(event, 1e-6, "pld").epsilon == pytest.approx(theirs, rel=1e-5)


def test_plain_gaussians_are_exact_with_zcdp_and_gdp_beside() -> None:
    event = compose([repeat(gaussian(5.0), 3), gaussian(2.0)])
    guarantee = price(event, 1e-5)
    mu = math.sqrt(3 / 25 + 1 / 4)
    assert guarantee.gdp_mu == pytest.approx(mu)
    assert guarantee.zcdp_rho == pytest.approx(mu**2 / 2)
    assert guarantee.accountant == "pld"
    assert guarantee.epsilon == pytest.approx(dp.get_epsilon_gaussian(1 / mu, 1e-5), abs=1e-9)
    assert guarantee.epsilon < price(event, 1e-5, "rdp").epsilon


def test_zcdp_and_gdp_do_not_exist_with_sampling_or_without_noise() -> None:
    for event in (plan(1.0, 0.1, 5), gaussian(0)):
        guarantee = price(event, 1e-5, "rdp")
        assert guarantee.zcdp_rho is None
        assert guarantee.gdp_mu is None


@pytest.mark.parametrize("accountant", ["auto", "rdp", "pld", "moments"])
def test_without_noise_epsilon_is_infinite(accountant: str) -> None:
    assert price(compose([plan(1.0, 0.1, 5), gaussian(0)]), 1e-5, accountant).epsilon == math.inf


@pytest.mark.parametrize("accountant", ["auto", "rdp", "pld", "moments"])
def test_nothing_costs_nothing_under_exact_accountants(accountant: str) -> None:
    epsilon = price(dp.NoOpDpEvent(), 1e-5, accountant).epsilon
    # Basic conversion pays ln(1/delta) / (a - 1) even for nothing.
    assert epsilon == 0 or accountant == "moments"


def test_auto_is_the_tighter_of_both_and_skips_pld_where_it_is_slow() -> None:
    event = plan(1.5, 0.04, 225)
    by_rdp, by_pld = price(event, 1e-5, "rdp"), price(event, 1e-5, "pld")
    assert price(event, 1e-5) == min(by_rdp, by_pld, key=lambda g: g.epsilon)
    assert price(plan(0.3, 0.01, 5000), 1e-5).accountant == "rdp"  # epsilon above 50
    assert price(event, 1e-14).accountant == "rdp"  # delta beyond PLD's precision
    many = compose([plan(2 + i / 10, 0.01, 5) for i in range(6)])
    assert price(many, 1e-5).accountant == "rdp"


def test_bad_names_and_events_raise() -> None:
    event = plan(1.0, 0.1, 5)
    with pytest.raises(ValueError, match="unknown accountant 'gdp'"):
        price(event, 1e-5, "gdp")
    with pytest.raises(ValueError, match="unknown conversion 'none'"):
        price(event, 1e-5, "rdp", "none")
    with pytest.raises(ValueError, match="delta"):
        price(event, 0.0)
    with pytest.raises(ValueError, match="delta below 1e-12"):
        price(event, 1e-14, "pld")
    with pytest.raises(ValueError, match="RDP cannot price"):
        price(dp.UnsupportedDpEvent(), 1e-5)
    with pytest.raises(ValueError, match="PLD prices"):
        price(dp.LaplaceDpEvent(1.0), 1e-5, "pld")
    with pytest.raises(ValueError, match="DpEvent"):
        price("gaussian", 1e-5)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 20), st.floats(1e-4, 0.9), st.integers(1, 3000), st.sampled_from(["rdp", "moments"]))
def test_more_noise_less_epsilon_more_steps_more_epsilon(
    noise: float, rate: float, steps: int, accountant: str
) -> None:
    epsilon = price(plan(noise, rate, steps), 1e-5, accountant).epsilon
    assert price(plan(noise * 1.1, rate, steps), 1e-5, accountant).epsilon <= epsilon
    assert price(plan(noise, rate, steps + 100), 1e-5, accountant).epsilon >= epsilon
    assert price(plan(noise, rate, steps), 1e-4, accountant).epsilon <= epsilon


@pytest.mark.parametrize("accountant", ["rdp", "moments", "pld", "auto"])
def test_the_curve_rises_and_ends_at_the_price_of_the_plan(accountant: str) -> None:
    step = poisson_gaussian(1.2, 0.02)
    curve = epsilon_after(step, 1e-5, planned_steps=400, accountant=accountant)
    values = [curve(steps) for steps in (0, 1, 50, 200, 399, 400, 450)]
    assert values == sorted(values)
    assert values[0] == 0
    assert values[-2] == price(repeat(step, 400), 1e-5, accountant).epsilon == curve.total.epsilon
    exact = price(repeat(step, 200), 1e-5, curve.total.accountant).epsilon
    assert exact * (1 - 1e-12) <= curve(200) <= exact * 1.01


def test_the_curve_of_a_run_without_noise_is_infinite() -> None:
    curve = epsilon_after(gaussian(0), 1e-5, planned_steps=10)
    assert (curve(0), curve(1), curve(10)) == (0.0, math.inf, math.inf)


def test_the_curve_of_two_releases_a_step() -> None:  # ADADP calls the gate twice
    step = repeat(poisson_gaussian(2.0, 0.01), 2)
    curve = epsilon_after(step, 1e-5, planned_steps=100, accountant="rdp")
    assert curve(50) == pytest.approx(price(plan(2.0, 0.01, 100), 1e-5, "rdp").epsilon, rel=1e-12)


# Samples without replacement: a unit is substituted ----------------------------------------------------------

SUBSTITUTE = dp.NeighboringRelation.REPLACE_ONE


@pytest.mark.parametrize(("z", "count", "units", "steps"), [(1.0, 10, 1000, 100), (6.0, 30, 100, 40)])
def test_samples_without_replacement_cost_what_dp_accounting_says_of_half_the_noise(
    z: float, count: int, units: int, steps: int
) -> None:
    theirs = RdpAccountant(ORDERS, SUBSTITUTE)
    theirs.compose(dp.SampledWithoutReplacementDpEvent(units, count, dp.GaussianDpEvent(z / 2)), steps)
    ours = price(repeat(sampled_without_replacement(z, count, units), steps), 1e-5)
    assert ours.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)
    assert (ours.accountant, ours.relation) == ("rdp", "substitution (REPLACE_ONE)")


@pytest.mark.parametrize("z", [0.8, 3.0, 20.0])
def test_a_sample_of_all_is_a_plain_gaussian_of_sensitivity_two(z: float) -> None:
    event = repeat(sampled_without_replacement(z, 50, 50), 7)
    np.testing.assert_allclose(rdp_of(event), 7 * np.array(ORDERS) * 2**2 / (2 * z**2), rtol=1e-12)
    assert price(event, 1e-5).epsilon == pytest.approx(price(repeat(gaussian(z / 2), 7), 1e-5, "rdp").epsilon)


def test_a_larger_sample_costs_more() -> None:
    # Up to a fifth of the units. Near all of them the bound for samples exceeds what no amplification costs.
    step = [sampled_without_replacement(8.0, count, 100) for count in (1, 5, 20)]
    costs = [price(repeat(sample, 100), 1e-5).epsilon for sample in step]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1] / 5


def test_substitution_and_zeroing_out_do_not_add_up() -> None:
    sample = repeat(sampled_without_replacement(2.0, 5, 100), 10)
    assert relation_of(sample) == "substitution (REPLACE_ONE)"
    assert relation_of(compose([sample, dp.NonPrivateDpEvent(), dp.NoOpDpEvent()])) == relation_of(sample)
    assert relation_of(dp.NoOpDpEvent()) == relation_of(gaussian(0)) == relation_of(plan(1.0, 0.1, 2))
    for other in (gaussian(3.0), poisson_gaussian(3.0, 0.1)):
        mixed = repeat(compose([sample, other]), 2)
        for ask in (
            relation_of,
            rdp_of,
            lambda event: price(event, 1e-5),
            lambda e: price(e, 1e-5, "moments"),
        ):
            with pytest.raises(ValueError, match="cannot be added up"):
                ask(mixed)


def test_pld_does_not_price_samples_without_replacement() -> None:
    with pytest.raises(ValueError, match="PLD prices"):
        price(sampled_without_replacement(2.0, 5, 100), 1e-5, "pld")
    assert price(sampled_without_replacement(2.0, 5, 100), 1e-5, "auto").accountant == "rdp"


def test_the_curve_of_samples_without_replacement_ends_at_their_price() -> None:
    step = sampled_without_replacement(4.0, 10, 200)
    curve = epsilon_after(step, 1e-5, planned_steps=60)
    assert 0 < curve(1) < curve(30) < curve(60) == price(repeat(step, 60), 1e-5).epsilon


def true_delta(epsilon: float, z: float, values: Sequence[float], other: float) -> float:
    """The hockey-stick divergence of one step that draws one of these units: its first is replaced by ``other``.

    What leaves the step is the value of the drawn unit, in clip norms, and noise of standard deviation z.
    """
    x = np.linspace(-1 - 12 * z, 1 + 12 * z, 40_001)

    def density(units: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(np.mean([stats.norm.pdf(x, value, z) for value in units], axis=0))

    p, q = density(values), density([other, *values[1:]])
    step = x[1] - x[0]
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * step) for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize(
    ("units", "z", "delta"),
    [
        (1, 0.7, 1e-2),
        (2, 0.7, 1e-5),
        (3, 1.5, 1e-2),
        (1, 1.5, 1e-5),
        (2, 4.0, 1e-2),
        (3, 4.0, 1e-5),
        (3, 0.7, 1e-2),
    ],
)
def test_the_price_is_not_below_the_true_loss(units: int, z: float, delta: float) -> None:
    epsilon = price(sampled_without_replacement(z, 1, units), delta).epsilon
    neighbours = [
        (value, *rest)
        for value in (1.0, 0.3)
        for rest in {(), (1.0,), (-1.0,), (0.0,), (-1.0, 1.0), (1.0, 1.0), (-1.0, -1.0), (0.0, 0.0)}
        if len(rest) == units - 1
    ]
    worst = max(true_delta(epsilon, z, values, -1.0) for values in neighbours)
    assert worst <= delta
    # The bound is no formality: a price that takes the sum to move by C, as when zeroing out, is too low.
    naive = price(dp.SampledWithoutReplacementDpEvent(units, 1, dp.GaussianDpEvent(z)), delta).epsilon
    assert units > 1 or max(true_delta(naive, z, values, -1.0) for values in neighbours) > delta
