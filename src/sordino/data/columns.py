"""Where the columns of a table come from: a CSV or Parquet file, or a table in memory. Names and types are public."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sordino.data.cells import is_number
from sordino.data.csv_rows import CsvRows
from sordino.data.schema import DELIMITERS, Schema, listed
from sordino.data.wrong import wrong_with

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".parquet")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z")
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
_ROWS_AT_A_TIME = 1 << 15


def not_read(path: str | os.PathLike[str], instead: str = "a .csv or .parquet file") -> str:
    """What to do with a file that is no table by its name.

    >>> not_read("people.csv.gz")
    'people.csv.gz is not read: decompress it first, and give the .csv or .parquet file'
    """
    suffix = Path(os.fspath(path)).suffix.lower()
    if suffix in _COMPRESSED:
        do = "decompress it first, and give the .csv or .parquet file"
    elif suffix in _SPREADSHEETS:
        do = "save it as CSV (UTF-8) there, and give that file"
    elif suffix in (".tsv", ".tab"):
        do = 'rename it to .csv, and write delimiter = "\\t" at the top of its schema'
    else:
        do = f"give {instead}"
    return f"{os.fspath(path)} is not read: {do}"


class Columns(Protocol):
    """A table that can be read some rows at a time, any number of times."""

    def names(self) -> tuple[str, ...]:
        """Of its columns; nothing else is read."""

    def size(self) -> int:
        """In bytes or rows: what the numbers that come with batches add up to, about."""

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[pa.Table, int]]: ...


def is_table(source: Any) -> bool:
    """Is it something that `columns_of` takes? Told by suffix or by type."""
    if isinstance(source, str | os.PathLike):
        return Path(os.fspath(source)).suffix.lower() in TABLES
    return isinstance(source, Mapping) or _library(source) in ("pandas", "polars", "pyarrow")


def columns_of(source: Any, schema: Schema) -> Columns:
    """The columns of a path or of a table in memory, for this schema."""
    if isinstance(source, str | os.PathLike):
        path = Path(os.fspath(source)).expanduser()
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give a .csv or .parquet file")
        if path.suffix.lower() == ".parquet":
            return ParquetRows(path)
        # Line ends inside quotes belong to texts. Where there are none, a stray quote ends with its line.
        has_text = any(each.kind == "text" for each in schema.columns)
        return CsvRows(path, schema.delimiter, newlines=has_text)
    return InMemory(_arrays(source))


def check_names(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Every wanted column is there, once. The first line of a CSV file that may be a row is not quoted: one that has
    none of the names, or a number among them."""
    from_a_line = where.lower().endswith(".csv")
    if from_a_line and not set(wanted) <= set(names) and (other := _other_delimiter(names, wanted)):
        raise ValueError(
            f"{where} has {other!r} between its columns: write delimiter = {json.dumps(other)} at the top of the schema"
        )
    for name in wanted:
        if name not in names:
            if any(map(is_number, names)) or (from_a_line and not set(names) & set(wanted)):
                raise ValueError(
                    f"{where} has no column {name!r} in its first line: check the name, and that this line is a header"
                )
            raise ValueError(f"{where} has no column {name!r}: it has {listed(names)}")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where} has two columns of the same name: give each its own")


def _other_delimiter(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """By which the first line has every wanted name: then it is a header, and was cut at something else."""
    for other in DELIMITERS:
        if set(wanted) <= {part.strip().strip('"').strip() for name in names for part in name.split(other)}:
            return other
    return None


@dataclass(frozen=True)
class ParquetRows:
    """A Parquet file. Of what it says about itself only names, types and the number of rows are looked at."""

    path: Path

    def names(self) -> tuple[str, ...]:
        return tuple(self.types())

    def types(self) -> dict[str, pa.DataType]:
        """Names and types: the schema message, and none of the statistics beside it."""
        from pyarrow import parquet

        try:
            found = parquet.read_schema(self.path)
        except Exception as error:  # a damaged file raises many types, and some quote what they stumbled over
            raise self._unreadable(error) from None
        if len(set(found.names)) < len(found.names):
            raise ValueError(f"{self.path} has two columns of the same name: give each its own")
        return dict(zip(found.names, found.types, strict=True))

    def size(self) -> int:
        from pyarrow import parquet

        try:
            return int(parquet.read_metadata(self.path).num_rows)
        except Exception as error:
            raise self._unreadable(error) from None

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[pa.Table, int]]:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self.path) as file:
                for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=list(columns), use_threads=False):
                    yield pa.Table.from_batches([batch]), batch.num_rows
        except Exception as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> ValueError:
        reason = (
            wrong_with(error)
            if isinstance(error, OSError) and error.errno
            else "it is damaged, or no Parquet"
        )
        return ValueError(f"cannot read {self.path} ({reason}): check the file")


@dataclass(frozen=True)
class InMemory:
    """Columns in memory, each an Arrow array of as many rows."""

    columns: Mapping[str, Any]

    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def size(self) -> int:
        return max((len(each) for each in self.columns.values()), default=0)

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[pa.Table, int]]:
        import pyarrow as pa

        rows = self.size()
        for start in range(0, rows, _ROWS_AT_A_TIME):
            part = {name: self.columns[name].slice(start, _ROWS_AT_A_TIME) for name in columns}
            yield pa.table(part), min(_ROWS_AT_A_TIME, rows - start)


def _library(source: Any) -> str:
    return type(source).__module__.partition(".")[0]


def _arrays(source: Any) -> dict[str, Any]:
    """Columns by name; those of types that Arrow does not share, row by row as text."""
    library = _library(source)
    if library == "polars" and hasattr(source, "collect"):
        source = source.collect()
    if library == "polars":
        source = source.to_arrow()
    if library in ("polars", "pyarrow"):
        if not hasattr(source, "column_names"):
            raise ValueError("of Arrow, give a Table")
        names = [str(name).strip() for name in source.column_names]
        arrays = [source.column(place) for place in range(len(names))]
    elif isinstance(source, Mapping) or library == "pandas":
        if library == "pandas" and not hasattr(source, "columns"):
            raise ValueError("of pandas, give a DataFrame")
        names = [str(name).strip() for name in (source if library != "pandas" else source.columns)]
        given = (
            list(source.values())
            if isinstance(source, Mapping)
            else [source.iloc[:, place] for place in range(len(names))]
        )
        arrays = [_array(name, each) for name, each in zip(names, given, strict=True)]
    else:
        raise ValueError(
            f"a table of type {type(source).__name__} is not supported: give a path, a DataFrame, an Arrow table or a "
            "dict of columns"
        )
    if len(set(names)) < len(names):
        raise ValueError("the table has two columns of the same name: give each its own")
    if len({len(each) for each in arrays}) > 1:
        raise ValueError("the columns of the table have different lengths: make them as long")
    return dict(zip(names, arrays, strict=True))


def _array(name: str, values: Any) -> Any:
    """An Arrow array. Objects become text one by one, so that no row decides how another is read."""
    import numpy as np
    import pyarrow as pa

    if _library(values) == "torch":
        values = values.detach().cpu().numpy()
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(
            f"column {name!r} of the table has shape {values.shape}: give one value for each row"
        )
    if kind in "fiub" or type(getattr(values, "dtype", None)).__name__ in ("CategoricalDtype", "StringDtype"):
        try:
            return pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError):
            pass
    try:
        return pa.array([_text(each) for each in values], pa.string())
    except TypeError:
        raise ValueError(
            f"column {name!r} of the table is no list of values: give one for each row"
        ) from None


def _text(value: Any) -> str | None:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, bytes):
        return value.decode(errors="ignore")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):  # numpy's too
        return None if value != value else repr(float(value)).removesuffix(".0")
    try:
        return str(value).encode(errors="ignore").decode()
    except Exception:  # code of the user's, which may quote the value
        return None
