"""Whether a ledger is what was written: chain, head, key, and that its entries make sense."""

from __future__ import annotations

import hashlib

import numpy as np

from sordino.ledger.account import beyond, planned, spent_so_far
from sordino.ledger.chain import Entry, HeadFile, broken_link, canonical
from sordino.ledger.file import Entries, LedgerError
from sordino.ledger.pricing import ORDERS_DIGEST, curve_from, curve_of
from sordino.privacy.events import event_from_json

_SAME = 1e-6  # relative: libraries that price events may differ in their last digits from version to version


def check(entries: Entries, head_file: HeadFile, name: str) -> None:
    """Raise `LedgerError` if anything is wrong."""
    complaint = broken_link(entries.all()) or head_file.complaint(entries.head()) or _wrong_meaning(entries)
    if complaint is not None:
        raise LedgerError(f"{name} is not what was written: {complaint}")


def _wrong_meaning(entries: Entries) -> str | None:
    """What a chain that holds together may still have wrong, if whoever wrote it was not Sordino."""
    runs: dict[str, list[Entry]] = {}
    priced: dict[str, bytes] = {}
    for entry in entries.all():
        if (entry.kind == "begun") != (entry.number == 1):
            return f"entry {entry.number} begins a ledger" if entry.number > 1 else "it does not begin"
        if entry.number == 1 and entry.body["key"] != hashlib.sha256(entries.key()).hexdigest():
            return "its key, under which rows are known again, is another one"
        if entry.run is not None:
            runs.setdefault(entry.run, []).append(entry)
        if entry.curve is not None and entry.body.get("orders", ORDERS_DIGEST) == ORDERS_DIGEST:
            event = canonical(entry.body["event"])
            if event not in priced:
                priced[event] = curve_of(event_from_json(entry.body["event"]))
            if not np.allclose(curve_from(entry.curve), curve_from(priced[event]), rtol=_SAME, atol=1e-12):
                return f"entry {entry.number} has not the price of its events"
    for run, found in runs.items():
        wrong = _wrong_run(found)
        if wrong is not None:
            return f"run {run} {wrong}"
    return None


def _wrong_run(found: list[Entry]) -> str | None:
    kinds = [entry.kind for entry in found if entry.kind != "seen"]
    if kinds[0] != "reserve" or kinds.count("reserve") > 1:
        return "was not reserved once, and first"
    if "close" in kinds[:-1]:
        return "went on after it was closed"
    if len({entry.data for entry in found}) > 1:
        return "is counted under several names"
    if beyond(planned(found), spent_so_far(found).event):
        return "has spent more than it had reserved"
    return None
