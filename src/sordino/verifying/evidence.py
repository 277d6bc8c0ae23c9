"""What lies beside a certificate: the model's file, and the ledger that counted the run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.ledger import LedgerError, LedgerFile
from sordino.ledger.account import beyond
from sordino.ledger.statement import RunRecord
from sordino.privacy.events import compose, event_from_json, leaves
from sordino.privacy.wording import SEED_WARNING

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_BLOCK = 1 << 20


def sha256_of(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def wrong_model(stated: Mapping[str, Any], path: Path) -> str | None:
    """What is wrong with the file of the model; None if it is the one that the certificate is about."""
    try:
        found = sha256_of(path)
    except OSError as error:
        return f"its model {path} cannot be read: {error.strerror}"
    if found != stated["sha256"]:
        return f"{path} is not the model that it is about: its SHA-256 is {found}, not {stated['sha256']}"
    return None


def wrong_ledger(document: Mapping[str, Any], ledger: LedgerFile) -> str | None:
    """What is wrong with a ledger, or with what it says of the run; None if it has counted what is stated."""
    stated = document["ledger"]
    try:
        ledger.verify()
        if not ledger.holds(stated["length"], stated["head"]):
            return (
                f"{ledger.path} is not the ledger that counted it, or not all of it: entry {stated['length']} is not "
                f"{stated['head']}"
            )
        if not ledger.had_paid(stated["run"], stated["length"]):
            return f"when {ledger.path} had {stated['length']} entries, it had counted nothing of run {stated['run']}"
        everything = ledger.runs()
        known = [each for each in everything if each.run == stated["run"]]
    except LedgerError as error:
        return str(error)
    if not known:
        return f"{ledger.path} knows of no run {stated['run']}"
    if known[0].before != stated.get("before"):
        return (
            f"{ledger.path} has run {stated['run']} with {known[0].before or 'nothing'} released before it, and the "
            f"certificate with {stated.get('before') or 'nothing'}"
        )
    if "before" not in stated:
        return _wrong_record(document, known[0], str(ledger.path))
    earlier = [each for each in everything if each.run == stated["before"] and each.kind == "bounds"]
    if not earlier or not ledger.had_paid(stated["before"], stated["length"]):
        return (
            f"{ledger.path} had not counted {stated['before']}, which was released before run {stated['run']}"
        )
    paid = compose([earlier[0].event, known[0].event])
    wrong = _wrong_whose(document, earlier[0], str(ledger.path))
    return wrong or _wrong_record(document, replace(known[0], event=paid), str(ledger.path))


def _wrong_record(document: Mapping[str, Any], record: RunRecord, ledger: str) -> str | None:
    event = event_from_json(document["events"])
    wrong = _wrong_whose(document, record, ledger)
    if wrong is not None:
        return wrong
    if not _same_events(record.event, event):
        return f"{ledger} has counted other events for run {record.run} than the certificate states"
    caveats = (SEED_WARNING, document["randomness"]["seeded"]), (document["claim"]["caveat"] or "", True)
    for caveat, said_here in caveats:
        if caveat and (caveat in record.caveat) != said_here:
            return f"{ledger} and the certificate do not agree on what is to be said of run {record.run}: {caveat}"
    # Of several caveats a certificate says one; that it says none where there is one makes a guarantee of what is none.
    beside = record.caveat.replace(SEED_WARNING, "").strip()
    if beside and not document["claim"]["caveat"]:
        return f"{ledger} says of run {record.run} what the certificate does not: {beside}"
    return None


def _wrong_whose(document: Mapping[str, Any], record: RunRecord, ledger: str) -> str | None:
    promised = document["guarantee"]
    said = {"data": record.data, "unit": record.unit, "relation": record.relation}
    meant = {"data": document["ledger"]["data"], "unit": promised["unit"], "relation": promised["relation"]}
    for name, value in meant.items():
        if said[name] != value:
            return f"{ledger} has run {record.run} with {name} {said[name]!r}, and the certificate with {value!r}"
    return None


def _same_events(one: DpEvent, other: DpEvent) -> bool:
    return not beyond(one, other) and not beyond(other, one) and len(leaves(one)) == len(leaves(other))
