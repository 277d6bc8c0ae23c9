"""The SQLite file under a ledger: entries are appended, one writer at a time, and never changed."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sordino.ledger.chain import NOTHING, Entry, Head, HeadFile, canonical

VERSION = 1
_PATIENCE = 60.0  # seconds that a writer waits for the others
_TABLES = """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, data TEXT, run TEXT, body TEXT NOT NULL, curve BLOB,
    digest BLOB NOT NULL
);
CREATE INDEX of_data ON entries (data, kind);
CREATE INDEX of_run ON entries (run, kind);
CREATE TABLE secret (key BLOB NOT NULL);
CREATE TRIGGER never_changed BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END;
CREATE TRIGGER never_removed BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
"""
_COLUMNS = "number, kind, data, run, body, curve, digest"
_BY_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb",
    "smb2",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
}
_BY_NETWORK |= {
    "gpfs",
    "beegfs",
    "ncpfs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.rclone",
}

New = tuple[
    str, str | None, str | None, dict[str, Any], bytes | None
]  # an entry: kind, data, run, body, curve


class LedgerError(ValueError):
    """A ledger that cannot be read, written or believed: which, why, and what to do. Nothing in it was changed."""


class EntryFile:
    """Entries in a file. A connection lives as long as one question, so that forks and threads share none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head_file = HeadFile(path)

    def create(self, first: Callable[[bytes], list[New]]) -> None:
        """Make the file, unless it is there: ``first`` says how it begins, given its key."""
        if self.path.exists() and self.path.stat().st_size > 0:
            return
        with self._spoken():
            _refuse_network(self.path)
            self.path.parent.mkdir(parents=True, exist_ok=True)
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
                yield Entries(connection)

    @contextmanager
    def writing(self) -> Iterator[tuple[Entries, Callable[[list[New]], None]]]:
        """The same, and a function that appends; nobody else writes meanwhile. What is appended is there as a whole, or
        if anything is raised in here not at all."""
        with self._writing(new=False) as connection:
            entries = Entries(connection)
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
                # Locked until it is closed, and not only until the commit: the head outside is written meanwhile.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("BEGIN IMMEDIATE")
                self._check_version(connection, new)
                before = None if new else Entries(connection).head()
                yield connection
                now = Entries(connection).head()
                if now == before:
                    connection.execute("ROLLBACK")
                    return
                self.head_file.announce(before or Head(0, NOTHING.hex()), now)
                connection.execute("COMMIT")
                self.head_file.settle(now)

    def _append(self, connection: sqlite3.Connection, new: list[New]) -> None:
        entries = Entries(connection)
        for kind, data, run, body, curve in new:
            head = entries.head()
            entry = Entry(head.length + 1, kind, data, run, body, curve)
            digest = entry.digest_after(bytes.fromhex(head.digest))
            row = (entry.number, kind, data, run, canonical(body), curve, digest)
            connection.execute(f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
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


class Entries:
    """What a ledger says, within one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def head(self) -> Head:
        last = self._connection.execute(
            "SELECT number, digest FROM entries ORDER BY number DESC LIMIT 1"
        ).fetchone()
        return Head(0, NOTHING.hex()) if last is None else Head(int(last[0]), bytes(last[1]).hex())

    def digest_at(self, number: int) -> str | None:
        found = self._connection.execute("SELECT digest FROM entries WHERE number = ?", (number,)).fetchone()
        return None if found is None else bytes(found[0]).hex()

    def key(self) -> bytes:
        found = self._connection.execute("SELECT key FROM secret").fetchone()
        if found is None:
            raise LedgerError("the ledger has lost its key: it was tampered with")
        return bytes(found[0])

    def all(self) -> Iterator[Entry]:
        yield from self._found("1 = 1", ())

    def of_run(self, run: str) -> list[Entry]:
        return list(self._found("run = ?", (run,)))

    def of_kinds(self, *kinds: str, data: Sequence[str] | None = None) -> list[Entry]:
        where, values = f"kind IN ({_marks(kinds)})", [*kinds]
        if data is not None:
            where, values = f"{where} AND data IN ({_marks(data)})", [*values, *data]
        return list(self._found(where, values))

    def _found(self, where: str, values: Sequence[str]) -> Iterator[Entry]:
        query = f"SELECT {_COLUMNS} FROM entries WHERE {where} ORDER BY number"
        for number, kind, data, run, body, curve, digest in self._connection.execute(query, values):
            yield Entry(number, kind, data, run, _parsed(body, number), curve, digest)


def _parsed(body: Any, number: int) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise LedgerError(f"the ledger was tampered with: entry {number} cannot be read")
    return parsed


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


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
        lines = mounts.read_text().splitlines()
    except OSError:
        return None  # not a Linux: nothing to ask
    where = path.resolve()
    best: tuple[int, str | None] = (-1, None)
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        folder = Path(point.encode().decode("unicode_escape"))
        if where == folder or folder in where.parents:
            best = max(best, (len(folder.parts), kind), key=lambda found: found[0])
    return best[1]
