"""Tables: rows of cells, read by a public schema into what a model sees.

Every row of the source is a row here, in its place: one that cannot be read, or has no target, contributes nothing
(`take_readable` leaves it out) and counts all the same, so that the number of rows tells nothing of what is in them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.cells import (
    Encoder,
    encoder_for,
    has_target,
    targets_of,
    user_numbers,
    users_of,
)
from sordino.data.columns import check_names, columns_of
from sordino.data.inputs import Inputs, Target
from sordino.data.matrix import Cells, Matrix, MatrixWriter, as_floats
from sordino.data.progress import ReadingBar
from sordino.data.schema import Schema, listed
from sordino.data.sources import Examples
from sordino.data.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa

_USER_SLOTS = 2


@dataclass(frozen=True)
class Table(Inputs):
    """Rows of a table, by a schema in which nothing is missing.

    A number is clipped to its bounds and scaled to [-1, 1], with a second number that is 1 where it is missing; a
    category has a place for each of its values and one for all others; a text is a bag of hashed words. All of it is
    done to each row by itself.

    >>> from sordino.data.schema import Column, TargetColumn
    >>> schema = Schema(TargetColumn("y", labels=("no", "yes")), (Column("age", "number", low=0, high=100),))
    >>> rows = Table(schema).examples({"age": ["50", "old", "200"], "y": ["no", "yes", "?"]})
    >>> rows.take_readable(torch.arange(3))
    (tensor([0, 1]), tensor([[0., 0.],
            [0., 1.]]), tensor([0, 1]))
    """

    schema: Schema
    kind = "table"

    def __post_init__(self) -> None:
        self.schema.check_complete()

    @property
    def target(self) -> Target:  # type: ignore[override]
        return self.schema.target.target

    @cached_property
    def encoders(self) -> tuple[Encoder, ...]:
        return tuple(encoder_for(each) for each in self.schema.columns if each.kind != "ignore")

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(each.width for each in self.encoders),)

    def examples(
        self, source: Any, *, targets: bool = True, users: bool = False, progress: bool = False
    ) -> TableExamples:
        """The rows of a path, a pandas or polars frame, an Arrow table or a dict of columns."""
        columns = columns_of(source, self.schema)
        read = self._read(targets, users)
        check_names(columns.names(), read, _called(source))
        with MatrixWriter(_slots(self.encoders, targets, users)) as writer:
            with ReadingBar(columns.size() if progress else 0, show=progress) as bar:
                for batch, size in columns.batches(read):
                    writer.append(self._encoded(batch, targets, users))
                    bar.advance(size)
            matrix = writer.finished()
        if len(matrix) == 0:
            raise ValueError(f"{_called(source)} has no rows: it needs at least one below its header")
        return TableExamples(matrix, self, targets, users)

    def _read(self, targets: bool, users: bool) -> list[str]:
        """Names of the columns that are read, in the order of the cells that are kept."""
        names = [each.name for each in self.schema.columns if each.kind != "ignore"]
        if targets:
            names.append(self.target.name)
        if users:
            assert self.schema.user is not None
            names.append(self.schema.user)
        return names

    def _encoded(self, batch: pa.Table, targets: bool, users: bool) -> Cells:
        arrays = [_whole(column) for column in batch.columns]
        parts = [encoder.encoded(array) for encoder, array in zip(self.encoders, arrays, strict=False)]
        if targets:
            parts.append(targets_of(arrays[len(self.encoders)], self.target))
        if users:
            parts.append(users_of(arrays[-1]))
        return np.concatenate(parts, axis=1)

    def describe(self) -> dict[str, Any]:
        return {"schema": self.schema.to_json()}

    @classmethod
    def from_description(cls, target: Target, said: Mapping[str, Any]) -> Table:
        table = cls(Schema.from_json(said["schema"]))
        if table.target != target:
            raise ValueError(
                "what it says about a model's inputs does not agree with itself: put it back as it was"
            )
        return table

    @property
    def public(self) -> tuple[str, ...]:
        said = ["number of rows", "names of the columns"]
        if self.schema.user is not None:
            said += ["number of users"]
        if self.schema.obtained("public"):
            besides = ", but for those that were found with noise" if self.schema.obtained("private") else ""
            said.append(f"bounds, values and labels in the schema, as its owner wrote them{besides}")
        said += [
            f"features computed by {name}, of each row by itself"
            for name in sorted({each.embedding for each in self.schema.columns if each.embedding is not None})
        ]
        return tuple(said)

    @property
    def uncounted(self) -> str | None:
        elsewhere = self.schema.obtained("private")
        if not elsewhere:
            return None
        return (
            f"bounds or values of {listed(elsewhere)} in the schema were released with noise for something else, and "
            "what that cost is not counted here: this is no guarantee by itself"
        )

    @property
    def caveat(self) -> str | None:
        peeked = self.schema.obtained("peeked")
        if not peeked:
            return None
        return "bounds or values in the schema were read from the private rows (--peek): this is no guarantee"


class TableExamples(Examples):
    """Encoded rows in a private file; what the model sees is made of them when a batch is taken."""

    def __init__(self, matrix: Matrix, table: Table, targets: bool, users: bool) -> None:
        self._matrix, self._table, self._has_targets, self._has_users = matrix, table, targets, users
        self._left_out: npt.NDArray[np.bool_] | None = None
        self.inputs = table

    def __len__(self) -> int:
        return len(self._matrix)

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        """A row whose target cannot be read has 0 in its place."""
        cells = self._matrix.take(_numbers(indices))
        return self._inputs_of(cells), self._targets_of(cells)

    def take_readable(self, indices: Tensor) -> tuple[Tensor, Tree, Tree]:
        rows = _numbers(indices)
        cells = self._matrix.take(rows)
        there = self._readable(cells, rows)
        kept = cells[there]
        return torch.from_numpy(np.flatnonzero(there)), self._inputs_of(kept), self._targets_of(kept)

    def fingerprint(self, key: bytes) -> str | None:
        digest = hashlib.blake2b(json.dumps(self._table.to_json()).encode(), key=key, digest_size=16)
        for cells in self._matrix.in_order():
            digest.update(cells.data)
        if self._left_out is not None:
            digest.update(self._left_out.data)
        return digest.hexdigest()

    def readable_rows(self) -> Tensor:
        """Which rows have a target that can be read: for held-out rows alone, whose number is no secret."""
        found, start = [], 0
        for cells in self._matrix.in_order():
            rows = np.arange(start, start + len(cells))
            found.append(rows[self._readable(cells, rows)])
            start += len(cells)
        return torch.from_numpy(np.concatenate(found))

    def owners(self) -> npt.NDArray[np.int64]:
        """A number for each row that is the same for rows of one user, and 0 where nobody is named."""
        assert self._has_users
        return np.concatenate([user_numbers(cells[:, -_USER_SLOTS:]) for cells in self._matrix.in_order()])

    def leave_out(self, rows: npt.NDArray[np.bool_]) -> None:
        """These contribute nothing from now on, and keep their places."""
        assert rows.shape == (len(self),)
        self._left_out = rows

    def _readable(self, cells: Cells, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        there = np.ones(len(cells), dtype=bool)
        if self._has_targets:
            there &= has_target(self._target_cells(cells), self._table.target)
        if self._left_out is not None:
            there &= ~self._left_out[rows]
        return there

    def _target_cells(self, cells: Cells) -> Cells:
        place = cells.shape[1] - 1 - (_USER_SLOTS if self._has_users else 0)
        return cells[:, place : place + 1]

    def _inputs_of(self, cells: Cells) -> Tensor:
        dense = np.zeros((len(cells), *self._table.shape), dtype=np.float32)
        slot = place = 0
        for encoder in self._table.encoders:
            into = dense[:, place : place + encoder.width]
            encoder.expanded(cells[:, slot : slot + encoder.slots], into)
            slot, place = slot + encoder.slots, place + encoder.width
        return torch.from_numpy(dense)

    def _targets_of(self, cells: Cells) -> Tensor:
        classes = bool(self._table.target.labels)
        if not self._has_targets:
            return torch.zeros(len(cells), dtype=torch.int64 if classes else torch.float32)
        found = self._target_cells(cells)
        if classes:
            return torch.from_numpy(np.maximum(found[:, 0], 0).astype(np.int64))
        return torch.from_numpy(np.nan_to_num(as_floats(found)[:, 0]))

    def _no_rows(self) -> tuple[Tree, Tree]:
        none = np.zeros((0, self._matrix.slots), dtype=np.int32)
        return self._inputs_of(none), self._targets_of(none)


def _slots(encoders: tuple[Encoder, ...], targets: bool, users: bool) -> int:
    return sum(each.slots for each in encoders) + targets + (_USER_SLOTS if users else 0)


def _numbers(indices: Tensor) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = indices.detach().cpu().numpy()
    return numbers


def _whole(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _called(source: Any) -> str:
    import os

    return os.fspath(source) if isinstance(source, str | os.PathLike) else "the table"
