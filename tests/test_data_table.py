"""Tables: what becomes of each cell, and that a row that cannot be read keeps its place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from sordino.data.inputs import inputs_from_json
from sordino.data.schema import Column, Schema, TargetColumn
from sordino.data.table import Table

LABELS = TargetColumn("y", labels=("no", "yes"))
AGE = Column("age", "number", low=0, high=100)
JOB = Column("job", "category", values=("a", "b"))


def seen(column: Column, cells: list[Any], **how: Any) -> Tensor:
    """What the model sees of these cells."""
    rows = Table(Schema(LABELS, (column,))).examples({column.name: cells}, targets=False, **how)
    inputs: Tensor = rows.take(torch.arange(len(rows)))[0]
    return inputs


@pytest.mark.parametrize(
    ("cell", "value", "missing"),
    [
        ("0", -1, 0),
        (" 50 ", 0, 0),
        ("1e2", 1, 0),
        ("+75", 0.5, 0),
        ("-3", -1, 0),
        ("1000", 1, 0),
        (25, -0.5, 0),
        (np.float64(25), -0.5, 0),
        ("", 0, 1),
        ("  ", 0, 1),
        (None, 0, 1),
        ("?", 0, 1),
        ("1,5", 0, 1),
        ("0x10", 0, 1),
        ("1_0", 0, 1),
        ("nan", 0, 1),
        ("inf", 0, 1),
        ("-Infinity", 0, 1),
        ("1e999", 0, 1),
        (math.nan, 0, 1),
        (math.inf, 0, 1),
        (pd.NA, 0, 1),
        (b"\xff", 0, 1),
        ("٣", 0, 1),
    ],
)
@pytest.mark.parametrize("beside", ["7", "no number"])
def test_a_number_is_clipped_and_scaled_or_missing_whatever_stands_beside_it(
    cell: Any, value: float, missing: float, beside: str
) -> None:
    found = seen(AGE, [cell, beside])[0]
    assert found.tolist() == [value, missing]


def test_a_number_may_be_on_the_scale_of_logarithms() -> None:
    found = seen(Column("gain", "number", low=-1, high=99, log=True), ["-1", "9", "99", "1e9", ""])
    assert found[:, 0].tolist() == pytest.approx([-1, 2 * math.log(11) / math.log(101) - 1, 1, 1, 0])


def test_a_category_has_a_place_for_each_value_and_one_for_any_other() -> None:
    found = seen(JOB, ["a", " b ", "c", "A", "", None])
    assert found.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_category_in_buckets_needs_no_values_and_is_stable() -> None:
    found = seen(Column("city", "category", buckets=5), ["Oslo", "Bern", "Oslo", ""])
    assert found.argmax(1).tolist()[:2] == [1, 4]  # golden: a saved model must go on meaning the same
    assert found.sum(1).tolist() == [1, 1, 1, 0]
    assert torch.equal(found[0], found[2])


def test_a_text_is_a_bag_of_hashed_words_of_one_length() -> None:
    found = seen(
        Column("t", "text", buckets=8, words=3), ["Good good dog!", "dog GOOD good, and beyond", "", "?!"]
    )
    assert torch.equal(found[0], found[1])  # order, case and what is beyond the third word do not count
    assert found.norm(dim=1).tolist() == pytest.approx([16, 16, 0, 0])
    assert sorted(found[0].tolist())[-2:] == pytest.approx([16 / 5**0.5, 32 / 5**0.5])


def test_a_column_that_is_ignored_is_not_even_read() -> None:
    schema = Schema(LABELS, (AGE, Column("secret", "ignore")))
    assert len(Table(schema).examples({"age": [1], "y": ["no"], "other": [object()]})) == 1


def test_rows_without_a_target_keep_their_places_and_contribute_nothing() -> None:
    rows = Table(Schema(LABELS, (AGE,))).examples(
        {"age": [0, 50, 100, 50], "y": ["yes", "maybe", None, "no"]}
    )
    assert len(rows) == 4
    kept, inputs, targets = rows.take_readable(torch.tensor([3, 2, 1, 0]))
    assert kept.tolist() == [0, 3]
    assert inputs[:, 0].tolist() == [0, -1]
    assert targets.tolist() == [0, 1]
    number = Table(Schema(TargetColumn("y", low=0, high=10), (AGE,)))
    kept, _, targets = number.examples({"age": [1, 2, 3], "y": ["5", "old", "99"]}).take_readable(
        torch.arange(3)
    )
    assert kept.tolist() == [0, 2]
    assert targets.tolist() == [0, 1]
    assert targets.dtype == torch.float32


def test_without_targets_all_rows_can_be_read() -> None:
    rows = Table(Schema(LABELS, (AGE,))).examples({"age": [1, "x"]}, targets=False)
    assert rows.take_readable(torch.arange(2))[0].tolist() == [0, 1]


CSV = b'age,job,t,y\n50,a,"one, two",no\n,c,two,yes\n7\n100,b,\xff,no\n'
TEXT = Column("t", "text", buckets=4)


def test_files_and_tables_in_memory_give_the_same_rows(tmp_path: Path) -> None:
    table = Table(Schema(LABELS, (AGE, JOB, TEXT)))
    (tmp_path / "rows.csv").write_bytes(CSV)
    columns = {
        "age": [50.0, None, None, 100.0],
        "job": ["a", "c", None, "b"],
        "t": ["one, two", "two", None, None],
        "y": ["no", "yes", None, "no"],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    sources: list[Any] = [
        tmp_path / "rows.csv",
        str(tmp_path / "rows.parquet"),
        columns,
        pa.table(columns),
        pd.DataFrame(columns),
        pd.DataFrame(columns).astype({"job": "category"}),
        pl.DataFrame(columns),
        pl.DataFrame(columns).lazy(),
    ]
    first = table.examples(sources[0]).take_readable(torch.arange(4))
    assert first[0].tolist() == [0, 1, 3]
    for source in sources[1:]:
        found = table.examples(source)
        assert len(found) == 4
        for one, other in zip(first, found.take_readable(torch.arange(4)), strict=True):
            assert torch.equal(one, other)


def test_whole_numbers_are_the_same_category_however_they_are_kept() -> None:
    column = Column("code", "category", values=("1", "2"))
    for cells in (
        ["1", "3"],
        [1, 3],
        np.array([1, 3]),
        np.array([1.0, 3.0]),
        pd.Series([1, None]),
        pa.array([1, 3]),
    ):
        table = {"code": cells} if not isinstance(cells, pa.Array) else pa.table({"code": cells})
        rows = Table(Schema(LABELS, (column,))).examples(table, targets=False)
        assert rows.take(torch.tensor([0]))[0].tolist() == [[0, 1, 0]]


def test_fingerprints_tell_rows_and_schemas_apart() -> None:
    def print_of(column: Column, *cells: Any) -> str | None:
        return (
            Table(Schema(LABELS, (column,)))
            .examples({"age": cells, "y": ["no"] * len(cells)})
            .fingerprint(b"k")
        )

    assert print_of(AGE, 1, 2) == print_of(AGE, "1", "2")
    assert print_of(AGE, 1, 2) != print_of(AGE, 2, 1)
    assert print_of(AGE, 200) != print_of(Column("age", "number", low=0, high=99), 200)


def test_a_table_comes_back_from_what_a_run_keeps() -> None:
    table = Table(Schema(LABELS, (AGE, JOB, TEXT), delimiter=";"))
    assert inputs_from_json(table.to_json()) == table
    said = {**table.to_json(), "target": {"name": "y", "labels": ["a", "b"]}}
    with pytest.raises(ValueError, match="does not agree with itself"):
        inputs_from_json(said)


def test_bounds_that_were_looked_up_in_the_rows_void_the_guarantee() -> None:
    assert Table(Schema(LABELS, (AGE,))).caveat is None
    peeked = Column("age", "number", low=0, high=1, obtained="peeked")
    assert "no guarantee" in str(Table(Schema(LABELS, (peeked,))).caveat)
    target = TargetColumn("y", low=0, high=1, obtained="peeked")
    assert Table(Schema(target, (AGE,))).caveat is not None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"y": ["no"]}, "no column 'age': it has 'y'"),
        ({"age": [1]}, "no column 'y': it has 'age'"),
        ({"39": [1], "Private": [2]}, "no column 'age' in its first line"),
        ({"age": [], "y": []}, "has no rows"),
        ({"age": [1, 2], "y": ["no"]}, "different lengths"),
        ({"age": 3, "y": ["no"]}, "column 'age' of the table is no list"),
        ({"age": np.zeros((2, 2)), "y": ["no", "no"]}, "shape"),
        (pd.Series([1]), "give a DataFrame"),
        (pd.DataFrame([[1, 2]], columns=["age", "age"]), "two columns of the same name"),
        (3, "is not supported: give a path"),
        ("nowhere.csv", "cannot read nowhere.csv"),
        ("nowhere.parquet", "cannot read nowhere.parquet"),
    ],
)
def test_a_table_that_does_not_fit_gets_one_line(source: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Table(Schema(LABELS, (AGE,))).examples(source)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_file_with_another_delimiter_gets_a_line_that_says_which(tmp_path: Path, delimiter: str) -> None:
    schema = Schema(TargetColumn("y", labels=("a", "b")), (Column("age", "number", low=0, high=9),))
    path = tmp_path / "people.csv"
    path.write_text(delimiter.join(["age", "secret", "y"]) + "\n" + delimiter.join(["1", "2", "a"]) + "\n")
    with pytest.raises(ValueError, match="between its columns: write delimiter") as raised:
        Table(schema).examples(path)
    assert "secret" not in str(raised.value)
    said = str(raised.value).partition("write ")[2].partition(" at the top")[0]
    Table(Schema.from_toml(f"{said}\n{schema.to_toml()}")).examples(path)


def test_a_schema_that_is_not_complete_makes_no_table() -> None:
    with pytest.raises(ValueError, match=r"fill in 'age' \(low and high\)"):
        Table(Schema(LABELS, (Column("age", "number"),)))
