"""What is chosen when the user chooses nothing: from the number of units alone, which is public."""

from __future__ import annotations

import math


def default_batch_size(units: int) -> int:
    """4 sqrt(n).

    >>> [default_batch_size(n) for n in (5, 1437, 32561, 60000)]
    [5, 152, 722, 980]
    """
    return max(1, min(units, round(4 * math.sqrt(units))))


def default_epochs(units: int) -> float:
    """About 600,000 gradients, in at least 10 and at most 40 passes.

    >>> [round(default_epochs(n), 1) for n in (1437, 32561, 60000, 1_000_000)]
    [40.0, 18.4, 10.0, 10.0]
    """
    return min(40.0, max(10.0, 600_000 / units))
