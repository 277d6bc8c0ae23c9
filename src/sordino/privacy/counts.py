"""Counts with noise that is exact: OpenDP's discrete Laplace, asked what it promises before it is given anything.

The noise comes from the operating system, never from a seed of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any

from sordino.privacy.budget import check_delta, check_epsilon

_HAIR = 1e-12  # more noise, so that its price is not above epsilon by a last digit


@lru_cache(maxsize=1)
def _opendp() -> Any:
    try:
        import opendp.prelude as found  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise ValueError(
            "private counts need OpenDP, which is not installed: install sordino with its extra, sordino[bounds]"
        ) from None
    found.enable_features("contrib")
    return found


def check_installed() -> None:
    """Refuse, in one line, where OpenDP is missing: before anything is paid for."""
    _opendp()


def noisy_counts(counts: Sequence[int], sensitivity: int, epsilon: float) -> list[int]:
    """Whole numbers with discrete Laplace noise of scale ``sensitivity / epsilon``.

    Guarantee: epsilon-DP, if a unit moves all of ``counts`` together by at most ``sensitivity`` (the sum of absolute
    differences). OpenDP's own privacy map has to say so, else nothing is released.
    """
    scale = _scale(sensitivity, epsilon)
    o = _opendp()
    mechanism = o.m.make_laplace(o.vector_domain(o.atom_domain(T="i64")), o.l1_distance(T="i64"), scale=scale)
    _check(float(mechanism.map(sensitivity)), epsilon)
    released: list[int] = mechanism([int(each) for each in counts])
    return released


def noisy_values(counts: Mapping[str, int], sensitivity: int, epsilon: float, delta: float) -> dict[str, int]:
    """Those keys whose noisy count is above a threshold, with it. The threshold depends on the three numbers alone.

    Guarantee: (epsilon, delta)-DP, if a unit adds at most ``sensitivity`` to all of ``counts`` together, in whichever
    keys, of which some may be its alone. OpenDP's own privacy map has to say so too, else nothing is released.
    """
    check_delta(delta)
    mechanism = _thresholded(sensitivity, epsilon, threshold_for(sensitivity, epsilon, delta))
    promised, beyond = mechanism.map((sensitivity,) * 3)
    _check(float(promised), epsilon)
    if not float(beyond) <= delta:
        raise ValueError(f"OpenDP promises delta {beyond!r} and not {delta!r}: nothing was released")
    released = mechanism({_coded(key): int(each) for key, each in counts.items()})
    return dict(sorted((_decoded(key), each) for key, each in released.items()))


def _coded(key: str) -> str:
    """A key that is no other one's to OpenDP, which ends a text at its first zero byte: as it is, one row with such a
    byte in its cell would take the place of all rows that have what stands before it."""
    return key.encode("utf-8", "surrogatepass").hex()


def _decoded(coded: str) -> str:
    return bytes.fromhex(coded).decode("utf-8", "surrogatepass")


def threshold_for(sensitivity: int, epsilon: float, delta: float) -> int:
    """The smallest threshold with which keys that are one unit's own stay hidden but for ``delta``.

    By our own arithmetic. OpenDP (0.16) shows what is equal to the threshold, and its privacy map prices what is above
    it: for noise of scale 2, threshold 6 and a count of 1 it says 0.031, and it is 0.051.
    """
    scale = _scale(sensitivity, epsilon)
    about = sensitivity + scale * math.log(sensitivity / (delta * (1 + math.exp(-1 / scale))))
    least = max(sensitivity + 1, math.floor(about) - 1)
    return next(each for each in count(least) if _shown(sensitivity, epsilon, each) <= delta)


def _shown(sensitivity: int, epsilon: float, threshold: int) -> float:
    """The most likely that any key that a unit alone has is shown. It has at most ``sensitivity`` of them, and to none
    of them adds more than that; discrete Laplace noise is at least k with probability e^(-k / scale) / (1 + e^(-1 /
    scale))."""
    scale = _scale(sensitivity, epsilon)
    return sensitivity * math.exp(-(threshold - sensitivity) / scale) / (1 + math.exp(-1 / scale))


def standard_error(sensitivity: int, epsilon: float) -> float:
    """Of the noise on one count.

    >>> round(standard_error(1, 1.0), 3)
    1.357
    """
    step = epsilon / sensitivity
    return math.sqrt(2 * math.exp(-step)) / -math.expm1(-step)


def _thresholded(sensitivity: int, epsilon: float, threshold: int) -> Any:
    o = _opendp()
    return o.m.make_laplace_threshold(
        o.map_domain(o.atom_domain(T=str), o.atom_domain(T="i64")),
        o.l01inf_distance(o.absolute_distance(T="i64")),
        scale=_scale(sensitivity, epsilon),
        threshold=threshold,
    )


def _scale(sensitivity: int, epsilon: float) -> float:
    if not (type(sensitivity) is int and sensitivity >= 1):
        raise ValueError(f"how much a unit adds to counts is a whole number from 1, not {sensitivity!r}")
    return sensitivity / check_epsilon(epsilon) * (1 + _HAIR)


def _check(promised: float, epsilon: float) -> None:
    if not promised <= epsilon:
        raise ValueError(f"OpenDP promises epsilon {promised!r} and not {epsilon!r}: nothing was released")
