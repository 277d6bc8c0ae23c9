"""`read`: held-out rows and users, and where the schema comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sordino as sd
from sordino.data import as_examples
from sordino.data.schema import Column, Schema, TargetColumn

SCHEMA = Schema(TargetColumn("y", labels=("no", "yes")), (Column("age", "number", low=0, high=100),))
ROWS: dict[str, list[Any]] = {
    "age": list(range(100)),
    "y": ["no", "yes"] * 50,
    "id": [f"u{row // 4}" for row in range(100)],
}


def ages(examples: Any) -> list[int]:
    rows = as_examples(examples)
    inputs = rows.take_readable(torch.arange(len(rows)))[1]
    return [round((each + 1) * 50) for each in inputs[:, 0].tolist()]


def test_held_out_rows_depend_on_their_number_alone() -> None:
    one = sd.read(ROWS, schema=SCHEMA, holdout=0.2)
    wild = sd.read({**ROWS, "y": ["no"] * 99 + ["?"]}, schema=SCHEMA, holdout=0.2)
    assert len(one.train) == len(wild.train) == 80
    assert sorted(ages(one.train) + ages(one.test)) == list(range(100))
    assert set(ages(wild.train)) <= set(ages(one.train))
    assert ages(sd.read(ROWS, schema=SCHEMA, holdout=0.2).test) == ages(one.test)
    assert ages(sd.read(ROWS, schema=SCHEMA, holdout=0.2, holdout_seed=1).test) != ages(one.test)


def test_users_are_held_out_whole_and_no_row_moves_another_user() -> None:
    loaded = sd.read(ROWS, schema=SCHEMA, user="id", holdout=0.2)
    assert loaded.users is not None
    assert len(loaded.train) == len(loaded.users) == 80
    assert loaded.users.unique().tolist() != list(range(25))
    held, kept = ({age // 4 for age in ages(part)} for part in (loaded.test, loaded.train))
    assert (len(held), len(kept), held & kept) == (5, 20, set())
    units = dict(zip([age // 4 for age in ages(loaded.train)], loaded.users.tolist(), strict=True))
    assert len(set(units.values())) == 20
    # A row that says no longer whose it is: everybody else stays where they were, with the same number.
    without = {**ROWS, "id": [None, *ROWS["id"][1:]]}
    assert {age // 4 for age in ages(sd.read(without, schema=SCHEMA, user="id", holdout=0.2).test)} == held
    whole, nulled = (sd.read(table, schema=SCHEMA, user="id").users for table in (ROWS, without))
    assert whole is not None
    assert nulled is not None
    assert torch.equal(whole[1:], nulled[1:])


def test_a_user_has_so_many_rows_and_a_row_of_nobody_adds_nothing() -> None:
    table = {"age": [1, 2, 3, 4, 5, 6], "y": ["no"] * 6, "id": ["b", None, "b", "a", "b", " a "]}
    loaded = sd.read(table, schema=SCHEMA, user="id", rows_per_user=2)
    assert loaded.users is not None
    assert len(loaded.train) == 6
    assert ages(loaded.train) == [1, 3, 4, 6]
    b, a = loaded.users[[0, 3]].tolist()
    assert loaded.users[[0, 2, 3, 4, 5]].tolist() == [b, b, a, b, a]
    assert {a, b} == {0, 1}
    assert int(loaded.users.max()) == 1


def test_training_by_user_counts_users(tmp_path: Path) -> None:
    loaded = sd.read(ROWS, schema=SCHEMA, user="id")
    run = sd.train(
        torch.nn.Linear(2, 2),
        sd.classification(),
        loaded.train,
        groups=loaded.users,
        inputs=loaded.inputs,
        budget=(3, 1e-3),
        epochs=1,
        out=tmp_path / "run",
    )
    assert (run.summary["unit"], run.summary["n"]) == ("user", 25)
    assert "number of users" in " ".join(run.certificate["assumptions"])


def test_the_column_of_users_is_no_input() -> None:
    schema = Schema(SCHEMA.target, (*SCHEMA.columns, Column("id", "category", buckets=9)))
    assert sd.read(ROWS, schema=schema, user="id").input_shape == (2,)
    assert sd.read(ROWS, schema=schema).input_shape == (11,)


def test_the_schema_beside_the_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age,y\n1,no\n2,yes\n")
    with pytest.raises(
        ValueError, match=r"has no schema: draft one with `sordino schema infer .*people\.csv"
    ):
        sd.read(path)
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    assert sd.read(path, target="y").input_shape == (2,)
    wide = Schema(SCHEMA.target, (Column("age", "category", buckets=7),))
    (tmp_path / "people.schema.toml").write_text(wide.to_toml())
    assert sd.read(path).input_shape == (7,)
    assert sd.read(path, schema=tmp_path / "schema.toml", test=path).name == "people"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"target": "age"}, "the target of the schema is 'y', not 'age'"),
        ({"holdout": 0.2, "test": ROWS}, "test or holdout, not both"),
        ({"holdout": 1.5}, "between 0 and 1"),
        ({"holdout": 0.001}, "leaves nothing on one side of 100"),
        ({"user": "nobody"}, "no column 'nobody'"),
        ({"user": "y"}, "'y' is the target"),
        ({"user": "id", "rows_per_user": 0}, "at least 1"),
        ({"test": {"age": [1], "y": ["?"]}}, "no held-out row has a target"),
        ({"schema": None}, "needs a schema"),
        ({"user": "empty"}, "no row says whose it is"),
    ],
)
def test_what_cannot_be_read_gets_one_line(how: dict[str, Any], said: str) -> None:
    table = {**ROWS, "empty": [None] * 100}
    with pytest.raises(ValueError, match=said):
        sd.read(table, **{"schema": SCHEMA, **how})


def test_numbers_are_predicted_in_the_owners_units() -> None:
    schema = Schema(TargetColumn("y", low=0, high=1000), SCHEMA.columns)
    loaded = sd.read({"age": [50] * 4, "y": [0, 250, 500, 2000]}, schema=schema)
    assert (loaded.task, loaded.classes) == ("regression", 1)
    assert loaded.inputs is not None
    scale = loaded.inputs.target.half_range
    measured = sd.evaluate(torch.nn.Linear(2, 1), sd.regression(scale=scale), loaded.train)
    plain = sd.evaluate(torch.nn.Linear(2, 1), sd.regression(), loaded.train)
    assert scale == 500
    assert measured["test_mean_absolute_error"] > 10 * plain["test_mean_absolute_error"]
    zero = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(zero.weight), torch.nn.init.zeros_(zero.bias)
    found = sd.evaluate(zero, sd.regression(scale=scale), loaded.train)
    assert found["test_mean_absolute_error"] == pytest.approx(np.mean([500, 250, 0, 500]))
