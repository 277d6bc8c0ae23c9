"""Entries that hang together: each carries the hash of the one before, and the last one's is kept outside as well."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTHING = bytes(32)  # the hash before the first entry


@dataclass(frozen=True)
class Entry:
    """One line of the ledger. ``curve`` is the RDP of its events at our orders, as eight-byte floats."""

    number: int  # from 1
    kind: str
    data: str | None  # the declared name of a data set
    run: str | None
    body: Mapping[str, Any]
    curve: bytes | None = None
    digest: bytes = b""

    def digest_after(self, before: bytes) -> bytes:
        """The hash of this entry, which follows one of hash ``before``."""
        curve = None if self.curve is None else hashlib.sha256(self.curve).hexdigest()
        content = canonical([self.number, self.kind, self.data, self.run, self.body, curve])
        return hashlib.sha256(before + content.encode()).digest()


@dataclass(frozen=True)
class Head:
    """How long a ledger is, and the hash of its last entry: together they say which ledger it is, to the last bit."""

    length: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        return {"length": self.length, "head": self.digest}


def canonical(value: Any) -> str:
    """JSON in the one form that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def broken_link(entries: Iterable[Entry]) -> str | None:
    """What is wrong with a chain, from its first entry on; None if nothing is."""
    before = NOTHING
    for number, entry in enumerate(entries, start=1):
        if entry.number != number:
            return f"entry {number} is missing: the next one is number {entry.number}"
        before = entry.digest_after(before)
        if entry.digest != before:
            return f"entry {number} ({entry.kind}) is not what was written, or not where it was written"
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
