"""Renyi differential privacy of an event: a vector over orders that adds up under composition.

Per mechanism the vector is dp-accounting's, with one exception: at *fractional* orders of the Poisson
sampled Gaussian we integrate the definition numerically. dp-accounting 0.6 sums the series of Mironov,
Talwar and Zhang (2019, section 3.3) without the signs of its binomial coefficients, which is valid but
loose (7.3293 instead of 7.3291 for noise 1.5, rate 0.04, 2250 steps, delta 1e-5) and does not converge at
rates around 1/2.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.privacy import dp
from sordino.privacy.events import known_delta, known_epsilon, leaves, parted
from sordino.privacy.selection import selected_rdp

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Vector = NDArray[np.float64]

# Any set of orders gives a valid epsilon, and certificates depend on the set: it never changes silently.
# dp-accounting's default (1.1 to 10.9 by 0.1, 11 to 63, powers of two), more below 1.1 for large epsilons
# (its conversion needs orders above 1.01) and quarter octaves above 63 for small ones.
ORDERS: tuple[float, ...] = tuple(
    sorted(
        {1 + tenths / 10.0 for tenths in range(1, 100)}
        | {float(order) for order in (*range(11, 64), 128, 256, 512, 1024)}
        | {1 + 0.01 * 2 ** (k / 4) for k in range(1, 14)}
        | {float(round(64 * 2 ** (k / 4))) for k in range(17)}
    )
)
MOMENTS_ORDERS: tuple[float, ...] = tuple(float(order) for order in range(2, 34))  # lambda = 1..32

_MOST_GRID_POINTS = 8_000  # beyond (noise below about 0.06) dp-accounting's looser series has to do


ZERO_OUT = "zero-out (REPLACE_SPECIAL)"
SUBSTITUTION = "substitution (REPLACE_ONE)"


def relation_of(event: DpEvent) -> str:
    """How neighbouring data sets differ: one unit is zeroed out, or for samples without replacement, substituted.

    What was spent under one relation says nothing under the other, so events of both kinds have no price.
    """
    kinds = {
        _is_of_substitution(leaf) for leaf, _ in leaves(event) if not isinstance(leaf, dp.NonPrivateDpEvent)
    }
    if kinds == {True, False}:
        raise ValueError(
            "samples without replacement are priced for substituting a unit and everything else for zeroing it out: "
            "they cannot be added up; use Poisson sampling"
        )
    return SUBSTITUTION if kinds == {True} else ZERO_OUT


def _is_of_substitution(leaf: DpEvent) -> bool:
    if isinstance(leaf, dp.RepeatAndSelectDpEvent):
        return relation_of(leaf.event) == SUBSTITUTION
    return isinstance(leaf, dp.SampledWithoutReplacementDpEvent)


def rdp_of(event: DpEvent, orders: tuple[float, ...] = ORDERS) -> Vector:
    """RDP of `event` at `orders` under its `relation_of`; infinite where it is not private.

    What has a delta of its own has no RDP but beside that delta, and is refused: see `rdp_beside_delta`.
    """
    curve, aside = rdp_beside_delta(event, orders)
    if aside:
        raise ValueError("this has a delta of its own, and no RDP without it")
    return curve


def rdp_beside_delta(event: DpEvent, orders: tuple[float, ...] = ORDERS) -> tuple[Vector, float]:
    """RDP of `event`, and the delta within which it holds: those of its `approximate` parts, added up.

    Every (epsilon, delta)-DP mechanism is a function of randomised response that gives everything away with
    probability delta (Kairouz, Oh and Viswanath 2015, theorem 3.3), also where it follows from what was seen before. So
    but for the sum of the deltas it is that response, whose RDP is known.
    """
    relation_of(event)  # or refuse
    total = np.zeros(len(orders))
    for leaf, count in leaves(event):
        total += count * _rdp_of_leaf(leaf, orders)
    return total, known_delta(parted(event)[1])


def rdp_epsilon(
    event: DpEvent, delta: float, conversion: str = "improved", orders: tuple[float, ...] = ORDERS
) -> float:
    """The smallest epsilon that RDP proves of `event` at `delta`, of which what is `approximate` in it takes its part.

    Never more than its epsilons added to that of the rest, which is a proof too.
    """
    curve, aside = rdp_beside_delta(event, orders)
    rest, pieces = parted(event)
    if not pieces:
        return epsilon_from_rdp(curve, delta, conversion, orders)
    left = delta - aside
    if left < 0 or (left == 0 and leaves(rest)):
        return math.inf
    added = known_epsilon(pieces)
    if not leaves(rest):
        return min(added, epsilon_from_rdp(curve, left, conversion, orders)) if left else added
    alone = epsilon_from_rdp(rdp_of(rest, orders), left, conversion, orders)
    return min(alone + added, epsilon_from_rdp(curve, left, conversion, orders))


def pure_rdp(epsilon: float, orders: Vector) -> Vector:
    """Of randomised response, to which every pure epsilon-DP mechanism is at most equal, at every order.

    p^a (1-p)^(1-a) + (1-p)^a p^(1-a) with p = e^epsilon / (1 + e^epsilon); it is below epsilon, and below order times
    epsilon^2 / 2 (Bun and Steinke 2016), which bound it where it rounds.
    """
    # Both terms over e^(epsilon (a-1)) are (e^epsilon + e^(-2 epsilon (a-1))) / (1 + e^epsilon): no large powers.
    log_a = epsilon * (orders - 1) + np.log1p(
        np.expm1(-2 * epsilon * (orders - 1)) / (1 + math.exp(min(epsilon, 700.0)))
    )
    exact = log_a / (orders - 1) * (1 + 1e-9) + 1e-15 / (orders - 1)
    found: Vector = np.minimum(np.minimum(exact, epsilon), orders * epsilon**2 / 2)
    return found


def epsilon_from_rdp(rdp: Vector, delta: float, conversion: str, orders: tuple[float, ...] = ORDERS) -> float:
    """The smallest epsilon the RDP curve proves at `delta`.

    `improved`: Canonne, Kamath and Steinke (2020, proposition 12), as dp-accounting does it.
    `basic`: Mironov (2017, proposition 3), `min over a of r(a) + ln(1/delta) / (a - 1)`.
    """
    if not np.isfinite(rdp).any():
        return math.inf
    if conversion == "improved":
        epsilon, _ = dp.rdp.compute_epsilon(orders, rdp, delta)
        return float(epsilon)
    assert conversion == "basic"
    return max(0.0, float(np.min(rdp + math.log(1 / delta) / (np.array(orders) - 1))))


def _rdp_of_leaf(leaf: DpEvent, orders: tuple[float, ...]) -> Vector:
    try:
        return _cached_rdp_of_leaf(leaf, orders)
    except TypeError:  # an event that holds a list has no hash
        return _computed_rdp_of_leaf(leaf, orders)


def _computed_rdp_of_leaf(leaf: DpEvent, orders: tuple[float, ...]) -> Vector:
    if isinstance(leaf, dp.RepeatAndSelectDpEvent):
        return selected_rdp(np.array(orders), rdp_of(leaf.event, orders), leaf.mean, leaf.shape)
    if isinstance(leaf, dp.EpsilonDeltaDpEvent):
        return pure_rdp(leaf.epsilon, np.array(orders))
    rdp = np.empty(len(orders))
    by_us = np.zeros(len(orders), dtype=bool)
    if isinstance(leaf, dp.PoissonSampledDpEvent) and isinstance(leaf.event, dp.GaussianDpEvent):
        rate, noise_multiplier = leaf.sampling_probability, leaf.event.noise_multiplier
        if 0 < rate < 1:
            by_us = np.array(
                [
                    not order.is_integer() and _grid_points(noise_multiplier, order) <= _MOST_GRID_POINTS
                    for order in orders
                ]
            )
        if by_us.any():
            rdp[by_us] = _poisson_gaussian_rdp(rate, noise_multiplier, np.array(orders)[by_us])
    if not by_us.all():
        rdp[~by_us] = _rdp_by_dp_accounting(leaf, np.array(orders)[~by_us])
    if isinstance(leaf, dp.SampledWithoutReplacementDpEvent):
        # The bound is loose for large samples. Given the sample, this is the release within it or nothing, and Renyi
        # divergence is quasi-convex: never more than the release itself.
        rdp = np.minimum(rdp, _rdp_by_dp_accounting(leaf.event, np.array(orders)))
    # RDP never falls as the order grows. Rounding can make it: for tiny rates even negative, which
    # dp-accounting would read as epsilon 0. The running maximum keeps every entry an upper bound.
    finite = np.isfinite(rdp)
    floor = np.maximum.accumulate(np.where(finite, rdp, 0.0))
    rdp = np.where(finite, np.maximum(rdp, np.maximum(floor, 0.0)), math.inf)
    rdp.flags.writeable = False
    return rdp


_cached_rdp_of_leaf = lru_cache(maxsize=256)(_computed_rdp_of_leaf)


def _rdp_by_dp_accounting(leaf: DpEvent, orders: Vector) -> Vector:
    substituted = isinstance(leaf, dp.SampledWithoutReplacementDpEvent)
    relation = dp.NeighboringRelation.REPLACE_ONE if substituted else dp.NeighboringRelation.REPLACE_SPECIAL
    accountant = dp.rdp.RdpAccountant(orders, relation)
    try:
        with _quiet_absl(), np.errstate(all="ignore"):
            accountant.compose(leaf)
    except dp.UnsupportedEventError as err:
        raise ValueError(f"RDP cannot price events of type {type(leaf).__name__}") from err
    rdp: Vector = accountant.rdp
    return rdp


@contextmanager
def _quiet_absl() -> Iterator[None]:
    """Orders whose series does not converge are infinite, hence ignored: no need to warn of each."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# The trapezoid rule converges exponentially for analytic integrands: the error is about
# exp(-2 pi distance / step), where distance is that of the nearest singularity from the real axis.
# Here it is pi sigma^2 (where the likelihood ratio vanishes), and the Gaussian itself asks for
# a step of a fraction of sigma. Both errors are below 1e-16 with these steps.
_TAIL = 13.0  # in standard deviations, beyond 0 on the left and beyond the order on the right


def _step(sigma: float) -> float:
    return min(0.25 * sigma, 0.5 * sigma**2)


def _grid_points(sigma: float, order: float) -> float:
    return (order + 2 * _TAIL * sigma) / _step(sigma) if sigma > 0 else math.inf


def _poisson_gaussian_rdp(rate: float, sigma: float, orders: Vector) -> Vector:
    """Renyi divergence of (1 - q) N(0, s^2) + q N(1, s^2) from N(0, s^2), the worse of both directions.

    log A(a) / (a - 1) with A(a) = E[(1 + u)^a] over x ~ N(0, s^2), u = q (exp((2x - 1) / (2 s^2)) - 1).
    As E[u] = 0 we integrate (1 + u)^a - 1 - a u >= 0 instead, so that nothing cancels when A is near 1.
    """
    step = _step(sigma)
    x = np.arange(-_TAIL * sigma, float(orders.max()) + _TAIL * sigma + step, step)
    log_weight = -0.5 * (x / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(step)
    exponent = (2 * x - 1) / (2 * sigma**2)
    u = rate * np.expm1(np.minimum(exponent, 500.0))
    log_ratio = np.where(exponent < 500.0, np.log1p(u), math.log(rate) + exponent)  # ln(1 + u)

    log_a = np.empty(len(orders))
    for i, a in enumerate(orders):
        power = a * log_ratio
        joint = power + log_weight
        top = float(joint.max())
        log_a[i] = top + math.log(float(np.exp(joint - top).sum()))
        if log_a[i] < 1e-3:
            small = np.abs(u) < 1e-5
            v = np.where(small, u, 0.0)
            series = a * (a - 1) / 2 * v**2 * (1 + (a - 2) / 3 * v * (1 + (a - 3) / 4 * v))
            direct = np.expm1(np.minimum(power, 50.0)) - a * np.expm1(np.minimum(log_ratio, 50.0))
            terms = np.where(small, series, direct) * np.exp(log_weight)
            far = power > 50.0
            terms = np.where(
                far, np.exp(joint) - a * np.exp(np.minimum(log_ratio + log_weight, 700.0)), terms
            )
            log_a[i] = math.log1p(max(0.0, float(terms.sum())))
    # A hair up: the result must stay an upper bound whatever the last digits do.
    rdp: Vector = log_a / (orders - 1) * (1 + 1e-9)
    return rdp
