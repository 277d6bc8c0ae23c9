"""What was released before a run, or is released beside its training, under the same budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sordino.privacy import event_from_json, event_to_json

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Before:
    """A release that the training was prepared with, such as private bounds: its price is part of the run's.

    Guarantee: it counts in the noise of the run, in every epsilon that it shows, and in its certificate.

    Args:
        event: What was released, as ``approximate(epsilon, delta)`` of `sordino.privacy`.
        words: What it was, in a sentence for the certificate.
        run: Under which it was paid in the ledger, if the run is counted in one: see `LedgerFile.pay`.

    >>> from sordino.privacy import approximate
    >>> before = Before(approximate(0.5), "bounds of two columns, from noisy counts")
    >>> Before.from_json(before.to_json()) == before
    True
    """

    event: DpEvent
    words: str
    run: str | None = None

    def __post_init__(self) -> None:
        event_to_json(self.event)  # or refuse: a certificate has to state it
        if not (isinstance(self.words, str) and self.words.strip()):
            raise ValueError("say in words what was released before the run, for its certificate")

    def to_json(self) -> dict[str, Any]:
        return {"event": event_to_json(self.event), "words": self.words, "run": self.run}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Before:
        try:
            return Before(event_from_json(said["event"]), said["words"], said["run"])
        except (KeyError, TypeError):
            raise ValueError("what it says was released before the run is incomplete") from None
