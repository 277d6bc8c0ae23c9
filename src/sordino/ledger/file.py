"""The SQLite file under a ledger: entries are appended, one writer at a time, and never changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sordino.ledger.chain import (
    NOTHING,
    PAYMENT,
    Entry,
    Head,
    HeadFile,
    LedgerError,
    broken_link,
    broken_short_link,
)
from sordino.privacy.sealing import canonical

VERSION = 1
_PATIENCE = (
    300.0  # seconds that a writer waits for the others: whoever verifies a large ledger reads for a while
)
_TABLES = """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, data TEXT, run TEXT, body TEXT NOT NULL, price BLOB,
    since BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE INDEX of_run ON entries (run);
CREATE INDEX counted ON entries (number) WHERE kind <> 'spend';
CREATE TABLE curves (price BLOB PRIMARY KEY, curve BLOB NOT NULL);
CREATE TABLE secret (key BLOB NOT NULL);
CREATE TRIGGER never_changed BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END;
CREATE TRIGGER never_removed BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
"""
_COLUMNS = "number, kind, data, run, body, price, since, digest"
_BY_NETWORK = {
    "nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs",
    "ncpfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone",
}  # fmt: skip

New = tuple[
    str, str | None, str | None, dict[str, Any], bytes | None
]  # an entry: kind, data, run, body, curve


class EntryFile:
    """Entries in a file. A connection lives as long as one question, so that forks and threads share none."""

    def __init__(self, path: Path) -> None:
        # The file itself: its head lies beside it and not beside a link, wherever the process goes meanwhile.
        self.path = path.expanduser().resolve()
        self.head_file = HeadFile(self.path)

    def create(self, first: Callable[[bytes], list[New]]) -> None:
        """Make the file, unless it is there: ``first`` says how it begins, given its key."""
        with self._spoken():
            if self.path.exists() and self.path.stat().st_size > 0:
                return
            _refuse_network(self.path)
            if not self.path.parent.is_dir():
                raise LedgerError(
                    f"{self.path} cannot be made: its folder is not there; check the name, or make it"
                )
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with self._writing(new=True) as connection:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return  # another process was quicker
            if self.head_file.path.exists() and _settled_length(self.head_file.path) > 0:
                raise LedgerError(
                    f"{self.path} is gone and {self.head_file.path.name} is still there: put the ledger back, or give "
                    "another name"
                )
            for statement in _TABLES.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            key = secrets.token_bytes(32)
            connection.execute("INSERT INTO secret VALUES (?)", (key,))
            connection.execute(f"PRAGMA user_version = {VERSION}")
            self._append(connection, first(key))

    @contextmanager
    def reading(self) -> Iterator[Entries]:
        """What it says, all of it as of one moment."""
        with self._spoken():
            if not self.path.exists():
                raise LedgerError(
                    f"there is no ledger {self.path}: check the name, or count a run in it first"
                )
            with closing(self._connect()) as connection:
                connection.execute("BEGIN")
                self._check_version(connection)
                yield Entries(connection, self.head_file, str(self.path))

    @contextmanager
    def writing(self) -> Iterator[tuple[Entries, Callable[[list[New]], None]]]:
        """The same, and a function that appends; nobody else writes meanwhile. What is appended is there as a whole, or
        if anything is raised in here not at all."""
        with self._writing(new=False) as connection:
            entries = Entries(connection, self.head_file, str(self.path))
            complaint = self.head_file.complaint(entries.head())
            if complaint is not None:
                raise LedgerError(f"{self.path} was tampered with, and nothing is counted in it: {complaint}")
            yield entries, lambda new: self._append(connection, new)

    @contextmanager
    def _writing(self, new: bool) -> Iterator[sqlite3.Connection]:
        with self._spoken():
            if not new and not self.path.exists():
                raise LedgerError(f"there is no ledger {self.path}: it was there before; put it back")
            _refuse_network(self.path)
            with closing(self._connect()) as connection:
                connection.execute("BEGIN IMMEDIATE")
                self._check_version(connection, new)
                before = None if new else _head(connection)
                yield connection
                now = _head(connection)
                if now == before:
                    connection.execute("ROLLBACK")
                    return
                self.head_file.announce(before or Head(0, NOTHING.hex()), now)
                connection.execute("COMMIT")
                self._settle(connection)

    def _settle(self, connection: sqlite3.Connection) -> None:
        """Say outside what the last entry is, whoever has written it by now: under the lock, so that nobody who comes
        late puts an older one in its place. An exclusive lock from the first to the last would do as well, but those
        who wait for one keep a shared one meanwhile, and nobody could ever commit."""
        with suppress(sqlite3.Error):  # then it is announced, and whoever writes next settles it
            connection.execute("BEGIN IMMEDIATE")
            self.head_file.settle(_head(connection))
            connection.execute("ROLLBACK")

    def _append(self, connection: sqlite3.Connection, new: list[New]) -> None:
        for kind, data, run, body, curve in new:
            last = _last(connection)
            number, before = (1, NOTHING) if last is None else (last.number + 1, last.digest)
            price = None if curve is None else hashlib.sha256(curve).digest()
            entry = Entry(number, kind, data, run, canonical(body), price, _since(last))
            row = (number, kind, data, run, entry.text, price, entry.since, entry.digest_after(before))
            connection.execute(f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            if curve is not None:
                connection.execute("INSERT OR IGNORE INTO curves VALUES (?, ?)", (price, curve))

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, factory=_Connection)
        connection.execute("PRAGMA synchronous = EXTRA")  # after COMMIT it is on the disk
        return connection

    def _check_version(self, connection: sqlite3.Connection, new: bool = False) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise LedgerError(
                f"{self.path} was written by a newer version of Sordino (format {version}, this one knows {VERSION}): "
                "update Sordino"
            )
        if version < VERSION and not new:
            raise LedgerError(f"{self.path} is not a ledger of Sordino: check the name")

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """Errors of SQLite and of the system in one line."""
        try:
            yield
        except sqlite3.Error as error:
            why = _WHY.get(_name_of(error).split("_")[1] if "_" in _name_of(error) else "")
            raise LedgerError(f"{self.path} {why or f'could not be used ({error}): mend that'}") from error
        except OSError as error:
            raise LedgerError(
                f"{self.path} could not be written ({error.strerror}): mend that, then repeat"
            ) from error


class _Connection(sqlite3.Connection):
    """Closed when it is closed: a cursor that was not read to its end, kept alive by the traceback of an error, would
    keep the lock of a connection that nobody has any more."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def execute(self, *given: Any) -> sqlite3.Cursor:
        cursor = super().execute(*given)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        super().close()


class Entries:
    """What a ledger says, within one transaction."""

    def __init__(self, connection: sqlite3.Connection, head_file: HeadFile, name: str) -> None:
        self._connection, self._head_file, self._name = connection, head_file, name
        self._curves: dict[bytes, bytes] = {}

    def head(self) -> Head:
        return _head(self._connection)

    def digest_at(self, number: int) -> str | None:
        found = self._connection.execute("SELECT digest FROM entries WHERE number = ?", (number,)).fetchone()
        return None if found is None else bytes(found[0]).hex()

    def key(self) -> bytes:
        found = self._connection.execute("SELECT key FROM secret").fetchone()
        if found is None:
            raise LedgerError(f"{self._name} has lost its key: it was tampered with")
        return bytes(found[0])

    def identity(self) -> str:
        """What tells this ledger from every other."""
        first = next(self._found("number = 1", ()), None)
        if first is None or first.kind != "begun":
            raise LedgerError(f"{self._name} is not what was written: it does not begin")
        return str(first.body["ledger"])

    def curve(self, price: bytes) -> bytes:
        """The RDP that has this hash, and really has it."""
        if price not in self._curves:
            row = self._connection.execute("SELECT curve FROM curves WHERE price = ?", (price,)).fetchone()
            if row is None or hashlib.sha256(row[0]).digest() != price:
                raise LedgerError(f"{self._name} is not what was written: a price was edited or removed")
            self._curves[price] = bytes(row[0])
        return self._curves[price]

    def all(self) -> Iterator[Entry]:
        yield from self._found("1 = 1", ())

    def of_run(self, run: str) -> list[Entry]:
        return list(self._found("run = ?", (run,)))

    def seen(self) -> list[Entry]:
        return list(self._found("kind <> 'spend' AND kind = 'seen'", ()))

    def of_kinds(self, *kinds: str, data: Sequence[str] | None = None) -> list[Entry]:
        """Of all but payments, in their order, after a check that they are what was written."""
        assert PAYMENT not in kinds, "of these there are too many"
        return [
            entry for entry in self._counted if entry.kind in kinds and (data is None or entry.data in data)
        ]

    @cached_property
    def _counted(self) -> list[Entry]:
        columns = ", ".join(f"entries.{column}" for column in _COLUMNS.split(", "))
        query = (
            f"SELECT {columns}, before.digest FROM entries LEFT JOIN entries AS before "
            "ON before.number = entries.number - 1"
        )
        rows = self._connection.execute(f"{query} WHERE entries.kind <> 'spend' ORDER BY entries.number")
        found = [(_entry(row[:-1]), NOTHING if row[0] == 1 else row[-1]) for row in rows]
        counted = [entry for entry, _ in found]
        for row in self._connection.execute(f"{query} ORDER BY entries.number DESC LIMIT 1"):
            if row[1] == PAYMENT:
                found.append((_entry(row[:-1]), row[-1]))
        self._refuse(self._head_file.complaint(self.head()))
        self._refuse(broken_short_link(found))
        return counted

    def check_links(self) -> None:
        """Raise `LedgerError` if any entry was edited, removed or moved, or the end cut off."""
        columns = _COLUMNS.replace("body", "CAST(body AS BLOB)")
        rows = self._connection.execute(f"SELECT {columns} FROM entries ORDER BY number")
        self._refuse(broken_link(rows))
        self._refuse(self._head_file.complaint(self.head()))

    def _refuse(self, complaint: str | None) -> None:
        if complaint is not None:
            raise LedgerError(f"{self._name} is not what was written: {complaint}")

    def _found(self, where: str, values: Sequence[str]) -> Iterator[Entry]:
        query = f"SELECT {_COLUMNS} FROM entries WHERE {where} ORDER BY number"
        for row in self._connection.execute(query, values):
            yield _entry(row)


_TYPES = (int, str, str | None, str | None, str, bytes | None, bytes, bytes)


def _entry(row: tuple[Any, ...]) -> Entry:
    if not all(map(isinstance, row, _TYPES)):
        raise LedgerError(f"the ledger was tampered with: entry {row[0]} cannot be read")
    return Entry(*row)


def _last(connection: sqlite3.Connection) -> Entry | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY number DESC LIMIT 1").fetchone()
    return None if row is None else _entry(row)


def _head(connection: sqlite3.Connection) -> Head:
    last = _last(connection)
    return Head(0, NOTHING.hex()) if last is None else Head(last.number, bytes(last.digest).hex())


def _since(last: Entry | None) -> bytes:
    """The hash of the last entry that is not a payment."""
    if last is None:
        return NOTHING
    return last.since if last.kind == PAYMENT else last.digest


def _name_of(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


_WHY = {  # by the second word of SQLite's name for it
    "BUSY": "is in use by another process: wait for it, then repeat",
    "LOCKED": "is in use by another process: wait for it, then repeat",
    "READONLY": "cannot be written: make it, and its folder, writable; nothing was counted",
    "FULL": "could not be written (the disk is full): free some space, then repeat; nothing in it was lost",
    "IOERR": "could not be written (an error of the disk): free some space or check the disk, then repeat",
    "CANTOPEN": "cannot be opened: check its name, and that its folder is there and writable",
    "NOTADB": "is not a ledger of Sordino: check the name",
    "CORRUPT": "is damaged, or was tampered with: put a copy of it back",
    "PERM": "cannot be opened: it belongs to somebody else",
    "AUTH": "cannot be opened: it belongs to somebody else",
}


def _settled_length(head: Path) -> int:
    """How many entries the ledger beside a head had for certain."""
    try:
        return int(json.loads(head.read_text())["length"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1


def _refuse_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Locks across a network are not to be trusted: two processes could pass a cap together."""
    kind = _file_system(path, mounts)
    if kind in _BY_NETWORK:
        raise LedgerError(
            f"{path} is on a network file system ({kind}), where two processes could pass a cap together: keep the "
            "ledger on a local disk"
        )


def _file_system(path: Path, mounts: Path) -> str | None:
    try:
        lines = mounts.read_bytes().splitlines()
    except OSError:
        return None  # not a Linux: nothing to ask
    where = path.resolve()
    best: tuple[int, str | None] = (-1, None)
    for line in lines:
        _, point, kind, *_ = line.split(b" ")
        # A space in a name is written as \040
        folder = Path(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), point)))
        if (where == folder or folder in where.parents) and len(folder.parts) >= best[0]:
            best = len(folder.parts), kind.decode()  # of two at one place the later one lies on top
    return best[1]
