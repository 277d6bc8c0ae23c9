"""Private selection: a mechanism that gives a candidate and its score is run a random number of times, and only the
best candidate is shown.

Liu and Talwar (2019) stop after each run with one probability; Papernot and Steinke (2022) draw the number of runs K
from a truncated negative binomial or a Poisson distribution, and price the whole by Renyi DP; Koskela, Redberg and Wang
(2024) price it by the privacy profile of one run. Nobody may learn K, and nothing of the other candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sordino.privacy import dp
from sordino.privacy.events import LARGEST_MEAN, check_shape, repeat_and_select

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

GEOMETRIC, LOGARITHMIC, POISSON = 1.0, 0.0, math.inf
_LEAST_RDP = 1e-15  # below, dp-accounting takes the logarithm of nothing


@dataclass(frozen=True)
class Stopping:
    """How the number of runs K of a private selection is drawn.

    Args:
        mean: Of K, at least 1.
        shape: Of a truncated negative binomial distribution: 1 is geometric (Liu and Talwar's way to stop), 0
            logarithmic; infinity is Poisson, for which K may be 0, and then nothing is selected.

    >>> stopping = Stopping(mean=4)
    >>> [round(stopping.probability(k), 6) for k in (1, 2, 3)], stopping.gamma
    ([0.25, 0.1875, 0.140625], 0.25)
    """

    mean: float
    shape: float = GEOMETRIC

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= LARGEST_MEAN:
            raise ValueError(f"the mean number of runs is from 1 to {LARGEST_MEAN:g}, not {self.mean!r}")
        check_shape(self.shape)

    @cached_property
    def gamma(self) -> float:
        """The parameter of the distribution; of a geometric one, the probability that a run is the last."""
        return gamma_of(self.mean, self.shape)

    @property
    def name(self) -> str:
        known = {
            GEOMETRIC: "geometric (Liu and Talwar)",
            LOGARITHMIC: "logarithmic",
            POISSON: "Poisson",
        }
        return known.get(self.shape, f"truncated negative binomial, shape {self.shape:g}")

    def probability(self, runs: int) -> float:
        """That K is ``runs``."""
        if self.shape == POISSON:
            return math.exp(runs * math.log(self.mean) - self.mean - math.lgamma(runs + 1))
        if runs < 1:
            return 0.0
        if self.gamma == 1:
            return float(runs == 1)
        if self.shape == LOGARITHMIC:
            return math.exp(runs * math.log1p(-self.gamma)) / (runs * -math.log(self.gamma))
        ways = math.lgamma(runs + self.shape) - math.lgamma(runs + 1) - math.lgamma(self.shape)
        exponent = -self.shape * math.log(self.gamma)
        whole = exponent + math.log(-math.expm1(-exponent))  # log(gamma^-shape - 1), which may be huge
        return math.exp(runs * math.log1p(-self.gamma) + ways - whole)

    def runs(self, uniform: float) -> int:
        """K, for a number drawn uniformly from [0, 1)."""
        runs, below = 0, self.probability(0)
        most = 1000 * (1 + self.mean)  # beyond, floats cannot tell what is left from nothing
        while uniform >= below and runs < most:
            runs += 1
            below += self.probability(runs)
        return runs

    def select(self, event: DpEvent) -> DpEvent:
        """The event of a selection whose single run, score and all, is ``event``."""
        return repeat_and_select(event, self.mean, self.shape)


def geometric(mean: float) -> Stopping:
    return Stopping(mean, GEOMETRIC)


def logarithmic(mean: float) -> Stopping:
    return Stopping(mean, LOGARITHMIC)


def negative_binomial(mean: float, shape: float) -> Stopping:
    return Stopping(mean, shape)


def poisson(mean: float) -> Stopping:
    return Stopping(mean, POISSON)


def mean_of(gamma: float, shape: float) -> float:
    """The mean of a truncated negative binomial distribution (Papernot and Steinke 2022, definition 1).

    >>> round(mean_of(0.01, 0.0), 10), mean_of(0.01, 1.0)
    (21.4975768542, 100.0)
    """
    if gamma == 1:
        return 1.0
    if shape == GEOMETRIC:
        return 1 / gamma
    if shape == LOGARITHMIC:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))


def gamma_of(mean: float, shape: float) -> float:
    """The inverse of `mean_of`. A hair small, which costs a hair more.

    >>> round(gamma_of(10, 0.0), 10), round(gamma_of(10, 0.5), 10)
    (0.0269182596, 0.0625)
    """
    if shape == POISSON:
        raise ValueError("a Poisson distribution has a mean, and no gamma")
    if mean == 1:
        return 1.0
    if shape == GEOMETRIC:
        return 1 / mean
    low, high = 0.0, 1.0  # the mean falls from infinity to 1
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if mean_of(middle, shape) >= mean else (low, middle)
    return low


# Renyi DP ---------------------------------------------------------------------------------------------------


def selected_rdp(orders: Vector, rdp: Vector, mean: float, shape: float) -> Vector:
    """RDP of the selection from that of one run: Papernot and Steinke (2022), theorem 2, and 6 for Poisson.

    The formulas of dp-accounting, on orders at which we know one run better than it does.
    """
    if shape == POISSON:
        delta_of = dp.rdp.rdp_privacy_accountant.compute_delta
        some = np.maximum(rdp, _LEAST_RDP)
        deltas = np.array([delta_of(orders, some, math.log1p(1 / (order - 1)))[0] for order in orders])
        poisson: Vector = rdp + mean * deltas + math.log(mean) / (orders - 1)
        return poisson
    constant = (1 + shape) * np.min((1 - 1 / orders) * rdp - math.log(gamma_of(mean, shape)) / orders)
    found = rdp + math.log(mean) / (orders - 1) + constant
    # Renyi divergence never falls as the order grows, so what is found for a larger order holds too.
    result: Vector = np.minimum.accumulate(found[::-1])[::-1]
    return result


# Privacy profiles -------------------------------------------------------------------------------------------


def epsilon_by_profile(
    epsilon_of: Callable[[float], float],
    delta_of: Callable[[float], float],
    mean: float,
    shape: float,
    delta: float,
) -> float:
    """Epsilon of the selection at ``delta``, from the privacy profile of one run: ``epsilon_of(delta)`` and
    ``delta_of(epsilon)``, both upper bounds and for both directions.

    The idea is that of Koskela, Redberg and Wang (2024). The winner's density is q(y) phi'(F(y)), with q that of one
    run, F its probability of being no better than y, phi the generating function of K. Where phi'(F) <= e^c phi'(F')
    for all y, the selection is (e1 + c, E[K] delta_of(e1)): the integral of phi'(F) (q - e^e1 q')+ is at most
    phi'(1) = E[K] times that of (q - e^e1 q')+.

    - Poisson: phi'(F) / phi'(F') = exp(m (F - F')), and F - F' is at most the total variation, ``delta_of(0)``.
    - Negative binomial: the ratio is ((g + (1-g) u') / (g + (1-g) u))^(shape+1) with u = 1 - F, u' = 1 - F'. For any
      e2, u' <= min(1, e^e2 u + delta_of(e2)); as a function of u the ratio is monotone up to where that is 1, and
      falls from there on, so it is largest at u = 0 or there. (The paper has e^e2 + (1-g)/g delta_of(e2), which is
      more.)
    """
    first = epsilon_of(delta / mean)
    if shape == POISSON:
        return first + mean * min(1.0, delta_of(0.0))
    return first + (1 + shape) * _largest_log_ratio(delta_of, gamma_of(mean, shape))


def _largest_log_ratio(delta_of: Callable[[float], float], gamma: float) -> float:
    """The least over e2 of a bound that falls with it and one that rises with it: where they meet."""

    def bounds(epsilon: float) -> tuple[float, float]:
        delta = min(1.0, delta_of(epsilon))
        at_nothing = math.log1p((1 - gamma) / gamma * delta)
        where_it_is_one = -math.log(gamma + (1 - gamma) * (1 - delta) * math.exp(-epsilon))
        return at_nothing, where_it_is_one

    low, high = 0.0, 1.0
    best = max(bounds(low))
    while bounds(high)[0] > bounds(high)[1] and high < 1e3:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        falling, rising = bounds(middle)
        best = min(best, max(falling, rising))  # each of them is a bound
        low, high = (middle, high) if falling > rising else (low, middle)
    return best


# Liu and Talwar's own price ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class LiuTalwar:
    """What Liu and Talwar's theorem 3.5 says of their algorithm 2, cut off after ``most`` runs."""

    epsilon: float
    delta: float
    most: float  # runs


def liu_talwar(
    epsilon: float, delta: float, *, gamma: float, cut_off: float, base: float = math.e
) -> LiuTalwar:
    """The price of random stopping where one run is (epsilon, delta)-DP: three times that, and a little.

    With delta 0 it is 3 epsilon. It is there to compare with: `Stopping` is priced by Renyi DP and by profiles, which
    say less for the same algorithm.

    Args:
        epsilon: Of one run.
        delta: Of one run.
        gamma: That a run is the last.
        cut_off: The probability of being cut off (delta_2): after log(1/cut_off) / gamma runs.
        base: Of that logarithm: e, as we read the theorem, or 2, as some code has it.

    >>> found = liu_talwar(1.0, 1e-20, gamma=0.01, cut_off=1e-7)
    >>> round(found.most, 4), float(f"{found.delta:.5e}")
    (1611.8096, 3.27944e-07)
    """
    if not 0 < gamma <= 1 or not 0 < cut_off < 1:
        raise ValueError("gamma lies in (0, 1], and the probability of being cut off in (0, 1)")
    most = math.log(1 / cut_off) / math.log(base) / gamma
    beside = math.sqrt(2 * delta)
    return LiuTalwar(3 * epsilon + 3 * beside, beside * most + cut_off, most)
