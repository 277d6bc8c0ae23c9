"""Encoded rows in a private file without a name: larger than memory, and gone with the process, however it ends."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.int32]  # [rows, slots]; what is a float lies there bit for bit

_AT_A_TIME = 1 << 22  # bytes that are read in order
_RESIDENT = 1 << 28  # bytes of the mapping that may be in memory before it is let go
FAULT = 1 << 16  # what the system may map around a row that is touched
_AT_ONCE = _RESIDENT // FAULT  # rows


def handed_back(mapping: mmap.mmap | None, touched: int, rows: int, size: int) -> int:
    """How many bytes of a mapping are in memory, about, when so many rows of this size were touched besides: none, if
    they had become many and were handed back to the system. Where there is no way to do that, the system decides."""
    touched += rows * max(FAULT, size)
    if touched <= _RESIDENT or not hasattr(mapping, "madvise"):
        return touched
    assert mapping is not None
    mapping.madvise(mmap.MADV_DONTNEED)
    return 0


class Matrix:
    """Rows of 32-bit cells in a mapped file. Made by a `MatrixWriter`.

    What was touched is handed back to the system now and then, so that memory stays bounded however much is read.
    """

    def __init__(self, file: IO[bytes], rows: int, slots: int) -> None:
        self._file, self._rows, self._slots = file, rows, slots
        self._touched = 0
        self._map: mmap.mmap | None = None
        if rows:
            self._map = mmap.mmap(file.fileno(), rows * slots * 4, access=mmap.ACCESS_READ)
            self._cells: Cells = np.frombuffer(self._map, dtype=np.int32).reshape(rows, slots)
        else:
            self._cells = np.zeros((0, slots), dtype=np.int32)

    def __len__(self) -> int:
        return self._rows

    @property
    def slots(self) -> int:
        return self._slots

    def take(self, rows: npt.NDArray[np.int64]) -> Cells:
        """These rows, copied."""
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= self._rows):
            raise IndexError(f"index out of range for {self._rows} rows")
        taken: Cells = np.empty((len(rows), self._slots), dtype=np.int32)
        for start in range(0, len(rows), _AT_ONCE):  # a large batch alone would map gigabytes
            part = rows[start : start + _AT_ONCE]
            np.take(self._cells, part, axis=0, out=taken[start : start + len(part)], mode="clip")
            self._let_go(len(part))
        return taken

    def _let_go(self, rows: int) -> None:
        """Of what was touched, if it has become much."""
        self._touched = handed_back(self._map, self._touched, rows, self._slots * 4)

    def in_order(self) -> Iterator[Cells]:
        """All rows, some at a time, through a small buffer and not through the mapping."""
        at_a_time = max(1, _AT_A_TIME // (self._slots * 4))
        for start in range(0, self._rows, at_a_time):
            rows = min(at_a_time, self._rows - start)
            read = os.pread(self._file.fileno(), rows * self._slots * 4, start * self._slots * 4)
            yield np.frombuffer(read, dtype=np.int32).reshape(rows, self._slots)


class MatrixWriter:
    """Writes a `Matrix` row by row. Its file has no name from the start, or loses it at once: nobody else can open it,
    and nothing is left of it when the process ends, killed or not."""

    def __init__(self, slots: int) -> None:
        assert slots > 0
        self._slots, self._rows = slots, 0
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="sordino-")  # noqa: SIM115
        except OSError as error:
            raise _no_room(error) from None

    def append(self, cells: Cells) -> None:
        assert cells.shape[1:] == (self._slots,)
        assert cells.dtype == np.int32
        try:
            self._file.write(np.ascontiguousarray(cells).data)
        except OSError as error:
            raise _no_room(error) from None
        self._rows += len(cells)

    def finished(self) -> Matrix:
        try:
            self._file.flush()
        except OSError as error:
            raise _no_room(error) from None
        return Matrix(self._file, self._rows, self._slots)

    def __enter__(self) -> MatrixWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file.close()


def _no_room(error: OSError) -> ValueError:
    reason = "there is no room" if error.errno == errno.ENOSPC else error.strerror
    return ValueError(
        f"the encoded rows cannot be kept in {tempfile.gettempdir()} ({reason}): set TMPDIR to a folder with room"
    )


def as_floats(cells: Cells) -> npt.NDArray[np.float32]:
    """Cells in which floats lie."""
    floats: npt.NDArray[np.float32] = np.ascontiguousarray(cells).view(np.float32)
    return floats


def as_cells(floats: npt.NDArray[Any]) -> Cells:
    cells: Cells = np.ascontiguousarray(floats, dtype=np.float32).view(np.int32)
    return cells
