"""Private rows that were computed once and lie in a file without a name: gone with the process, whatever ends it."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from sordino.data.inputs import Inputs
from sordino.data.matrix import FAULT, handed_back
from sordino.data.sources import Examples
from sordino.data.tree import Tree

_T = TypeVar("_T")
_TOGETHER = 4096  # rows of which a fingerprint is taken at a time
_NUMPY = {torch.uint8: np.uint8, torch.float16: np.float16, torch.float32: np.float32}


class Mapped:
    """A tensor in a mapped file. What was touched is handed back to the system now and then, so that memory stays
    bounded however much is written and read."""

    def __init__(self, array: np.memmap[Any, Any]) -> None:
        self.rows = torch.from_numpy(array)
        self._map, self._touched = array._mmap, 0  # type: ignore[attr-defined]  # numpy gives no other way to it

    def touch(self, rows: int) -> None:
        """So many rows were written or read."""
        self._touched = handed_back(self._map, self._touched, rows, self.rows[0].nbytes)


def nameless(shape: tuple[int, ...], dtype: torch.dtype) -> Mapped:
    """Zeros, in a file that has no name from the beginning (or none from at once); it takes room on the disk, not in
    memory. It lies where temporary files do: TMPDIR says where."""
    kind = np.dtype(_NUMPY[dtype])
    size = max(1, math.prod(shape)) * kind.itemsize
    try:
        file = tempfile.TemporaryFile(prefix="sordino-")  # noqa: SIM115  # the map keeps it open
        with file:
            # Room is taken now: a map that finds the disk full later ends the process with a signal.
            os.posix_fallocate(file.fileno(), 0, size)
            return Mapped(np.memmap(file, dtype=kind, mode="r+", shape=shape))
    except OSError as error:
        raise ValueError(
            f"no room for {size / 2**20:,.0f} MiB of rows in {tempfile.gettempdir()} ({error.strerror}): set TMPDIR to "
            "a folder with more"
        ) from None


@final
class KeptExamples(Examples):
    """Rows in such a file. What cannot be read keeps its place: it is left out of batches, and is zeros to whom must
    have all rows."""

    def __init__(
        self,
        rows: Mapped,
        targets: Tensor,
        readable: Tensor,
        *,
        divisor: float = 1.0,
        centre: float = 0.0,
        inputs: Inputs | None = None,
    ) -> None:
        """A stored value v is v / divisor - centre to a model; both are public constants."""
        if not len(rows.rows) == len(targets) == len(readable):
            raise ValueError("rows and targets are of different numbers: give each row one target")
        self._mapped, self._labels, self._readable = rows, targets, readable
        self._divisor, self._centre, self.inputs = divisor, centre, inputs

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def stored(self) -> Tensor:
        """The rows as they lie there: for whoever made them of public ones."""
        return self._mapped.rows

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        indices = indices.cpu()
        rows = self.stored.index_select(0, indices).to(torch.float32)
        self._mapped.touch(len(indices))
        if (self._divisor, self._centre) != (1.0, 0.0):
            rows.div_(self._divisor).sub_(self._centre)
        unreadable = ~self._readable.index_select(0, indices)
        rows[unreadable] = 0
        return rows, self._labels.index_select(0, indices)

    def take_readable(self, indices: Tensor) -> tuple[Tensor, Tree, Tree]:
        indices = indices.cpu()
        kept = self._readable.index_select(0, indices).nonzero().flatten()
        return kept, *self.take(indices[kept])

    def fingerprint(self, key: bytes) -> str | None:
        digest = hashlib.blake2b(f"{tuple(self.stored.shape)}".encode(), key=key, digest_size=16)
        for start in range(0, len(self), _TOGETHER):
            part = self.stored[start : start + _TOGETHER].contiguous()
            digest.update(part.reshape(-1).view(torch.uint8).numpy().data)
            self._mapped.touch(len(part))
        for whole in (self._labels, self._readable):
            digest.update(whole.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _no_rows(self) -> tuple[Tree, Tree]:
        return torch.zeros((0, *self.stored.shape[1:])), self._labels[:0]

    def _imitated(self, k: int) -> Examples:
        """In such a file, and as far apart as those of a batch are."""
        apart = max(1, FAULT // max(1, self.stored[:1].nbytes))
        count = max(k, min(len(self), apart * k))
        return KeptExamples(
            nameless((count, *self.stored.shape[1:]), self.stored.dtype),
            torch.zeros((count, *self._labels.shape[1:]), dtype=self._labels.dtype),
            torch.ones(count, dtype=torch.bool),
            divisor=self._divisor,
            centre=self._centre,
        )


def counted(parts: Iterable[_T], total: int, what: str, show: bool) -> Iterator[_T]:
    """The parts, with a live line on stderr of how many of ``total`` are done."""
    if not show:
        yield from parts
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(file=sys.stderr), refresh_per_second=5) as bar:
        yield from bar.track(parts, total=total, description=what)
