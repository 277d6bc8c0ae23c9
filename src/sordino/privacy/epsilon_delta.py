"""An event that dp-accounting has not: something of which only (epsilon, delta) is known.

In a file of its own, which `sordino.privacy.dp` loads when it is first asked for: its base class is slow to import.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import DpEvent


@dataclass(frozen=True)
class EpsilonDeltaDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """A release that is (epsilon, delta)-DP under the zero-out relation, whatever else it may be."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0 and 0 <= self.delta < 1):
            raise ValueError(
                f"an approximate event has a finite epsilon above 0 and a delta of 0 or more and below 1, not "
                f"{self.epsilon} and {self.delta}"
            )
