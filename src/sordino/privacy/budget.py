"""What a user allows to be spent: epsilon and delta, neither with a default."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.registry import is_number, said


def check_epsilon(epsilon: float) -> float:
    """`epsilon` as a float, or a `ValueError` that says what to give instead."""
    if not (is_number(epsilon) and math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon must be a finite number above 0, not {said(epsilon)}: give for example 3")
    return float(epsilon)


def check_delta(delta: float) -> float:
    """`delta` as a float, or a `ValueError` that says what to give instead."""
    if not (is_number(delta) and 0 < delta < 1):
        raise ValueError(
            f"delta must lie strictly between 0 and 1, not {said(delta)}: give less than 1/n, for example 1e-5"
        )
    return float(delta)


@dataclass(frozen=True)
class Budget:
    """The (epsilon, delta) a run may spend, per unit, under the zero-out relation.

    There are no defaults: whoever trains on private data decides both.

    Args:
        epsilon: How much likelier any outcome may become through one unit, as a power of e. Above 0.
        delta: The probability with which that may fail. Above 0, and to mean anything below 1/n.

    >>> Budget(epsilon=3, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05)
    >>> Budget(epsilon=0, delta=1e-5)
    Traceback (most recent call last):
        ...
    ValueError: epsilon must be a finite number above 0, not 0: give for example 3
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))


def budget_of(given: Budget | tuple[float, float] | None) -> Budget | None:
    """A budget, also from a pair of numbers.

    >>> budget_of((3, 1e-5))
    Budget(epsilon=3.0, delta=1e-05)
    """
    if given is None or isinstance(given, Budget):
        return given
    numbers = isinstance(given, tuple | list) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in given
    )
    if not numbers or len(given) != 2:
        raise ValueError(f"a budget has an epsilon and a delta, as in Budget(3, 1e-5), and not {given!r}")
    return Budget(*given)
