"""One run per directory: a lock that its holder takes along when it dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sordino.runs.writing import writing

LOCK = ".lock"
_ATTEMPTS = 1000

_held: set[int] = set()  # descriptors of the locks of this process


def _let_go_after_fork() -> None:
    # A fork shares the lock of its parent, and would hold it for as long as it lives: a worker whose client never
    # returns, for ever. Closing our copy of the descriptor does not unlock it for the parent.
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_after_fork)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes to ``folder`` meanwhile; raises ValueError if somebody does.

    The lock belongs to an open file, so the kernel frees it however its holder ends; there is no telling a live holder
    from a dead one by a number in a file, which another process may have by now. Folders that had to be made for it
    are removed again if nothing came to lie in them.
    """
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    owner = os.getpid()
    descriptor = _taken(folder)
    _held.add(descriptor)
    try:
        yield
    finally:
        if os.getpid() == owner:  # and not a fork of it, on its way out through here
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()  # while it is ours: see _taken
            _held.discard(descriptor)
            os.close(descriptor)
            with contextlib.suppress(OSError):
                for part in made:
                    part.rmdir()


def _taken(folder: Path) -> int:
    path = folder / LOCK
    attempts = 0
    while True:
        attempts += 1
        with writing(path, "repeat the command"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # whoever was here before has just removed the folder, or one above it
                if attempts < _ATTEMPTS:
                    continue
                raise
        try:
            _lock(descriptor, folder)
            # Whoever had it before unlinks the file while it is locked. A lock on a file that has no name any more
            # keeps nobody out, so it counts only if the file is still the one that is found under the name.
            if _is_at(descriptor, path):
                _sign(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            number = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            who = f" (process {number})" if number.isdigit() else ""
            raise ValueError(
                f"another run is writing to {folder}{who}: wait for it, or choose another directory"
            ) from None
        # Refused, and not warned about: two runs in one directory spend twice and state it once, which is worse than
        # having to copy a finished run to where it should lie.
        raise ValueError(
            f"{folder} is on a file system without locks ({error.strerror}), where another run could write to it: "
            "choose a directory on a local disk"
        ) from error


def _sign(descriptor: int) -> None:
    """For the line that the second comer gets. A lock holds without it, so a full disk is no reason to stop here."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
