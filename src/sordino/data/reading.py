"""`read`: a table of one's own, its held-out part and its users, ready for `train`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.columns import TABLES, not_read
from sordino.data.loaded import Loaded
from sordino.data.schema import Schema
from sordino.data.sources import Examples, part_of
from sordino.data.table import Table, TableExamples
from sordino.warn import warn

ROWS_PER_USER = 16


def read(
    source: Any,
    *,
    target: str | None = None,
    schema: Schema | str | os.PathLike[str] | None = None,
    test: Any = None,
    holdout: float | None = None,
    holdout_seed: int = 0,
    user: str | None = None,
    rows_per_user: int | None = None,
    whole_test: bool = False,
    name: str | None = None,
    progress: bool = False,
) -> Loaded:
    """Read a table by its schema, for `train`: rows to learn from, held-out ones, and whose they are.

    Every row is encoded by itself, by what the schema says: nothing is scaled, filled in or looked up by statistics of
    the rows. A cell that cannot be read is a missing value; a row without a target that can be read keeps its place
    and contributes nothing. Which rows are held out depends on how many there are, and on nothing in them.

    Args:
        source: the path of a .csv or .parquet file, a pandas or polars frame, an Arrow table, or a dict of columns.
        target: the column that is predicted, if it is to be checked against the schema.
        schema: a `Schema`, or the path of its TOML file; by default NAME.schema.toml or schema.toml beside the file.
        test: held-out rows, like ``source``.
        holdout: in its place, the share of the rows (or users) that are held out.
        holdout_seed: another one holds out other rows; it is no secret.
        user: the column that says whose a row is: then ``users`` of what comes back goes to ``train(groups=...)``, and
            a user is the unit of privacy.
        rows_per_user: how many rows of a user count, the first ones; by default 16.
        whole_test: held-out rows without a target stay in their places too, for metrics that are paid for: how many
            there are then tells nothing.
        name: what the data is called; by default the name of the file.
        progress: a live line on stderr.

    >>> from sordino.data.schema import Column, TargetColumn
    >>> schema = Schema(TargetColumn("y", labels=("no", "yes")), (Column("age", "number", low=0, high=100),))
    >>> loaded = read({"age": [50, 20, 30, 70], "y": ["no", "yes", "no", "no"]}, schema=schema, holdout=0.25)
    >>> len(loaded.train), len(loaded.test), loaded.input_shape
    (3, 1, (2,))
    """
    if test is not None and holdout is not None:
        raise ValueError(
            "held-out rows are in a file of their own or a share of the table: give test or holdout, not both"
        )
    most = ROWS_PER_USER if rows_per_user is None else rows_per_user
    if not (type(most) is int and most >= 1):
        raise ValueError("rows_per_user is a whole number, at least 1")
    table = Table(schema_for(source, schema, target, user))
    rows = table.examples(source, users=user is not None, progress=progress)
    parts = _Parts.of(rows, user is not None, most, holdout, holdout_seed, whole_test)
    held_out = parts.test
    if test is not None:
        others = table.examples(test, progress=progress)
        held_out = others if whole_test else measurable(others)
    path = Path(os.fspath(source)) if isinstance(source, str | os.PathLike) else Path("table")
    return Loaded(
        # The file's name, not its path or content: a file that moved or changed must not open a fresh budget.
        name=name or path.stem,
        train=parts.train,
        test=held_out,
        classes=table.target.outputs,
        input_shape=table.shape,
        task=table.target.task,
        public=table.public,
        inputs=table,
        users=parts.users,
    )


def schema_beside(path: Path) -> Path:
    """The schema of a file, if nobody names it."""
    for name in (f"{path.stem}.schema.toml", "schema.toml"):
        if path.with_name(name).is_file():
            return path.with_name(name)
    raise ValueError(
        f"{path} has no schema: draft one with `sordino schema infer {path} --target COLUMN --out "
        f"{path.with_name(path.stem)}.schema.toml`, fill it in, and try again"
    )


def schema_for(source: Any, given: Any, target: str | None, user: str | None) -> Schema:
    """What is public about ``source``, as given or as it lies beside it; not necessarily complete."""
    is_path = isinstance(source, str | os.PathLike)
    if is_path and not Path(os.fspath(source)).expanduser().exists():
        raise ValueError(f"{os.fspath(source)} does not exist: check the path")
    if is_path and Path(os.fspath(source)).suffix.lower() not in TABLES:
        raise ValueError(not_read(source))
    if given is None:
        if not is_path:
            raise ValueError("a table in memory needs a schema: give a Schema, or the path of one")
        given = schema_beside(Path(os.fspath(source)).expanduser())
    schema = given if isinstance(given, Schema) else Schema.read(given)
    if target is not None and target != schema.target.name:
        raise ValueError(
            f"the target of the schema is {schema.target.name!r}, not {target!r}: change one of them"
        )
    # Who has a row is never an input; and where rows are the units, nobody asks whose they are.
    columns = tuple(each for each in schema.columns if each.name != user)
    if user is not None and user == schema.target.name:
        raise ValueError(f"{user!r} is the target: it cannot say whose a row is")
    return replace(schema, columns=columns, user=user)


@dataclass(frozen=True)
class _Parts:
    """Rows to learn from, those that are held out, and whose the former are."""

    train: Examples
    test: Examples | None
    users: Tensor | None

    @staticmethod
    def of(
        rows: TableExamples, by_user: bool, most: int, holdout: float | None, seed: int, whole_test: bool
    ) -> _Parts:
        def tested(held: npt.NDArray[np.bool_]) -> Examples:
            return (
                part_of(rows, torch.from_numpy(np.flatnonzero(held)))
                if whole_test
                else measurable(rows, held)
            )

        if not by_user:
            if holdout is None:
                return _Parts(rows, None, None)
            held = _held_out(len(rows), holdout, seed)
            return _Parts(part_of(rows, torch.from_numpy(np.flatnonzero(~held))), tested(held), None)
        units, left_out = _units(rows.owners(), most)
        rows.leave_out(left_out)
        if holdout is None:
            return _Parts(rows, None, torch.from_numpy(units))
        held = _held_out(int(units.max()) + 1, holdout, seed)[units]
        kept = np.flatnonzero(~held)
        return _Parts(part_of(rows, torch.from_numpy(kept)), tested(held), torch.from_numpy(units[kept]))


def _held_out(units: int, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which of so many: the same ones every time, so that a resumed run, and the next one, hold out the same."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ValueError("holdout is the share of rows that are held out, between 0 and 1, such as 0.2")
    count = round(share * units)
    if not 0 < count < units:
        raise ValueError(
            f"a holdout of {share:g} leaves nothing on one side of {units}: choose another share"
        )
    order = torch.randperm(units, generator=torch.Generator().manual_seed(seed))
    held = np.zeros(units, dtype=bool)
    held[order[:count].numpy()] = True
    return held


def _units(owners: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The user of each row as a number, and the rows that contribute nothing.

    Users are numbered in the order of their hashes, and not of their rows, of which one would move all other users.
    What contributes nothing are rows of nobody, and those of a user beyond the first so many. They keep their places; a
    row of nobody is put down to the first user, to whom it adds nothing.
    """
    there = owners != 0
    if not there.any():
        raise ValueError("no row says whose it is: check the column of users")
    _, units = np.unique(owners[there], return_inverse=True)
    numbers = np.zeros(len(owners), dtype=np.int64)
    numbers[there] = units
    order = np.argsort(numbers[there], kind="stable")
    sizes = np.bincount(numbers[there])
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    left_out = ~there
    left_out[np.flatnonzero(there)[ranks >= most]] = True
    return numbers, left_out


def measurable(rows: TableExamples, held: npt.NDArray[np.bool_] | None = None) -> Examples:
    """Held-out rows that have a target: what is measured on them is uncovered anyway."""
    readable = rows.readable_rows()
    if held is not None:
        readable = readable[torch.from_numpy(held)[readable]]
    if len(readable) == 0:
        raise ValueError(
            "no held-out row has a target that can be read: check the labels or bounds in the schema"
        )
    count = len(rows) if held is None else int(held.sum())
    if len(readable) < count:
        warn(
            f"{count - len(readable)} of {count} held-out rows have no target that can be read, and are not measured: "
            "check the labels or bounds in the schema"
        )
    found = part_of(rows, readable)
    found.chosen_by_content = True  # also where all could be read: whoever asks is told nothing of them
    return found
