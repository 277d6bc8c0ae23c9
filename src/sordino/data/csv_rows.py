"""CSV files, some megabytes at a time: every line keeps its place, whatever is wrong with it.

Arrow reads the cells. Before that, what could make one row reach into the next is taken out here: a quote that is not
closed, a line without end. Such a row, and one with too few or too many
cells, becomes a row of missing values.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sordino.data.wrong import wrong_with

if TYPE_CHECKING:
    import pyarrow as pa

_AT_A_TIME = 1 << 22  # bytes
_LONGEST = 1 << 23  # bytes of one row; a longer one is a row of missing values
_HEADER = 1 << 20
_BOM = b"\xef\xbb\xbf"


def header_of(path: Path) -> bytes:
    """The bytes of the first line, without its end. Nothing behind it is read: not even the next byte."""
    try:
        with path.open("rb", buffering=0) as raw:
            return _first_line(raw)[0]
    except OSError as error:
        raise ValueError(f"cannot read {path} ({wrong_with(error)}): check the path") from None
    except _NoHeader:
        raise ValueError(f"{path} has no header: its first line must name the columns") from None


class _NoHeader(Exception):
    pass


def _first_line(raw: IO[bytes]) -> tuple[bytes, bytes]:
    """The line, and what ended it."""
    line, quotes = bytearray(), 0
    while (byte := raw.read(1)) and not (byte in b"\r\n" and quotes % 2 == 0):
        quotes += byte == b'"'
        line += byte
        if len(line) > _HEADER:
            raise _NoHeader
    return bytes(line), byte


def names_in(path: Path, header: bytes, delimiter: str) -> tuple[str, ...]:
    """The names in a header, without spaces around them. They may be wrong (`check_names`)."""
    try:
        text = header.removeprefix(_BOM).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no CSV file in UTF-8: save it as such") from None
    if not text.strip():
        raise ValueError(f"{path} is empty, or has no header: its first line must name the columns")
    if "\0" in text:
        raise ValueError(f"{path} is no CSV file: save it as such")
    try:
        (names,) = csv.reader([text], delimiter=delimiter, strict=True)
    except (csv.Error, ValueError):
        raise ValueError(
            f"{path} has a header whose quotes do not match: mend it, or the delimiter in its schema"
        ) from None
    return tuple(name.strip() for name in names)


@dataclass(frozen=True)
class CsvRows:
    """The rows of a file, as columns of bytes."""

    path: Path
    delimiter: str = ","
    newlines: bool = False  # may a cell in quotes hold line ends?

    def names(self) -> tuple[str, ...]:
        return names_in(self.path, header_of(self.path), self.delimiter)

    def size(self) -> int:
        return self.path.stat().st_size

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[pa.Table, int]]:
        """Columns of some rows at a time, in order, and how many bytes of the file they were."""
        try:
            with self.path.open("rb") as file:
                header, end = _first_line(file)
                names = names_in(self.path, header, self.delimiter)
                for whole, size in self._lines(file, end, len(names)):
                    yield self._table(whole, names, columns), size
        except OSError as error:
            raise ValueError(f"cannot read {self.path} ({wrong_with(error)}): check the file") from None

    def _lines(self, file: IO[bytes], end: bytes, cells: int) -> Iterator[tuple[bytes, int]]:
        """Whole rows, each by itself well formed, and how much was read for them."""
        cut = (_Records if self.newlines else _Lines)(self.delimiter, cells)
        while read := file.read(_AT_A_TIME):
            # A carriage return ended the header: a line feed may follow, and is part of the end.
            whole = cut.more(read.removeprefix(b"\n") if end == b"\r" else read)
            end = b""
            if whole:
                yield whole, len(read)
        if whole := cut.rest():
            yield whole, 0

    def _table(self, whole: bytes, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv as arrow

        # No handler for rows of another length: asked for one, Arrow decodes them, and quotes what it cannot. The blank
        # line in front is no row: Arrow drops a byte order mark at the start, which must not be that of a row.
        try:
            table = arrow.read_csv(
                pa.BufferReader(b"\n" + whole),
                read_options=arrow.ReadOptions(
                    use_threads=False, block_size=len(whole) + 2, column_names=list(names)
                ),
                parse_options=arrow.ParseOptions(
                    delimiter=self.delimiter,
                    ignore_empty_lines=False,
                    newlines_in_values=self.newlines,
                ),
                convert_options=arrow.ConvertOptions(
                    check_utf8=False,
                    include_columns=list(columns),
                    column_types={name: pa.binary() for name in columns},
                    strings_can_be_null=False,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowException:  # which would quote a row; nothing that was cut here is known to do it
            raise ValueError(f"{self.path} cannot be read as CSV: check that it is one") from None
        return table.slice(1)


class _Lines:
    """Rows are lines. A line feed, a carriage return or both end one, mixed as they may be."""

    def __init__(self, delimiter: str, cells: int) -> None:
        self._delimiter, self._cells = delimiter.encode(), cells
        unquoted, quoted = rf'(?:[^"{delimiter}\n][^{delimiter}\n]*+)?+', r'"[^"\n]*+(?:""[^"\n]*+)*+"'
        if delimiter == "|":
            delimiter = r"\|"
        field = f"(?:{quoted}|{unquoted})"
        self._well_formed = re.compile(f"{field}(?:{delimiter}{field}){{{cells - 1}}}".encode())
        self._carried = b""
        self._skipping = False  # the rest of a line that is too long

    def more(self, read: bytes) -> bytes:
        text = self._carried + read
        held = b"\r" if text.endswith(b"\r") else b""  # a line feed may follow
        text = _one_kind_of_end(text[: len(text) - len(held)])
        cut = text.rfind(b"\n") + 1
        whole, begun = text[:cut], text[cut:]
        if self._skipping and cut:
            whole, self._skipping = whole[whole.index(b"\n") :], False
        if self._skipping or len(begun) > _LONGEST:
            self._skipping, begun = True, b""
        self._carried = begun + held
        return self._each_by_itself(whole)

    def rest(self) -> bytes:
        text, self._carried = _one_kind_of_end(self._carried), b""
        if self._skipping:
            return b"\n"
        return self._each_by_itself(text if text.endswith(b"\n") or not text else text + b"\n")

    def _each_by_itself(self, whole: bytes) -> bytes:
        """The same lines, those emptied that have too few or too many cells, quotes that do not match, or no end."""
        return b"\n".join(line if self._is_well_formed(line) else b"" for line in whole.split(b"\n"))

    def _is_well_formed(self, line: bytes) -> bool:
        if len(line) > _LONGEST:
            return False
        if b'"' in line:
            return self._well_formed.fullmatch(line) is not None
        return line.count(self._delimiter) == self._cells - 1


def _one_kind_of_end(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


class _Records:
    """Rows whose cells in quotes may hold line ends. A quote that is not closed takes its own line with it, unless
    another one follows that closes it."""

    def __init__(self, delimiter: str, cells: int) -> None:
        unquoted = rf'(?:[^"{delimiter}\r\n][^{delimiter}\r\n]*+)?+'
        quoted = r'"[^"]*+(?:""[^"]*+)*+"'
        if delimiter == "|":
            delimiter = r"\|"
        fields = f"(?:(?:{quoted}|{unquoted}){delimiter})*+"
        self._record = re.compile(f"{fields}(?:{quoted}|{unquoted})(?:\r\n|\r|\n)".encode())
        self._whole = re.compile(
            f"(?:(?:{quoted}|{unquoted}){delimiter}){{{cells - 1}}}(?:{quoted}|{unquoted})(?:\r\n|\r|\n)".encode()
        )
        open_quote = r'"[^"]*+(?:""[^"]*+)*+"?'
        self._begun = re.compile(f"{fields}(?:{open_quote}|{unquoted})\\Z".encode())
        self._end = re.compile(b"\r\n|\r|\n")
        self._carried = b""
        self._skipping = False

    def more(self, read: bytes) -> bytes:
        text = self._carried + read
        held = b"\r" if text.endswith(b"\r") else b""
        whole, begun = self._cut(text[: len(text) - len(held)], ended=False)
        self._carried = begun + held
        return whole

    def rest(self) -> bytes:
        text = self._carried
        if (text or self._skipping) and not text.endswith((b"\r", b"\n")):
            text += b"\n"
        return self._cut(text, ended=True)[0]

    def _cut(self, text: bytes, ended: bool) -> tuple[bytes, bytes]:
        """Rows, well formed or empty, and the one that has only begun."""
        place, kept = 0, list[bytes]()
        while place < len(text):
            found = None if self._skipping else self._record.match(text, place)
            if found is not None and found.end() - place <= _LONGEST:
                kept.append(found.group() if self._whole.fullmatch(found.group()) else b"\n")
                place = found.end()
                continue
            may_go_on = not ended and not self._skipping and len(text) - place <= _LONGEST
            if may_go_on and self._begun.match(text, place):
                break
            end = self._end.search(text, place)
            self._skipping = end is None
            if end is None:  # of a line that is too long only its end matters
                return b"".join(kept), b""
            kept.append(b"\n")
            place = end.end()
        return b"".join(kept), text[place:]
