"""What a run has written down, as numbers that can be drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


def number(value: Any) -> float:
    """A number as JSON has it, where infinity and its like are strings; what is none is not a number.

    >>> number(2), number("inf"), number(None), number("fast"), number(True)
    (2.0, inf, nan, nan, nan)
    """
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True)
class Series:
    """A course over the run: where it is known and finite, and at how many other places it is not."""

    x: list[float]
    y: list[float]
    not_finite: int = 0

    @property
    def moved(self) -> bool:
        """Whether it has a course: a last digit does not make one."""
        return self.moved_by(1e-9)

    def moved_by(self, share: float) -> bool:
        """Whether it went up or down by that share of itself."""
        return bool(self.y) and max(self.y) - min(self.y) > share * max(map(abs, self.y))


@dataclass(frozen=True)
class Account:
    """run.json, history.jsonl and clients.json of one run."""

    summary: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    clients: Mapping[str, Any] = field(default_factory=dict)

    @property
    def federated(self) -> bool:
        return "rounds" in self.summary or "algorithm" in self.summary

    @property
    def along(self) -> str:
        """What the run is counted in."""
        return "round" if self.federated else "epoch"

    @property
    def end(self) -> float:
        """Where the run ends, or was meant to."""
        return number(self.summary.get("rounds" if self.federated else "epochs"))

    @property
    def private(self) -> bool:
        return number(self.summary.get("noise_multiplier")) > 0 and math.isfinite(self.epsilon or 0.0)

    @property
    def finished(self) -> bool:
        return bool(self.summary.get("status") == "complete")

    @property
    def settled(self) -> bool:
        """Whether epsilon is what the run spent; otherwise it is what the last line knew, and it is no less."""
        return self.finished and "epsilon" in self.summary

    @property
    def epsilon(self) -> float | None:
        """What was spent: at the end, or at least."""
        spent = number(self.summary["epsilon"] if self.settled else self._last_priced.get("epsilon"))
        return None if math.isnan(spent) else spent

    @property
    def _last_priced(self) -> Mapping[str, Any]:
        return next((line for line in reversed(self.history) if line.get("epsilon") is not None), {})

    @property
    def priced_at(self) -> str:
        """Which line epsilon is from, if it is from one: "step 1350 of 2000".

        >>> Account({"steps": 40}, [{"step": 10, "epsilon": 0.5}]).priced_at
        'step 10 of 40'
        """
        counted = "round" if self.federated else "step"
        at, of = self._last_priced.get(counted), self.summary.get(f"{counted}s")
        return "" if at is None else f"{counted} {at}" if of is None else f"{counted} {at} of {of}"

    @property
    def diverged(self) -> bool:
        """Whether the training itself came to numbers that are none; a test row can have an infinite loss without."""
        return any(self.series(name).not_finite for name in _OF_TRAINING)

    @property
    def expected_clients(self) -> float | None:
        """How many clients a round draws on average, where each throws a coin of its own."""
        dealt = mapping(self.summary.get("participation"))
        drawn = number(dealt.get("rate")) * number(self.summary.get("n")) / number(dealt.get("groups", 1))
        return drawn if math.isfinite(drawn) else None

    @property
    def noise(self) -> Mapping[str, Any]:
        """How the mechanism is described."""
        return mapping(self.summary.get("noise") or mapping(self.summary.get("method")).get("noise"))

    @cached_property
    def measures(self) -> list[str]:
        """The names of what was measured, on held-out rows or (on request) in training, in order of appearance."""
        names = dict.fromkeys(name for line in self.history for name in line)
        return [name for name in names if _is_measure(name)]

    @property
    def sizes(self) -> Series:
        """How many rows each client has, if that may be said."""
        sizes = [number(size) for size in self.clients.get("sizes") or ()]
        return Series([], [size for size in sizes if math.isfinite(size)])

    def series(self, name: str, over: str | None = None) -> Series:
        """A quantity over the run, or over another one of the same lines."""
        points = [(self.place(line, index, over), number(line[name])) for index, line in self._known(name)]
        finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        return Series([x for x, _ in finite], [y for _, y in finite], len(points) - len(finite))

    def _known(self, name: str) -> list[tuple[int, Mapping[str, Any]]]:
        return [(index, line) for index, line in enumerate(self.history) if line.get(name) is not None]

    def place(self, line: Mapping[str, Any], index: int, over: str | None = None) -> float:
        return number(line.get(over or self.along, line.get("step", index + 1) if over is None else None))


_OF_TRAINING = ("loss", "rate", "threshold", "error", "tolerance", "cloud_norm")
HARDLY = 0.02  # what moved by less than this share of itself is said in words, and has no panel


def _is_measure(name: str) -> bool:
    return name.startswith(("test_", "holdout_")) or name.endswith("accuracy") or name == "loss"
