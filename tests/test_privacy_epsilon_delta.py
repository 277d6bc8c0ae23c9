"""What is known by its epsilon and delta alone: priced as the worst pair that has them, with everything else."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from sordino.privacy import (
    Budget,
    approximate,
    compose,
    dp,
    epsilon_after,
    event_from_json,
    event_to_json,
    gaussian,
    noise_for,
    poisson_gaussian,
    price,
    repeat,
)
from sordino.privacy.events import parted, repeat_and_select, sampled_without_replacement
from sordino.privacy.renyi import ORDERS, pure_rdp, rdp_beside_delta, rdp_of
from sordino.privacy.wording import events_in_words
from sordino.verifying.pricing import prices

TRAINING = repeat(poisson_gaussian(1.5, 0.04), 300)
ACCOUNTANTS = ("rdp", "pld", "auto")


def delta_of_responses(epsilons: list[float], at: float) -> float:
    """The exact delta of several randomised responses, by all their outcomes."""
    total = 0.0
    for signs in np.ndindex(*(2,) * len(epsilons)):
        probability, loss = 1.0, 0.0
        for sign, epsilon in zip(signs, epsilons, strict=True):
            probability *= 1 / (1 + math.exp(epsilon if sign else -epsilon))
            loss += -epsilon if sign else epsilon
        total += probability * max(0.0, -math.expm1(at - loss))
    return total


def exact_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    return float(optimize.brentq(lambda at: delta_at(at) - delta, 0.0, 60.0, xtol=1e-12))


@pytest.mark.parametrize("delta", [1e-5, 1e-2, 0.1])
def test_two_pure_pieces_cost_what_their_four_outcomes_come_to(delta: float) -> None:
    # By hand, for delta below the mass p1 p2 of the largest loss e1 + e2: p1 p2 (1 - e^(x - e1 - e2)) = delta.
    first, second = 0.7, 0.4
    both = 1 / ((1 + math.exp(-first)) * (1 + math.exp(-second)))
    by_hand = first + second + math.log1p(-delta / both)
    assert exact_epsilon(lambda at: delta_of_responses([first, second], at), delta) == pytest.approx(
        by_hand if by_hand > abs(first - second) else 0.0, abs=1e-9
    )
    event = compose([approximate(first), approximate(second)])
    assert by_hand - 1e-12 <= price(event, delta, "pld").epsilon <= by_hand + 2.1e-4
    assert by_hand <= price(event, delta, "rdp").epsilon <= first + second


@pytest.mark.parametrize(("noise", "epsilon"), [(1.0, 0.5), (3.0, 0.2), (0.8, 2.0)])
def test_a_pure_piece_with_a_gaussian_is_the_integral_over_the_worst_pair(
    noise: float, epsilon: float
) -> None:
    """Numerically, from densities: delta(x) = sum over answers of the integral of (P - e^x Q)+."""
    p = 1 / (1 + math.exp(-epsilon))
    one, other = stats.norm(1, noise), stats.norm(0, noise)

    def delta_at(at: float) -> float:
        total = 0.0
        for mass, masked in ((p, 1 - p), (1 - p, p)):
            # The integrand is zero left of where both densities, weighted, are equal.
            begins = 0.5 + noise**2 * (at + math.log(masked / mass))
            found, _ = integrate.quad(
                lambda x, mass=mass, masked=masked: max(
                    0.0, mass * one.pdf(x) - math.exp(at) * masked * other.pdf(x)
                ),
                begins,
                begins + 30 * noise,
                epsabs=1e-13,
                limit=300,
            )
            total += found
        return total

    exact = exact_epsilon(delta_at, 1e-4)
    event = compose([approximate(epsilon), gaussian(noise)])
    assert exact - 1e-6 <= price(event, 1e-4, "pld").epsilon <= exact + 3e-4
    assert exact - 1e-6 <= price(event, 1e-4, "rdp").epsilon
    assert exact - 1e-6 <= price(event, 1e-4).epsilon <= exact + 3e-4


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 3.0, 40.0])
def test_the_rdp_of_a_pure_piece_is_that_of_randomised_response(epsilon: float) -> None:
    import mpmath  # type: ignore[import-untyped]

    mpmath.mp.dps = 60
    p = mpmath.e**epsilon / (1 + mpmath.e**epsilon)
    for order, found in zip(ORDERS, pure_rdp(epsilon, np.array(ORDERS)), strict=True):
        a = mpmath.mpf(order)
        exact = mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
        assert exact * (1 - mpmath.mpf(10) ** -12) <= found <= min(epsilon, order * epsilon**2 / 2) + 1e-12
        assert found <= exact * (1 + mpmath.mpf(10) ** -6) + mpmath.mpf(10) ** -10


@settings(deadline=None, max_examples=25)
@given(
    epsilon=st.floats(1e-3, 4.0),
    share=st.sampled_from([0.0, 1e-3, 0.3]),
    accountant=st.sampled_from(ACCOUNTANTS),
)
def test_together_is_never_below_the_training_alone_nor_above_plain_addition(
    epsilon: float, share: float, accountant: str
) -> None:
    delta = 1e-5
    together = price(compose([approximate(epsilon, share * delta), TRAINING]), delta, accountant).epsilon
    alone = price(TRAINING, delta, accountant).epsilon
    added = epsilon + price(TRAINING, delta - share * delta, accountant).epsilon
    assert alone * (1 - 1e-9) <= together <= added * (1 + 1e-12)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_larger_epsilon_or_delta_of_a_piece_costs_more(accountant: str) -> None:
    def cost(epsilon: float, delta: float) -> float:
        return price(compose([approximate(epsilon, delta), TRAINING]), 1e-5, accountant).epsilon

    by_epsilon = [cost(epsilon, 1e-7) for epsilon in (0.05, 0.1, 0.5, 1.0, 3.0)]
    by_delta = [cost(0.5, delta) for delta in (0.0, 1e-8, 1e-7, 5e-6, 9.9e-6)]
    assert by_epsilon == sorted(set(by_epsilon))
    assert by_delta == sorted(set(by_delta))


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_deltas_are_taken_from_delta_and_where_nothing_is_left_nothing_is_promised(accountant: str) -> None:
    assert math.isinf(price(compose([approximate(0.5, 1e-5), TRAINING]), 1e-5, accountant).epsilon)
    twice = repeat(approximate(0.5, 4e-6), 3)
    assert math.isinf(price(compose([twice, TRAINING]), 1e-5, accountant).epsilon)
    assert price(approximate(0.5, 1e-5), 1e-5, accountant).epsilon == pytest.approx(0.5, abs=1e-9)


def test_rdp_with_a_delta_of_its_own_is_refused_where_delta_would_be_lost() -> None:
    with pytest.raises(ValueError, match="delta of its own"):
        rdp_of(approximate(0.5, 1e-7))
    curve, aside = rdp_beside_delta(compose([repeat(approximate(0.5, 1e-7), 3), TRAINING]))
    assert aside == pytest.approx(3e-7)
    assert np.allclose(curve, 3 * rdp_of(approximate(0.5)) + rdp_of(TRAINING))


def test_what_has_no_price_with_it_is_refused() -> None:
    with pytest.raises(ValueError, match="moments accountant"):
        price(compose([approximate(0.5), TRAINING]), 1e-5, "moments")
    with pytest.raises(ValueError, match="cannot be added up"):
        price(compose([approximate(0.5), sampled_without_replacement(2.0, 10, 100)]), 1e-5)
    with pytest.raises(ValueError, match="has no price here"):
        repeat_and_select(compose([approximate(0.5), gaussian(2.0)]), 10, 1)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 0), (-1, 0), (math.inf, 0), (1, 1), (1, -1e-9), (math.nan, 0)]
)
def test_no_such_piece(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"must|has a finite"):
        approximate(epsilon, delta)
    with pytest.raises(ValueError, match="finite epsilon"):
        event_from_json({"type": "approximate", "epsilon": float(epsilon), "delta": float(delta)})


def test_it_is_written_read_and_said() -> None:
    event = compose([approximate(0.5, 1e-8), repeat(approximate(0.25), 2), TRAINING])
    said = event_to_json(event)
    assert event_from_json(json.loads(json.dumps(said))) == event
    assert said["events"][0] == {"type": "approximate", "epsilon": 0.5, "delta": 1e-8}
    assert events_in_words(said)[:2] == [
        "once: a release of which only epsilon 0.5 and delta 1e-08 is known, whatever it is",
        "2 times: a release of which only epsilon 0.25 is known, whatever it is",
    ]
    rest, pieces = parted(event)
    assert rest == TRAINING
    assert [(piece.epsilon, count) for piece, count in pieces] == [(0.5, 1), (0.25, 2)]


@pytest.mark.parametrize("accountant", ["rdp", "auto"])
def test_noise_is_found_with_a_piece_in_front_and_is_more_than_without(accountant: str) -> None:
    def plan(z: float) -> Any:
        return compose([approximate(0.5, 1e-8), repeat(poisson_gaussian(z, 0.04), 200)])

    found = noise_for(Budget(2.0, 1e-5), plan, accountant)
    assert 1.99 <= price(plan(found), 1e-5, accountant).epsilon <= 2.0
    assert found > noise_for(Budget(2.0, 1e-5), lambda z: parted(plan(z))[0], accountant)
    assert found <= noise_for(Budget(1.5, 0.999e-5), lambda z: parted(plan(z))[0], accountant) * (1 + 2e-4)
    with pytest.raises(ValueError, match="no amount of noise"):
        noise_for(Budget(0.4, 1e-5), plan, "rdp")


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_curve_counts_what_was_released_before_from_the_start(accountant: str) -> None:
    step, before = poisson_gaussian(1.5, 0.04), approximate(0.5, 1e-8)
    curve = epsilon_after(step, 1e-5, planned_steps=300, accountant=accountant, before=before)
    assert curve(0) == pytest.approx(0.5, abs=2e-3)
    assert curve(0) < curve(100) < curve(200) < curve(300) == curve.total.epsilon
    assert curve.total.epsilon == price(compose([before, TRAINING]), 1e-5, accountant).epsilon


def epsilon_of_worst_pair(epsilon: float, delta: float, at: float) -> float:
    """Of the training beside the worst pair of a piece: with probability ``delta`` that tells all, and else its loss is
    epsilon or -epsilon, which moves where the training's own profile is asked."""
    training = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL).compose(TRAINING)
    likely = 1 / (1 + math.exp(-epsilon))

    def profile(loss: float) -> float:
        return float(training.get_delta(loss))

    return exact_epsilon(
        lambda x: delta + (1 - delta) * (likely * profile(x - epsilon) + (1 - likely) * profile(x + epsilon)),
        at,
    )


@pytest.mark.parametrize("piece", [(0.5, 1e-8), (0.25, 6e-6), (1.0, 0.0)])
def test_others_price_it_too_and_prove_the_same(piece: tuple[float, float]) -> None:
    event = compose([approximate(*piece), TRAINING])
    found = {each.name: each.epsilon for each in prices(event_to_json(event), 1e-5)}
    exact = pytest.approx(epsilon_of_worst_pair(*piece, 1e-5), rel=1e-3)
    assert found["sordino pld"] == exact
    assert found["dp-accounting pld, worst pairs"] == exact
    added = piece[0] + price(TRAINING, 1e-5 - piece[1], "pld").epsilon
    assert found["dp-accounting pld, and addition"] == pytest.approx(added, rel=1e-3)
    # From below, of the training alone: with the piece it is no less.
    alone = price(TRAINING, 1e-5, "pld").epsilon
    assert found["dp-accounting pld, optimistic"] == pytest.approx(alone, rel=2e-2)
    assert found["dp-accounting rdp"] is found["dp-accounting pld"] is None  # which know no pieces
