from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sordino.data import as_examples, load
from sordino.data.adult import _CATEGORIES, TEST, TRAIN
from sordino.data.download import PublicFile
from sordino.models import build_model, default_model
from test_data_named import REAL, md5, no_data_of_this_machine, one_line  # noqa: F401 (a fixture for all tests)

CLERK = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K"
)
UNKNOWN = "54, ?, 180211, Some-college, 10, Widowed, ?, Wife, Other, Female, 0, 1902, 60, ?, >50K"
ROWS = [CLERK, UNKNOWN, CLERK.replace("39", "17", 1), UNKNOWN.replace(">50K", "<=50K")]


def write(root: Path, train: list[str], test: list[str] | None = None) -> Path:
    (root / "adult").mkdir(parents=True)
    (root / TRAIN.path).write_text("\n".join(train) + "\n\n")
    rows = ROWS[:2] if test is None else test
    (root / TEST.path).write_text("\n".join(["|1x3 Cross validator", *(f"{row}." for row in rows)]) + "\n\n")
    return root


def encoded(row: str) -> list[float]:
    """One row by hand: the oracle."""
    age, workclass, _, education, level, marital, job, family, race, sex, gain, loss, hours, country, _ = (
        row.split(", ")
    )
    numbers = [
        (int(age) - 40) / 15,
        (int(level) - 10) / 3,
        math.log1p(int(gain)) / 5,
        math.log1p(int(loss)) / 5,
        (int(hours) - 40) / 12,
    ]
    values = (workclass, education, marital, job, family, race, sex, country)
    return numbers + [
        float(value == category)
        for value, categories in zip(values, _CATEGORIES.values(), strict=True)
        for category in categories
    ]


def test_rows_are_encoded_one_by_one_in_their_order(tmp_path: Path) -> None:
    loaded = load("adult", root=write(tmp_path, ROWS))
    (inputs, targets), test = loaded.train, loaded.test
    assert test is not None
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64
    torch.testing.assert_close(inputs, torch.tensor([encoded(row) for row in ROWS]))
    torch.testing.assert_close(test[0], inputs[:2])
    assert targets.tolist() == [0, 1, 0, 0]
    assert test[1].tolist() == [0, 1]
    assert (loaded.classes, loaded.input_shape, loaded.task) == (2, (104,), "classification")
    assert len(as_examples(loaded.train)) == 4


def test_golden_values(tmp_path: Path) -> None:
    inputs, _ = load("adult", root=write(tmp_path, ROWS)).train
    torch.testing.assert_close(inputs[0, :5], torch.tensor([-1 / 15, 1.0, 1.5369568, 0.0, 0.0]))
    torch.testing.assert_close(inputs[1, :5], torch.tensor([14 / 15, 0.0, 0.0, 1.5102373, 5 / 3]))
    # State-gov, Bachelors, Never-married, Adm-clerical, Not-in-family, White, Male, United-States
    assert inputs[0, 5:].nonzero().flatten().tolist() == [5, 8, 26, 39, 48, 51, 57, 58]


def test_a_missing_value_is_a_block_of_zeros(tmp_path: Path) -> None:
    inputs, _ = load("adult", root=write(tmp_path, ROWS)).train
    blocks = inputs[:, 5:].split([len(categories) for categories in _CATEGORIES.values()], dim=1)
    assert [block[0].sum() for block in blocks] == [1] * 8
    assert [block[1].sum() for block in blocks] == [0, 1, 1, 0, 1, 1, 1, 0]


def test_a_row_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    first = load("adult", root=write(tmp_path / "a", ROWS)).train[0][0]
    second = load("adult", root=write(tmp_path / "b", [CLERK, UNKNOWN.replace("54", "90", 1)])).train[0][0]
    assert torch.equal(first, second)


def test_the_schema_and_the_constants_are_declared_public(tmp_path: Path) -> None:
    public = load("adult", root=write(tmp_path, ROWS)).public
    assert any("categories" in fact for fact in public)
    assert any("scaling constants" in fact for fact in public)


def test_the_default_model_takes_it() -> None:
    assert default_model("adult", (104,)) == "mlp:64"
    assert build_model("mlp:64", (104,), 2)(torch.rand(3, 104)).shape == (3, 2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (CLERK.rpartition(",")[0], " does not have 15 columns in every row"),
        (f"{CLERK}, 1", " does not have 15 columns in every row"),
        ("<html>", " does not have 15 columns in every row"),
        (CLERK.replace("State-gov", "Pirate"), ": workclass is not one of the published categories in every"),
        (CLERK.replace("United-States", "x" * 99), ": native-country is not one of the published"),
        (CLERK.replace("<=50K", "70K"), ": income is not <=50K or >50K"),
        (CLERK.replace("<=50K", ""), ": income is not"),
        (CLERK.replace("39", "?", 1), ": age is not a whole number"),
        (CLERK.replace("39", "-1", 1), ": age is not a whole number"),
        (CLERK.replace("2174", "nan"), ": capital-gain is not a whole number"),
        (CLERK.replace("2174", "9" * 400), ": capital-gain is not a whole number"),
        (CLERK.replace("40,", "٤٠,"), ": hours-per-week is not a whole number"),
    ],
)
@pytest.mark.parametrize("file", [TRAIN, TEST], ids=lambda file: str(file.path))
def test_bad_rows_get_one_line_with_the_file_and_the_column_alone(
    tmp_path: Path, row: str, message: str, file: PublicFile
) -> None:
    bad = [CLERK, row, UNKNOWN]
    write(tmp_path, bad if file is TRAIN else ROWS, bad if file is TEST else ROWS)
    with pytest.raises(ValueError, match=f"{file.path}{message}") as caught:
        load("adult", root=tmp_path)
    one_line(caught)
    quoted = set(re.split(r"[ ,]+", row)) - set(re.split(r"[ ,]+", CLERK))
    assert not [value for value in quoted if len(value) > 2 and value in str(caught.value)]
    assert "line 2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "has no rows"), (b"|comment\n\n", "has no rows"), (b"\xff\xfe\0\1", "is not a text file")],
)
def test_damaged_files_get_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path, ROWS)
    (tmp_path / TRAIN.path).write_bytes(content)
    with pytest.raises(ValueError, match=f"adult.data {message}") as caught:
        load("adult", root=tmp_path)
    one_line(caught)


def test_a_folder_in_place_of_a_file_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / TRAIN.path).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"cannot read .*adult\.data") as caught:
        load("adult", root=tmp_path)
    one_line(caught)


@pytest.mark.parametrize("missing", [TRAIN, TEST], ids=lambda file: str(file.path))
def test_offline_says_which_file_and_where(tmp_path: Path, missing: object) -> None:
    write(tmp_path, ROWS)
    (tmp_path / missing.path).unlink()  # type: ignore[attr-defined]
    place = f"set SORDINO_DATA to a folder with {missing.path}"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=f"could not download https://archive.*{place}") as caught:
        load("adult", root=tmp_path)
    one_line(caught)


def test_missing_files_are_downloaded_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    home = write(tmp_path / "home", ROWS)
    for name, file in (("TRAIN", TRAIN), ("TEST", TEST)):
        published = md5((home / file.path).read_bytes())
        monkeypatch.setattr(
            f"sordino.data.adult.{name}", replace(file, url=(home / file.path).as_uri(), md5=published)
        )
    mine = tmp_path / "mine"
    mine.mkdir()
    assert len(load("adult", root=mine).train[1]) == 4
    assert (mine / TEST.path).exists()
    (mine / TRAIN.path).unlink()
    (home / TRAIN.path).write_text(CLERK)
    with pytest.raises(ValueError, match="wrong checksum"):
        load("adult", root=mine)
    assert not (mine / TRAIN.path).exists()


def test_windows_line_ends_and_dots_do_not_matter(tmp_path: Path) -> None:
    expected = load("adult", root=write(tmp_path / "a", ROWS)).train
    write(tmp_path / "b", ROWS)
    (tmp_path / "b" / TRAIN.path).write_bytes("".join(f"{row}.\r\n" for row in ROWS).encode())
    inputs, targets = load("adult", root=tmp_path / "b").train
    assert torch.equal(inputs, expected[0])
    assert torch.equal(targets, expected[1])


def test_the_real_files() -> None:
    if REAL is None or not all((REAL / file.path).exists() for file in (TRAIN, TEST)):
        pytest.skip("no real data on this machine")
    for file in (TRAIN, TEST):
        assert md5((REAL / file.path).read_bytes()) == file.md5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load("adult", root=REAL)
    (inputs, targets), test = loaded.train, loaded.test
    assert test is not None
    assert inputs.shape == (32561, 104)
    assert test[0].shape == (16281, 104)
    assert targets.bincount().tolist() == [24720, 7841]
    assert test[1].bincount().tolist() == [12435, 3846]
    assert inputs.isfinite().all()
    assert inputs.abs().max() < 5
    torch.testing.assert_close(inputs[0], torch.tensor(encoded(CLERK)))
    names = REAL / "adult" / "adult.names"
    if names.exists():  # the schema is the published one
        published = names.read_text()
        for column, categories in _CATEGORIES.items():
            assert f"\n{column}: {', '.join(categories)}.\n" in published
