"""Factors of running sums: columns c for which noise C^-1 Z, C lower-triangular Toeplitz, makes the sums least noisy.

Running sums of C^-1 Z have the noise A C^-1 Z, A all ones below the diagonal: its coefficients are those of the power
series w(x) = 1 / ((1 - x) c(x)). Who takes part once moves C x by |c|. So what counts is the root of the mean square of
the noise of running sums, times |c| (Choquette-Choo et al., 2023).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_DIVERGED = 1e100


def square_root(bands: int) -> Array:
    """The first coefficients of (1 - x)^(-1/2), whose square is a running sum: binom(2j, j) / 4^j.

    >>> square_root(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    j = np.arange(1, bands)
    return np.cumprod(np.concatenate([[1.0], (2 * j - 1) / (2 * j)]))


def inverse(column: Array, steps: int) -> Array:
    """The first coefficients of 1 / c(x): how much of Z_t is in the noise of step t + j.

    >>> inverse(np.array([1.0, 0.5]), 4).tolist()
    [1.0, -0.5, 0.25, -0.125]
    """
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    return _divided(impulse, column)


def error(column: Array, steps: int) -> float:
    """The root mean square over ``steps`` steps of the noise of the running sum, times |c|: at a multiplier of 1, for
    who takes part once.

    >>> round(error(np.ones(1), 2000), 4), round(error(square_root(2000), 2000), 4)
    (31.6307, 3.323)
    """
    sums, counts, settled = _sums(column, steps)
    squares = float(counts @ sums**2) + settled / float(column.sum()) ** 2
    return math.sqrt(squares / steps) * float(np.linalg.norm(column))


@lru_cache(maxsize=256)
def best_column(bands: int, steps: int) -> Array:
    """The column of so many bands, norm 1 and nowhere negative, whose `error` is least; found from `square_root`.

    >>> round(error(best_column(200, 2000), 2000) * 10**0.5, 4)  # ten participations
    12.2666
    """
    assert bands >= 1
    assert steps >= 1
    start = square_root(bands)
    if bands > 1:
        from scipy.optimize import minimize  # a slow import

        found = minimize(
            _logarithm,
            start[1:],
            args=(steps,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (bands - 1),
            options={"maxiter": 500, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 20},
        )
        start = min((start, np.concatenate([[1.0], found.x])), key=lambda column: error(column, steps))
    # A hair below 1: rounding must not make a unit move more than is paid for.
    column: Array = start / float(np.linalg.norm(start)) * (1 - 1e-12)
    column.flags.writeable = False
    return column


def _logarithm(below: Array, steps: int) -> tuple[float, Array]:
    """Twice the logarithm of the error but for a constant, and its gradient, by the coefficients after c_0 = 1."""
    column = np.concatenate([[1.0], below])
    sums, counts, settled = _sums(column, steps)
    if not np.abs(sums).max() < _DIVERGED:
        return 2 * math.log(_DIVERGED), np.zeros(len(below))  # for the line search: too far
    weighted, rest = counts * sums, float(column.sum())
    squares, norm = float(weighted @ sums) + settled / rest**2, float(column @ column)
    # d w / d c_j = -x^j w(x) / c(x): a correlation with w / c.
    twice = _divided(sums, column)
    size = 1 << (2 * len(sums) - 1).bit_length()
    correlated = np.fft.irfft(np.fft.rfft(weighted, size) * np.fft.rfft(twice, size).conj(), size)
    moved = np.full(len(column), settled / rest**3)
    known = min(len(column), len(sums))
    moved[:known] += correlated[:known]
    return math.log(squares) + math.log(norm), (2 * column / norm - 2 * moved / squares)[1:]


def _sums(column: Array, steps: int) -> tuple[Array, Array, float]:
    """The coefficients w_t until they have settled at 1 / c(1), in how many running sums each of them is, and in how
    many all those that follow are, together."""
    first = min(steps, 16 * len(column) + 256)
    return (
        _divided(np.ones(first), column),
        np.arange(steps, steps - first, -1, dtype=np.float64),
        (steps - first) * (steps - first + 1) / 2,
    )


def _divided(series: Array, column: Array) -> Array:
    from scipy.signal import lfilter  # a slow import

    found: Array = lfilter([1.0], column, series)
    return found
