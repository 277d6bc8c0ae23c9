"""Privacy loss distributions (PLD) of Gaussian and Poisson sampled Gaussian compositions.

Built, composed and read by dp-accounting, always with its pessimistic "connect the dots" discretisation
(Doroshenko et al. 2022): whatever the grid, the epsilon is an upper bound. Ours are the choice of the grid,
so that small noise cannot exhaust time or memory, and a cache of the single-step distributions.
A composition of plain Gaussians is one Gaussian, whose epsilon is exact in closed form (Balle and Wang 2018).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from sordino.privacy import dp
from sordino.privacy.events import compose, known_delta, known_epsilon, leaves, parted, repeat
from sordino.privacy.renyi import epsilon_from_rdp, rdp_beside_delta
from sordino.privacy.selection import epsilon_by_profile

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

INTERVAL = 1e-4  # dp-accounting's own default, so that anyone can check our epsilons with it
COARSER = 10.0  # factor on the interval where an upper bound in about 30 ms beats four exact digits
SMALLEST_DELTA = 1e-12  # below, rounding errors of the Fourier transforms (1e-16 a cell) begin to count

_MOST_STEP_POINTS = 120_000
_MOST_COMPOSED_POINTS = 1_000_000


def is_poisson_gaussian(leaf: DpEvent) -> bool:
    """Whether `leaf` is one Gaussian release on a Poisson sample."""
    return isinstance(leaf, dp.PoissonSampledDpEvent) and isinstance(leaf.event, dp.GaussianDpEvent)


def pld_supports(event: DpEvent) -> bool:
    """Whether `pld_epsilon` can price every part of `event`. A selection has to stand alone."""
    selection = as_selection(event)
    if selection is not None:
        event = selection.event
    return all(
        isinstance(leaf, dp.GaussianDpEvent | dp.NonPrivateDpEvent | dp.EpsilonDeltaDpEvent)
        or is_poisson_gaussian(leaf)
        for leaf, _ in leaves(event)
    )


def as_selection(event: DpEvent) -> DpEvent | None:
    """`event` as the one private selection that it is, or None."""
    parts = leaves(event)
    alone = len(parts) == 1 and parts[0][1] == 1 and isinstance(parts[0][0], dp.RepeatAndSelectDpEvent)
    return parts[0][0] if alone else None


def squared_mu(event: DpEvent) -> float | None:
    """mu^2 of Gaussian DP, the sum of 1/z^2, if `event` is made of plain Gaussians only; else None."""
    parts = leaves(event)
    if not all(isinstance(leaf, dp.GaussianDpEvent) for leaf, _ in parts):
        return None
    if any(leaf.noise_multiplier == 0 for leaf, _ in parts):
        return None
    return math.fsum(count / leaf.noise_multiplier**2 for leaf, count in parts)


def pld_epsilon(event: DpEvent, delta: float, coarser: float = 1.0) -> float:
    """Epsilon of `event` at `delta` under the zero-out relation, from its privacy loss distribution."""
    if not pld_supports(event):
        raise ValueError(
            "PLD prices Gaussian releases, plain or Poisson sampled, and what is known by its epsilon and delta: use "
            "accountant='rdp'"
        )
    if delta < SMALLEST_DELTA:
        raise ValueError(f"PLD is not exact enough for delta below {SMALLEST_DELTA}: use accountant='rdp'")
    selection = as_selection(event)
    if selection is not None:
        run = selection.event
        return epsilon_by_profile(
            lambda at: pld_epsilon(run, at, coarser),
            lambda at: pld_delta(run, at, coarser),
            selection.mean,
            selection.shape,
            delta,
        )
    parts = leaves(event)
    if any(_noise(leaf) == 0 for leaf, _ in parts):
        return math.inf
    exact = squared_mu(event)
    if exact is not None:
        return _gaussian_epsilon(exact, delta)

    return min(_epsilon_on_a_grid(tuple(parts), delta, coarser), _epsilon_by_adding(event, delta, coarser))


def _epsilon_by_adding(event: DpEvent, delta: float, coarser: float) -> float:
    """What the rest costs at the delta that is left, and the epsilons of the `approximate` parts on top: a proof too,
    and the smaller one where the grid is wide."""
    rest, pieces = parted(event)
    left = delta - known_delta(pieces)
    if not pieces or left < 0 or (leaves(rest) and left < SMALLEST_DELTA):
        return math.inf
    return known_epsilon(pieces) + (pld_epsilon(rest, left, coarser) if leaves(rest) else 0.0)


def pld_delta(event: DpEvent, epsilon: float, coarser: float = 1.0) -> float:
    """Delta of `event` at `epsilon`, the same way; of a selection there is none."""
    if not pld_supports(event) or as_selection(event) is not None:
        raise ValueError("PLD gives the profile of Gaussian releases, plain or Poisson sampled")
    parts = leaves(event)
    if any(_noise(leaf) == 0 for leaf, _ in parts):
        return 1.0
    exact = squared_mu(event)
    if exact is not None:
        return _gaussian_delta(exact, epsilon)
    return min(1.0, float(_on_a_grid(tuple(parts), coarser).get_delta_for_epsilon(epsilon)))


@lru_cache(maxsize=64)
def _epsilon_on_a_grid(parts: tuple[tuple[DpEvent, int], ...], delta: float, coarser: float) -> float:
    return float(_on_a_grid(parts, coarser).get_epsilon_for_delta(delta))


@lru_cache(maxsize=4)  # they are large, and asked at several deltas
def _on_a_grid(parts: tuple[tuple[DpEvent, int], ...], coarser: float) -> PrivacyLossDistribution:
    interval = coarser * _interval(compose([repeat(leaf, count) for leaf, count in parts]))
    sampled = [(leaf, count) for leaf, count in parts if is_poisson_gaussian(leaf)]
    pieces = [(leaf, count) for leaf, count in parts if isinstance(leaf, dp.EpsilonDeltaDpEvent)]
    plain = math.fsum(
        count / leaf.noise_multiplier**2 for leaf, count in parts if isinstance(leaf, dp.GaussianDpEvent)
    )
    total: PrivacyLossDistribution | None = None
    for leaf, count in [*sampled, *pieces]:
        part = _of_a_part(leaf, interval)
        part = part.self_compose(count) if count > 1 else part
        total = part if total is None else total.compose(part)
    assert total is not None
    if plain > 0:
        total = total.compose(_of_one_step(1 / math.sqrt(plain), 1.0, interval))
    return total


def _of_a_part(leaf: DpEvent, interval: float) -> PrivacyLossDistribution:
    if isinstance(leaf, dp.EpsilonDeltaDpEvent):
        # Randomised response that gives everything away with probability delta: the worst there is, in both directions.
        known = dp.pld.common.DifferentialPrivacyParameters(leaf.epsilon, leaf.delta)
        return dp.pld.privacy_loss_distribution.from_privacy_parameters(known, interval)
    return _of_one_step(leaf.event.noise_multiplier, leaf.sampling_probability, interval)


def _noise(leaf: DpEvent) -> float:
    if isinstance(leaf, dp.EpsilonDeltaDpEvent):
        return math.inf
    if isinstance(leaf, dp.NonPrivateDpEvent):
        return 0.0
    return float(leaf.event.noise_multiplier if is_poisson_gaussian(leaf) else leaf.noise_multiplier)


def _gaussian_epsilon(mu_squared: float, delta: float) -> float:
    if mu_squared == 0:
        return 0.0
    # The root finder stops within 1e-12 (absolute) or a few ulps: stay on the safe side of both.
    return float(dp.get_epsilon_gaussian(1 / math.sqrt(mu_squared), delta)) * (1 + 1e-12) + 1e-12


def _gaussian_delta(mu_squared: float, epsilon: float) -> float:
    """Balle and Wang (2018), a hair up."""
    if mu_squared == 0:
        return 0.0
    from scipy.special import log_ndtr  # a slow import

    mu = math.sqrt(mu_squared)
    one = float(log_ndtr(mu / 2 - epsilon / mu))
    other = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # The difference of two numbers that may be close: what rounding can take from it is added.
    return min(1.0, math.exp(one) * (-math.expm1(min(0.0, other - one)) + 1e-14 * (1 + abs(one) + epsilon)))


def _interval(event: DpEvent) -> float:
    """`INTERVAL`, or wider where one step or the whole composition would take too many grid points."""
    widest_step = 0.0
    for leaf, _ in leaves(event):
        if is_poisson_gaussian(leaf):
            sigma, rate = _noise(leaf), leaf.sampling_probability
            # Largest loss of one step: at 1 + 9.8 sigma, beyond which the mass is below exp(-50).
            exponent = (1 + 19.6 * sigma) / (2 * sigma**2)
            largest = math.log1p(rate * math.expm1(exponent)) if exponent < 500 else math.log(rate) + exponent
            widest_step = max(widest_step, largest)
    whole = epsilon_from_rdp(
        rdp_beside_delta(event)[0], 1e-15, "improved"
    )  # about the largest loss that is kept
    wanted = max(INTERVAL, widest_step / _MOST_STEP_POINTS, whole / _MOST_COMPOSED_POINTS)
    # Two significant digits, upwards: nearby plans then share their grid and the cached single steps.
    scale = 10.0 ** (math.floor(math.log10(wanted)) - 1)
    return INTERVAL if wanted == INTERVAL else math.ceil(wanted / scale) * scale


@lru_cache(maxsize=16)
def _of_one_step(noise_multiplier: float, sampling_rate: float, interval: float) -> PrivacyLossDistribution:
    return dp.pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=interval,
        neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL,
    )
