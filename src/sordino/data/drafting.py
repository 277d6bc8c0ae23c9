"""A draft of a schema, from names and types alone; or, if asked, from the rows, and then it says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sordino.data.cells import numbers_of, texts_of
from sordino.data.columns import Columns, ParquetRows, check_names, not_read
from sordino.data.csv_rows import CsvRows, header_of, names_in
from sordino.data.inputs import LARGEST_BOUND, are_bounds
from sordino.data.schema import Column, Schema, TargetColumn

if TYPE_CHECKING:
    import pyarrow as pa

OPENING = """\
What is public about a table: see docs/tables.md.
Write down what you know from elsewhere, not what you see in the rows: bounds and values that were looked up in the
private rows would say something about them. Values beyond the bounds are put at the bounds; values that are not
listed count as "another one"; "ignore" leaves a column out."""
PEEKED = """\
NOT PRIVATE: bounds and values were read from the rows (--peek). Models trained with it have no guarantee.
Replace them by what you know from elsewhere, and delete the lines `obtained`, to have one."""

_MOST_VALUES = 50  # of a column that is looked at: with more of them it is a text


def draft(path: Path, target: str, user: str | None = None) -> Schema:
    """Of a CSV file the first line is read, of a Parquet file its names and types: no value, and no statistics."""
    if path.suffix.lower() == ".parquet":
        types = ParquetRows(path).types()
        names, delimiter = tuple(types), ","
        kinds = {name: _kind(each) for name, each in types.items()}
    elif path.suffix.lower() == ".csv":
        header = header_of(path)
        delimiter = _delimiter(header, target)
        names = names_in(path, header, delimiter)
        kinds = dict.fromkeys(names)
    else:
        raise ValueError(not_read(path))
    wanted = [target] if user is None else [target, user]
    check_names(names, wanted, str(path))
    if not all(names):
        raise ValueError(f"{path} has a column without a name: give each one in the header")
    numeric = path.suffix.lower() == ".parquet" and _is_fraction(types[target])
    columns = [Column(name, kinds[name]) for name in names if name not in wanted]
    return Schema(TargetColumn(target, numeric=numeric), tuple(columns), user=user, delimiter=delimiter)


def _delimiter(header: bytes, target: str) -> str:
    """The one that finds the target among the names; a comma if none does."""
    for delimiter in (",", ";", "\t", "|"):
        names = [part.strip(b' \t"') for part in header.split(delimiter.encode())]
        if len(names) > 1 and target.strip().encode(errors="ignore") in names:
            return delimiter
    return ","


def _kind(kind: pa.DataType) -> str | None:
    """What a type says; of whole numbers it does not say whether they are codes."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind) or pa.types.is_boolean(kind):
        return "category"
    if _is_fraction(kind) or pa.types.is_integer(kind):
        return "number"
    if pa.types.is_nested(kind) or pa.types.is_temporal(kind) or pa.types.is_null(kind):
        return "ignore"
    return None


def _is_fraction(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def peeked(path: Path, schema: Schema) -> Schema:
    """The same draft, filled in from the rows: for a first look at data that needs no guarantee."""
    source: Columns = (
        ParquetRows(path) if path.suffix.lower() == ".parquet" else CsvRows(path, schema.delimiter)
    )
    names = [each.name for each in schema.columns] + [schema.target.name]
    looks = {name: _Look() for name in names}
    for batch, _ in source.batches(names):
        for name in names:
            looks[name].add(batch.column(name).combine_chunks())
    columns = tuple(looks[each.name].column(each) for each in schema.columns)
    return replace(schema, columns=columns, target=looks[schema.target.name].target(schema.target))


class _Look:
    """What the values of a column are like."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.numbers = self.texts = 0
        self.values: set[str] = set()

    def add(self, array: pa.Array) -> None:
        texts = texts_of(array)
        numbers = numbers_of(array)
        self.texts += len(texts) - texts.null_count
        self.numbers += int(np.isfinite(numbers).sum())
        if np.isfinite(numbers).any():
            self.low, self.high = min(self.low, np.nanmin(numbers)), max(self.high, np.nanmax(numbers))
        if len(self.values) <= _MOST_VALUES:
            self.values.update(each for each in texts.unique().to_pylist() if each is not None)

    @property
    def _is_number(self) -> bool:
        return self.numbers > 0.9 * self.texts > 0

    @property
    def _bounds(self) -> tuple[float, float]:
        low, high = (float(np.clip(each, -LARGEST_BOUND, LARGEST_BOUND)) for each in (self.low, self.high))
        if are_bounds(low, high):
            return low, high
        high = low + max(1.0, abs(low))
        return (low, high) if high <= LARGEST_BOUND else (0.0, low)

    def column(self, drafted: Column) -> Column:
        if drafted.kind == "ignore" or not self.texts:
            return Column(drafted.name, "ignore", obtained="peeked")
        if self._is_number and len(self.values) > 2:
            low, high = self._bounds
            return Column(drafted.name, "number", low=low, high=high, obtained="peeked")
        if len(self.values) <= _MOST_VALUES:
            return Column(drafted.name, "category", values=tuple(sorted(self.values)), obtained="peeked")
        return Column(drafted.name, "text", obtained="peeked")

    def target(self, drafted: TargetColumn) -> TargetColumn:
        if self._is_number and len(self.values) > 20:
            low, high = self._bounds
            return TargetColumn(drafted.name, low=low, high=high, obtained="peeked")
        if len(self.values) < 2 or len(self.values) > _MOST_VALUES:
            raise ValueError(
                f"target {drafted.name!r} has neither a few labels nor numbers: leave out --peek"
            )
        return TargetColumn(drafted.name, labels=tuple(sorted(self.values)), obtained="peeked")
