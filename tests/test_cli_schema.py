"""`sordino schema infer`: a draft without a look at the rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import sordino
from sordino.data.schema import Column, Schema, TargetColumn

HEADER = "id,age,job,income\n"


def infer(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> int:
    return sordino(monkeypatch, "schema", "infer", *map(str, arguments))


def test_a_draft_names_the_columns_and_marks_what_is_to_be_filled_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "people.csv").write_text(HEADER + "1,2,3,4\n")
    out = tmp_path / "schema.toml"
    assert (
        infer(monkeypatch, tmp_path / "people.csv", "--target", "income", "--user-column", "id", "--out", out)
        == 0
    )
    assert Schema.read(out) == Schema(TargetColumn("income"), (Column("age"), Column("job")), user="id")
    assert "2 columns and the target; 3 to be filled in" in capsys.readouterr().out
    text = out.read_text()
    assert 'kind = "FILL IN"' in text
    assert "not what you see in the rows" in text
    assert infer(monkeypatch, tmp_path / "people.csv", "--target", "income", "--out", out) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_text() == text


def test_not_a_byte_behind_the_header_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a pipe, whose rest can be counted afterwards."""
    pipe, rest = tmp_path / "people.csv", b"1,2,SECRET,4\n" * 100
    os.mkfifo(pipe)
    ours = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # so that it stays open, and keeps what is not read
    os.write(ours, HEADER.encode() + rest)
    try:
        assert infer(monkeypatch, pipe, "--target", "income", "--out", tmp_path / "schema.toml") == 0
        assert os.read(ours, 1 << 16) == rest
    finally:
        os.close(ours)


@pytest.mark.parametrize("rest", [b"", b"\xff\xfe\0\0garbage\n" * 9, b'"never closed', b"1,2,3,4\n"])
def test_drafts_are_the_same_whatever_the_rows_are(
    rest: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "people.csv").write_bytes(HEADER.encode() + rest)
    assert infer(monkeypatch, tmp_path / "people.csv", "--target", "income") == 0
    shown = capsys.readouterr()
    assert Schema.from_toml(shown.out) == Schema(
        TargetColumn("income"), (Column("id"), Column("age"), Column("job"))
    )
    assert shown.err == ""


def test_of_a_parquet_file_types_are_read_and_no_statistics(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {
        "age": pa.array([1, 2]),
        "height": pa.array([1.0, 2.0]),
        "sick": pa.array([True, False]),
        "job": pa.array(["SECRET", "b"]),
        "kind": pa.array(["SECRET", "b"]).dictionary_encode(),
        "tags": pa.array([["SECRET"], []]),
        "pay": pa.array([1.5, 2.5]),
    }
    pq.write_table(pa.table(columns), tmp_path / "people.parquet")

    def no_statistics(*_: Any) -> None:
        raise AssertionError("statistics were read")

    monkeypatch.setattr(pq, "read_metadata", no_statistics)
    assert infer(monkeypatch, tmp_path / "people.parquet", "--target", "pay") == 0
    text = capsys.readouterr().out
    assert "SECRET" not in text
    schema = Schema.from_toml(text)
    kinds = {each.name: each.kind for each in schema.columns}
    assert kinds == {
        "age": "number", "height": "number", "sick": "category", "job": None, "kind": "category", "tags": "ignore",
    }  # fmt: skip
    assert schema.target == TargetColumn("pay", numeric=True)
    assert all(each.missing for each in schema.columns if each.kind != "ignore")


def test_a_peek_says_so_and_marks_every_column(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"u{n},{n},{'ab'[n % 2]},{'no' if n % 3 else 'yes'}\n" for n in range(60))
    (tmp_path / "people.csv").write_text(HEADER + rows)
    assert infer(monkeypatch, tmp_path / "people.csv", "--target", "income", "--peek") == 0
    shown = capsys.readouterr()
    assert "--peek reads the private rows" in shown.err
    assert "NOT PRIVATE" in shown.out
    schema = Schema.from_toml(shown.out)
    assert schema.is_complete
    assert schema.obtained("peeked") == ("id", "age", "job", "income")
    assert schema.columns[1:] == (
        Column("age", "number", low=0, high=59, obtained="peeked"),
        Column("job", "category", values=("a", "b"), obtained="peeked"),
    )


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("", "is empty, or has no header"),
        ("a,b,a,y\n", "has two columns of the same name"),
        ("a,,y\n", "has a column without a name"),
        ("a,b\n", "has no column 'y' in its first line: check the name"),
        ("39,Private,77516\n", "check the name, and that this line is a header"),
        ('a,"b,y\n', "quotes do not match"),
    ],
)
def test_a_wrong_header_gets_one_line(
    header: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "people.csv").write_text(header)
    assert (
        infer(monkeypatch, tmp_path / "people.csv", "--target", "y", "--out", tmp_path / "schema.toml") == 2
    )
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert "Private" not in err
    assert not (tmp_path / "schema.toml").exists()


def test_other_delimiters_are_found_in_the_header(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "people.csv").write_text('age;"y"\n1;no\n')
    assert infer(monkeypatch, tmp_path / "people.csv", "--target", "y") == 0
    assert Schema.from_toml(capsys.readouterr().out) == Schema(
        TargetColumn("y"), (Column("age"),), delimiter=";"
    )


def test_files_that_are_no_tables_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("txt", "xlsx", "tsv", "parquet"):
        (tmp_path / f"people.{suffix}").write_text(HEADER)
    for name, said in [
        ("people.txt", "is not read: give a .csv"),
        ("people.xlsx", "is not read: save it as CSV"),
        ("people.tsv", 'write delimiter = "\\t" at the top'),
        ("people.parquet", "no Parquet"),
        ("no.csv", "does not exist"),
    ]:
        assert infer(monkeypatch, tmp_path / name, "--target", "income") == 2
        assert said in capsys.readouterr().err
