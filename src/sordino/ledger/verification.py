"""Whether a ledger is what was written: chain, head, key, and that its entries make sense."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.ledger.account import before_of, beyond, costs_less, is_preparation, planned, spent_so_far
from sordino.ledger.chain import Entry, LedgerError
from sordino.ledger.file import Entries
from sordino.ledger.pricing import ORDERS_DIGEST, curve_from, curve_of, pieces_to_json
from sordino.privacy.events import event_from_json, event_to_json
from sordino.privacy.renyi import Vector
from sordino.privacy.sealing import canonical

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_SAME = 1e-6  # relative: libraries that price events may differ in their last digits from version to version


def check(entries: Entries, name: str) -> None:
    """Raise `LedgerError` if anything is wrong."""
    entries.check_links()
    complaint = _Meaning(entries).complaint()
    if complaint is not None:
        raise LedgerError(f"{name} is not what was written: {complaint}")


class _Meaning:
    """What a chain that holds together may still have wrong, if whoever wrote it was not Sordino."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._priced: dict[str, Vector] = {}
        self._same: set[tuple[bytes, str]] = set()

    def complaint(self) -> str | None:
        payments: dict[str, list[Entry]] = {}
        for entry in self._entries.all():
            if (entry.kind == "begun") != (entry.number == 1):
                return f"entry {entry.number} begins a ledger" if entry.number > 1 else "it does not begin"
            if (
                entry.number == 1
                and entry.body["key_sha256"] != hashlib.sha256(self._entries.key()).hexdigest()
            ):
                return "its key, under which rows are known again, is another one"
            if entry.run is not None:
                payments.setdefault(entry.run, []).append(entry)
            before = before_of(entry) if entry.kind == "reserve" else None
            if before is not None and not is_preparation(payments.get(before, []), entry.data):
                return f"entry {entry.number} names something before it that was not paid"
            if "event" in entry.body and _has_other_pieces(entry):
                return f"entry {entry.number} has not the pieces of its events"
            if entry.price is not None and self._has_another_price(entry):
                return f"entry {entry.number} has not the price of its events"
        for run, found in payments.items():
            wrong = self._wrong_run(found)
            if wrong is not None:
                return f"run {run} {wrong}"
        return None

    def _has_another_price(self, entry: Entry) -> bool:
        stated = self._entries.curve(entry.price or b"")
        if entry.body.get("orders", ORDERS_DIGEST) != ORDERS_DIGEST:
            return False  # which we do not use, but price its events again
        event = canonical(entry.body["event"])
        if (stated, event) not in self._same:
            priced = self._price(event_from_json(entry.body["event"]), event)
            if not np.allclose(curve_from(stated), priced, rtol=_SAME, atol=1e-12):
                return True
            self._same.add((stated, event))
        return False

    def _price(self, event: DpEvent, as_json: str) -> Vector:
        if as_json not in self._priced:
            self._priced[as_json] = curve_from(curve_of(event))
        return self._priced[as_json]

    def _wrong_run(self, found: list[Entry]) -> str | None:
        kinds = [entry.kind for entry in found if entry.kind != "seen"]
        if not kinds or kinds[0] != "reserve" or kinds.count("reserve") > 1:
            return "was not reserved once, and first"
        if "close" in kinds[:-1]:
            return "went on after it was closed"
        if len({entry.data for entry in found}) > 1:
            return "is counted under several names"
        spent = spent_so_far(found).event
        if beyond(planned(found), spent):
            return "has spent more than it had reserved"
        closed: Any = next((entry.body["event"] for entry in found if entry.kind == "close"), None)
        if closed is None or closed == event_to_json(spent) or found[0].body["kind"] == "selection":
            return None
        total = event_from_json(closed)
        if costs_less(total, self._price(total, canonical(closed)), spent):
            return "was closed with less than it had spent"
        return None


def _has_other_pieces(entry: Entry) -> bool:
    """Only where an event or the entry speaks of any: reading every event would take long."""
    # Written in its one form: in a text that somebody else wrote, the same word may stand in escapes.
    speaks = "pieces" in entry.body or '"approximate"' in canonical(entry.body["event"])
    stated = {"pieces": entry.body["pieces"]} if "pieces" in entry.body else {}
    return speaks and pieces_to_json(event_from_json(entry.body["event"])) != stated
