"""Columns that are sums of few decays: for them noise C^-1 Z needs as many vectors, however long they are.

c_0 = 1, and c_j is the sum of weight_i * rate_i^(j-1) from j = 1 on: as a power series the rational function
c(x) = 1 + sum of weight_i x / (1 - rate_i x). Weights are nowhere negative, so 1 / c(x) is of the same kind, with rates
between those of c and weights below zero (Dvijotham et al., 2024; McMahan et al., 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from sordino.noise.toeplitz import Array

MOST_STEPS = 10**7  # that one column may have: seconds, and 80 MB for each buffer
_ROUNDING = 1e-8  # relative, and more than sums of so many positive numbers are off
_NEARLY = 1.001  # a buffer that makes sums less noisy by less than this is left out


@dataclass(frozen=True)
class Decays:
    """A column that is nowhere negative and never rises; both are checked, since a price follows from them.

    >>> Decays((0.5,), (0.5,)).column(4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """

    weights: tuple[float, ...]  # omega
    rates: tuple[float, ...]  # theta

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.rates):
            raise ValueError("a weight for every rate, and no other")
        if not all(0 <= rate < 1 for rate in self.rates):
            raise ValueError(f"rates are in [0, 1), not {self.rates}")
        if not all(weight >= 0 for weight in self.weights) or math.fsum(self.weights) > 1:
            raise ValueError(f"weights are at least 0 and at most 1 together, not {self.weights}")

    def column(self, steps: int) -> Array:
        """c_0 ... c_(steps - 1)."""
        return _decaying(np.array(self.weights), np.array(self.rates), steps)

    def inverse(self, steps: int) -> Array:
        """The first coefficients of 1 / c(x): how much of Z_t is in the noise of step t + j.

        >>> Decays((0.5,), (0.0,)).inverse(4).round(12).tolist()  # c = 1, 1/2
        [1.0, -0.5, 0.25, -0.125]
        """
        # The noise is a linear system with the matrix diag(rates) - ones weights', similar to this symmetric one.
        roots = np.sqrt(self.weights)
        rates, vectors = np.linalg.eigh(np.diag(self.rates) - np.outer(roots, roots))
        return _decaying(-((vectors.T @ roots) ** 2), rates, steps)

    def sensitivity(self, steps: int, apart: int) -> float:
        """By how much a unit of norm 1 moves C x at most that takes part every ``apart`` steps, or less often.

        >>> round(Decays((0.5,), (0.5,)).sensitivity(4, 2) ** 2, 4)  # 1, 0.5, 1.25, 0.625
        3.2031
        """
        return _sensitivity(self, steps, min(apart, steps))

    def noise_of_sums(self, steps: int) -> float:
        """The root mean square over the steps of the noise of the running sum, where Z has standard deviation 1."""
        sums = np.cumsum(self.inverse(steps))
        return math.sqrt(float(np.arange(steps, 0, -1) @ sums**2) / steps)

    def error(self, steps: int, apart: int) -> float:
        """That noise, where it costs one Gaussian of multiplier 1.

        >>> round(Decays((), ()).error(2000, 2000), 4)  # independent noise
        31.6307
        """
        return self.noise_of_sums(steps) * self.sensitivity(steps, apart)


@lru_cache(maxsize=256)
def best_decays(buffers: int, steps: int, apart: int) -> Decays:
    """Those of at most so many buffers whose `error` is least; one that is worth less than 0.1 % is left out.

    >>> found = best_decays(4, 2000, 2000)
    >>> round(found.error(2000, 2000), 3)  # the best column there is has 3.269
    3.27
    """
    assert buffers >= 1
    assert 1 <= steps <= MOST_STEPS
    from scipy.optimize import minimize  # a slow import

    apart = min(apart, steps)
    found = minimize(
        _logarithm,
        _spread(buffers, steps),
        args=(steps, apart),
        method="L-BFGS-B",
        bounds=[(-25.0, 5.0)] * (2 * buffers),
        options={"maxiter": 500, "maxfun": 20_000, "ftol": 1e-12, "gtol": 1e-8},
    )
    decays = _of_gaps(*_gaps(found.x))
    most = decays.error(steps, apart) * _NEARLY
    while decays.rates:
        fewer = min(_with_one_less(decays), key=lambda each: each.error(steps, apart))
        if fewer.error(steps, apart) > most:
            break
        decays = fewer
    return decays


def _decaying(weights: Array, rates: Array, steps: int) -> Array:
    found = np.zeros(steps)
    found[0] = 1.0
    exponents = np.arange(steps - 1)
    for weight, rate in zip(weights, rates, strict=True):
        found[1:] += weight * rate**exponents
    return found


@lru_cache(maxsize=1024)
def _sensitivity(decays: Decays, steps: int, apart: int) -> float:
    """| sum of the columns at 0, apart, 2 apart, ... |: no pattern has more (docs/proofs.md)."""
    visits = -(-steps // apart)
    column = np.zeros(visits * apart)
    column[:steps] = decays.column(steps)
    moved = column.reshape(visits, apart).cumsum(0).ravel()[:steps]
    return float(np.linalg.norm(moved)) * (1 + _ROUNDING)


def _with_one_less(decays: Decays) -> Iterator[Decays]:
    """Without one of them, or with one and the next in the place of both."""
    pairs = list(zip(decays.weights, decays.rates, strict=True))
    for out in range(len(pairs)):
        yield _of_pairs(pairs[:out] + pairs[out + 1 :])
    for at, ((weight, rate), (more, faster)) in enumerate(pairwise(pairs)):
        total = weight + more
        if total > 0:
            both = (total, (weight * rate + more * faster) / total)
            yield _of_pairs([*pairs[:at], both, *pairs[at + 2 :]])


def _of_pairs(pairs: list[tuple[float, float]]) -> Decays:
    return Decays(tuple(weight for weight, _ in pairs), tuple(rate for _, rate in pairs))


# The search: over the rates of c and of 1 / c at once, for which all there is to add up has a closed form -------------


def _spread(buffers: int, steps: int) -> Array:
    """Where the search begins: from decays as long as the run to decays at once, each as much faster than the last."""
    gaps = np.exp(np.linspace(math.log(0.5 / steps), math.log(0.8), 2 * buffers))
    widths = np.diff(np.concatenate([[0.0], gaps, [1.0]]))
    found: Array = np.log(widths[:-1] / widths[-1])
    return found


def _gaps(point: Array) -> tuple[Array, Array]:
    """1 - rate of c and of 1 / c: numbers in (0, 1) that rise and take turns, so that every weight is above 0.

    They add up to weights of less than 1: c_1 is the sum of the differences, and those do not overlap.
    """
    widths = np.exp(np.append(point, 0.0))
    gaps = np.cumsum(widths / widths.sum())[:-1]
    return gaps[0::2], gaps[1::2]


def _residues(gaps: Array, others: Array) -> Array:
    """The weights of the product of (1 - (1 - other) x) / (1 - (1 - gap) x), up to their sign."""
    above, below = others - gaps[:, None], gaps - gaps[:, None]
    np.fill_diagonal(below, 1.0)
    found: Array = np.abs(np.prod(above / below, axis=1))
    return found


def _of_gaps(gaps: Array, others: Array) -> Decays:
    return Decays(tuple(_residues(gaps, others).tolist()), tuple((1 - gaps).tolist()))


def _logarithm(point: Array, steps: int, apart: int) -> float:
    """The logarithm of the error."""
    gaps, others = _gaps(point)
    with np.errstate(divide="ignore"):  # a rate of 0
        squares = _squares_of_sums(gaps, others, steps) * _squares_moved(gaps, others, steps, apart)
    return math.log(squares) / 2


def _squares_of_sums(gaps: Array, others: Array, steps: int) -> float:
    # w_t = 1 / c(1) + sum of share_i (1 - other_i)^t, all above 0; in n - t of the running sums.
    shares = np.append(_residues(others, gaps) / others, np.prod(gaps / others))
    both = _products(np.append(others, 0.0))
    both[-1, -1] = 1.0
    counted = (steps - (1 - both) * _series(both, steps)) / both
    counted[-1, -1] = steps * (steps + 1) / 2
    return float(shares @ counted @ shares) / steps


def _squares_moved(gaps: Array, others: Array, steps: int, apart: int) -> float:
    visits = -(-steps // apart)
    # After visit q the decays of all earlier ones have added up; each then falls by itself until the next.
    added = _series(-np.expm1(apart * np.log1p(-gaps)), np.arange(1.0, visits + 1)[:, None])
    heights = _residues(gaps, others) * added
    both, last = _products(gaps), heights[-1]
    at_visits = 1 + (heights[:-1] * np.exp((apart - 1) * np.log1p(-gaps))).sum(1)
    between = np.einsum("qi,ij,qj", heights[:-1], _series(both, apart - 1), heights[:-1])
    rest = last @ _series(both, steps - (visits - 1) * apart - 1) @ last
    return 1 + float(at_visits @ at_visits) + float(between) + float(rest)


def _products(gaps: Array) -> Array:
    """1 - (1 - a)(1 - b) of every pair."""
    found: Array = gaps[:, None] + gaps - np.outer(gaps, gaps)
    return found


def _series(gaps: Array, terms: int | Array) -> Array:
    """The sum of (1 - gap)^t over so many t."""
    found: Array = -np.expm1(terms * np.log1p(-gaps)) / gaps
    return found
