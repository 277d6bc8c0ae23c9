"""What is chosen when the user chooses nothing: from the number of units alone, which is public."""

from __future__ import annotations

import math


def default_batch_size(units: int) -> int:
    """8 sqrt(n).

    >>> [default_batch_size(n) for n in (5, 1437, 32561, 60000)]
    [5, 303, 1444, 1960]
    """
    return max(1, min(units, round(8 * math.sqrt(units))))


def default_epochs(units: int) -> float:
    """About 1,200,000 gradients, in at least 10 and at most 40 passes.

    >>> [round(default_epochs(n), 1) for n in (1437, 32561, 60000, 1_000_000)]
    [40.0, 36.9, 20.0, 10.0]
    """
    return min(40.0, max(10.0, 1_200_000 / units))
