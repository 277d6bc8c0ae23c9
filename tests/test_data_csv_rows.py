"""CSV files: every row keeps its place, whatever it or another one holds."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino.data.csv_rows as csv_rows
from sordino.data.csv_rows import CsvRows

NULL = {"a": None, "b": None}


def rows_of(raw: bytes, tmp_path: Path, **how: Any) -> list[dict[str, str | None]]:
    path = tmp_path / "rows.csv"
    path.write_bytes(raw)
    found = [row for table, _ in CsvRows(path, **how).batches(["a", "b"]) for row in table.to_pylist()]
    return [{name: cell.decode() if cell else None for name, cell in row.items()} for row in found]


def row(a: str | None, b: str | None) -> dict[str, str | None]:
    return {"a": a, "b": b}


GOOD = [row("1", "2"), row("3", "4")]


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"a,b\n1,2\n3,4\n", GOOD),
        (b"a,b\n1,2\n3,4", GOOD),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n3,4\r\n", GOOD),
        (b"a,b\r1,2\r3,4\r", GOOD),
        (b"a,b\r\n1,2\r3,4\n", GOOD),
        (b'" a ",b\n"1","2"\n3,4\n', GOOD),
        (b"a,b\n1,2\n\n3,4\n", [GOOD[0], NULL, GOOD[1]]),
        (b"a,b\n1,2\nx\n3,4\n", [GOOD[0], NULL, GOOD[1]]),
        (b"a,b\nx,y,z\n1,2\n,,,,\n3,4\n", [NULL, GOOD[0], NULL, GOOD[1]]),
        (b'a,b\n1,2\n"x,y\n3,4\n', [GOOD[0], NULL, GOOD[1]]),
        (b'a,b\n1,2\n"x"y,z\n3,4\n', [GOOD[0], NULL, GOOD[1]]),
        (b'a,b\n1,2\nx",y"\n3,4\n', [GOOD[0], row('x"', 'y"'), GOOD[1]]),
        (b'a,b\n1,2\nx"",\n3,4\n', [GOOD[0], row('x""', None), GOOD[1]]),
        (b'a,b\n1,2\nx,"y\n3,4\n', [GOOD[0], NULL, GOOD[1]]),
        (b'a,b\n1,2\n"x,\n3"",4\n', [GOOD[0], NULL, row('3""', "4")]),
        (b"a,b\n# no comment,\n1,2\na,b\n", [row("# no comment", None), GOOD[0], row("a", "b")]),
        (b'a,b\n"x,""y""",2\n', [row('x,"y"', "2")]),
        (b"a,b\n", []),
        (b"a,b", []),
    ],
)
def test_each_line_is_one_row_in_its_place(raw: bytes, found: list[Any], tmp_path: Path) -> None:
    assert rows_of(raw, tmp_path) == found
    for at_a_time in (1, 2, 3, 5, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csv_rows, "_AT_A_TIME", at_a_time)
            assert rows_of(raw, tmp_path) == found


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b'a,b\n"1\n2",2\n3,4\n', [row("1\n2", "2"), GOOD[1]]),
        (b'a,b\r\n"1\r\n2",2\r\n3,4\r\n', [row("1\r\n2", "2"), GOOD[1]]),
        (b'a,b\n1,2\n"x\ny"z,2\n3,4\n', [GOOD[0], NULL, row('y"z', "2"), GOOD[1]]),
        (b'a,b\n1,2\n"x,2\n3,4\n', [GOOD[0], NULL, GOOD[1]]),
        (b'a,b\n1,2\n"x\ny"\n3,4', [GOOD[0], NULL, GOOD[1]]),
        (b"a,b\n1,2\n\n3,4\n", [GOOD[0], NULL, GOOD[1]]),
    ],
)
def test_line_ends_in_quotes_belong_to_a_cell_where_texts_are(
    raw: bytes, found: list[Any], tmp_path: Path
) -> None:
    for at_a_time in (1, 2, 3, 5, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csv_rows, "_AT_A_TIME", at_a_time)
            assert rows_of(raw, tmp_path, newlines=True) == found


@pytest.mark.parametrize("newlines", [False, True])
@pytest.mark.parametrize(
    "long", [b"x" * 300, b'"' + b"x" * 300, b'"' + b"x," * 90 + b'"', b'"' + b"x\n" * 90]
)
def test_a_row_without_end_is_one_of_missing_values(long: bytes, newlines: bool, tmp_path: Path) -> None:
    lines = 1 if b"\n" not in long else 90
    for at_a_time in (16, 64, 4096):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csv_rows, "_AT_A_TIME", at_a_time)
            patch.setattr(csv_rows, "_LONGEST", 50)
            end = b"" if long.endswith(b"\n") else b"\n"
            found = rows_of(b"a,b\n1,2\n" + long + end + b"3,4\n", tmp_path, newlines=newlines)
            assert [found[0], found[-1]] == GOOD
            assert found[1:-1] == [NULL] * lines


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=6),
    at_a_time=st.integers(1, 40),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_what_other_tools_write_is_read_as_it_was(
    rows: list[tuple[str, str]], at_a_time: int, end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "_AT_A_TIME", at_a_time)
        found = rows_of(out.getvalue().encode(), tmp_path_factory.mktemp("csv"), newlines=True)
    assert found == [row(a or None, b or None) for a, b in rows]


@settings(max_examples=100, deadline=None)
@given(
    line=st.binary(max_size=30).filter(lambda b: b"\n" not in b and b"\r" not in b),
    at_a_time=st.integers(1, 50),
)
def test_whatever_a_line_holds_the_others_are_what_they_were(
    line: bytes, at_a_time: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "_AT_A_TIME", at_a_time)
        path = tmp_path_factory.mktemp("csv") / "rows.csv"
        path.write_bytes(b"a,b\n1,2\n" + line + b"\n3,4\n")
        found = [row for table, _ in CsvRows(path).batches(["a", "b"]) for row in table.to_pylist()]
    assert len(found) == 3
    assert [found[0], found[2]] == [{"a": b"1", "b": b"2"}, {"a": b"3", "b": b"4"}]


@pytest.mark.parametrize("newlines", [False, True])
def test_a_byte_order_mark_in_front_of_a_row_opens_no_quote(newlines: bool, tmp_path: Path) -> None:
    """Arrow drops one at the start of what it is given, and then sees a quote where we saw none."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b'a,b\n\xef\xbb\xbf"1,2\n3,"x,y"\n5,6\n')
    found = [
        row for table, _ in CsvRows(path, newlines=newlines).batches(["a", "b"]) for row in table.to_pylist()
    ]
    assert found[1:] == [{"a": b"3", "b": b"x,y"}, {"a": b"5", "b": b"6"}]
    assert len(found) == 3


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is empty, or has no header"),
        (b"\n1,2\n", "is empty, or has no header"),
        (b"\xef\xbb\xbf", "is empty, or has no header"),
        (b'a,"b\n1,2', "quotes do not match"),
        (b"\xff\xfea\0,\0b\0\n\0", "no CSV file in UTF-8"),
        (b"a\0,b\n", "is no CSV file"),
        (b"x" * (1 << 20) + b"xx", "has no header"),
    ],
)
def test_a_wrong_header_gets_one_line(raw: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=said):
        CsvRows(path).names()
