"""Entries that hang together: each carries the hash of the one before, and the last one's is kept outside as well."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from sordino.privacy.sealing import canonical

NOTHING = bytes(32)  # the hash before the first entry
PAYMENT = "spend"  # entries of which there are many, and which say no more than what is reserved already


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    ``price`` is the hash of the RDP of its events; the curve itself is kept once for all entries that have it.
    ``since`` is the hash of the last entry before it that is not a payment. So there are two chains: one through all
    entries, and a short one through those that decide what is admitted, which can be checked each time.
    """

    number: int  # from 1
    kind: str
    data: str | None  # the declared name of a data set
    run: str | None
    text: str  # the body, as canonical JSON
    price: bytes | None
    since: bytes
    digest: bytes = b""

    @cached_property
    def body(self) -> Mapping[str, Any]:
        try:
            parsed = json.loads(self.text)
        except (ValueError, TypeError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise LedgerError(f"the ledger was tampered with: entry {self.number} cannot be read")
        return parsed

    def digest_after(self, before: bytes) -> bytes:
        """The hash of this entry, which follows one of hash ``before``: of what the file holds, to the letter."""
        of = self.number, self.kind, self.data, self.run, self.text.encode(), self.price, self.since
        return _digest(before, *of)


class LedgerError(ValueError):
    """A ledger that cannot be read, written or believed: which, why, and what to do. Nothing in it was changed."""


@dataclass(frozen=True)
class Head:
    """How long a ledger is, and the hash of its last entry: together they say which ledger it is, to the last bit."""

    length: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        return {"length": self.length, "head": self.digest}


@lru_cache(maxsize=4096)
def _quoted(text: str | None) -> str:
    return json.dumps(text)


def _digest(
    before: bytes,
    number: int,
    kind: str,
    data: str | None,
    run: str | None,
    text: bytes,
    price: bytes | None,
    since: bytes,
) -> bytes:
    names = f"[{number},{_quoted(kind)},{_quoted(data)},{_quoted(run)},".encode()
    priced = b"null" if price is None else b'"%s"' % price.hex().encode()
    return hashlib.sha256(b'%s%s%s,%s,"%s"]' % (before, names, text, priced, since.hex().encode())).digest()


def broken_link(rows: Iterable[tuple[Any, ...]]) -> str | None:
    """What is wrong with the chain through all entries, from its first one on; None if nothing is. Entries come as rows
    of the file, with bytes for their bodies: there are hundreds of thousands."""
    before = since = NOTHING
    for expected, (number, kind, data, run, text, price, stated, digest) in enumerate(rows, start=1):
        if number != expected:
            return f"entry {expected} is missing: the next one is number {number}"
        try:
            before = _digest(before, number, kind, data, run, text, price, stated)
        except (TypeError, AttributeError):  # it holds what no entry holds
            return f"entry {number} cannot be read"
        if digest != before or stated != since:
            return f"entry {number} ({kind}) is not what was written, or not where it was written"
        if kind != PAYMENT:
            since = before
    return None


def broken_short_link(entries: Iterable[tuple[Entry, bytes | None]]) -> str | None:
    """The same of the short chain and the last entry of all, given each with the hash of the one before it in the file.
    Whoever trusts the hash of the last one can trust all of these."""
    since = NOTHING
    for entry, before in entries:
        if before is None:
            return f"the entry before number {entry.number} is missing"
        if entry.digest_after(before) != entry.digest or entry.since != since:
            return f"entry {entry.number} ({entry.kind}) is not what was written, or not where it was written"
        since = entry.digest
    return None


class HeadFile:
    """The head, beside the ledger in a file of its own: without it nobody could tell that entries at the end are gone.

    It is written before an entry is (as what comes next) and again afterwards, so that whenever a process is killed,
    the ledger's own head is one of the two that stand in it.
    """

    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_name(ledger.name + ".head")

    def announce(self, now: Head, coming: Head) -> None:
        self._write({**now.to_json(), "next": coming.to_json()})

    def settle(self, now: Head) -> None:
        """Where the disk is full by now, what was announced says as much."""
        with suppress(OSError):
            self._write(now.to_json())

    def complaint(self, found: Head) -> str | None:
        """What is wrong if a ledger has this head; None if nothing is."""
        try:
            stated = json.loads(self.path.read_text())
            known = [_head(stated), *([_head(stated["next"])] if "next" in stated else [])]
        except FileNotFoundError:
            return f"{self.path.name}, which says how long it is, is missing: put it back beside it"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{self.path.name}, which says how long it is, cannot be read ({error})"
        if found in known:
            return None
        longest = max(head.length for head in known)
        if found.length < longest:
            return f"it has {found.length} entries, and had {longest}: the end was cut off"
        return f"its last entry is not the one that {self.path.name} names"

    def _write(self, content: dict[str, Any]) -> None:
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(canonical(content) + "\n")
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, self.path)


def _head(stated: Any) -> Head:
    length, digest = stated["length"], stated["head"]
    if not isinstance(length, int) or not isinstance(digest, str):
        raise TypeError("it has no length or no hash")
    return Head(length, digest)
