"""Files that are there whole or not at all, and one line about those that could not be written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EROFS: "make its file system writable",
    errno.EACCES: "make its directory writable",
    errno.EPERM: "make its directory writable",
    errno.EIO: "check the disk",
}


class CannotWrite(OSError, ValueError):
    """A file could not be written: which, why, and what to do. What was there before is untouched."""


@contextlib.contextmanager
def writing(path: Path, then: str = "resume the run") -> Iterator[None]:
    """An `OSError` in here is about ``path``, and says so in one line."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        why = error.strerror or type(error).__name__
        remedy = _REMEDIES.get(error.errno or 0, "mend that")
        raise CannotWrite(f"{path} could not be written ({why}): {remedy}, then {then}") from error


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write ``path`` so that a reader, or a crash, sees the old file or the new one and nothing between.

    Where it cannot be written (a full disk) nothing is left of the attempt. A ``mode`` for the owner alone holds
    whatever the umask.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                if not mode & 0o077:
                    os.fchmod(descriptor, mode)  # a leftover of that name may have had another one
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, path)
            _sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def _sync_folder(folder: Path) -> None:
    """That a file has a new name is on the disk too, or a machine that crashes comes back with the one before."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without that promise
            raise
    finally:
        os.close(descriptor)


class Lines:
    """A file that grows by whole lines. What a crash or a full disk has left of a line is cut off."""

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self.path, self._mode = path, mode

    def read(self) -> list[str]:
        """The whole lines that are there; half a line at the end is cut off the file."""
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self.cut(whole)
        return content[:whole].decode().splitlines()

    def append(self, line: str, *, sync: bool = False) -> None:
        # No buffer and no descriptor that stays open: a line is in the file when this returns, and a process that is
        # killed afterwards does not take it along. A crash of the machine may, unless it is synced.
        with writing(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, self._mode)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    _write_all(descriptor, (line + "\n").encode())
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, size)
                    raise
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync(self) -> None:
        """On the disk, whatever happens to the machine."""
        if self.path.exists():
            with writing(self.path), self.path.open("rb") as file:
                os.fsync(file.fileno())

    def size(self) -> int:
        return self.path.stat().st_size

    def cut(self, size: int) -> None:
        with writing(self.path), self.path.open("r+b") as file:
            file.truncate(size)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:  # a nearly full disk takes a part, and says so at the next try
        content = content[os.write(descriptor, content) :]
