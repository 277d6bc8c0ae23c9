"""What a ledger says of a data set, as a bar shows it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Standing:
    """How much of a cap this run took, and how much everything else. Shares of runs add up, epsilons do not."""

    data: str
    file: str  # its name, without where it lies
    runs: int
    unit: str
    spent: float | None  # epsilon of everything together, at delta
    delta: float | None
    cap: float | None = None  # epsilon
    cap_delta: float | None = None
    share: float = 0.0  # of the cap, by everything together
    own_share: float | None = None  # by this run; None if the ledger does not know it
    passed: bool = False
    notes: tuple[str, ...] = ()


def standing_of(path: Path, data: str, unit: str, runs: Collection[str]) -> Standing:
    """Asked of the ledger, which checks its own entries first; raises `ValueError` where they do not hold. ``runs`` are
    the entries of one run: what its preprocessing was paid with is an entry of its own."""
    from sordino.ledger import LedgerFile
    from sordino.ledger.pricing import Spent, curve_from, curve_of, pieces_of

    if not path.is_file():
        raise ValueError(f"there is no ledger {path.name}")
    book = LedgerFile(path)
    (found,) = book.show(data)
    # Of several, on sets that were declared as one, the one that is nearest to its end.
    caps = [each for each in found.caps.values() if each.cap.unit == unit]
    capped = max(caps, key=lambda each: each.share, default=None)
    facts: dict[str, Any] = {}
    if capped is not None:
        alone = Spent()
        ours = [each for each in book.runs(data) if each.run in runs]
        for each in ours:
            alone.add(each.unit, curve_from(curve_of(each.event)), pieces=pieces_of(each.event))
        own = min(capped.share, capped.cap.share_of(alone)) if ours else None
        facts = {
            "cap": capped.cap.epsilon,
            "cap_delta": capped.cap.delta,
            "share": capped.share,
            "own_share": own,
            "passed": capped.passed,
        }
    return Standing(
        data, path.name, found.runs, unit, found.epsilon, found.delta, **facts, notes=tuple(found.notes)
    )
