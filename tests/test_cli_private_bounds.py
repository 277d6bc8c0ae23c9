"""`sordino train --private-bounds --metric-epsilon`: from a schema with gaps to a certificate that holds."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino as sd
from conftest import sordino
from sordino.ledger import LedgerFile

GAPS = """
[target]
name = "income"
labels = "FILL IN"
[[column]]
name = "age"
kind = "number"
low = "FILL IN"
high = "FILL IN"
[[column]]
name = "job"
kind = "category"
values = "FILL IN"
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    with (tmp_path / "people.csv").open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(["age", "job", "income"])
        for age in rng.integers(18, 90, 1500):
            written.writerow([age, ("baker", "smith")[age % 2], "high" if age > 50 else "low"])
    (tmp_path / "people.schema.toml").write_text(GAPS)
    return tmp_path / "people.csv"


def invoked(monkeypatch: pytest.MonkeyPatch, *given: Any) -> int:
    fixed = [
        "--delta",
        "1e-4",
        "--epochs",
        "1",
        "--accountant",
        "rdp",
        "--method",
        "dp-sgd",
        "--holdout",
        "0.2",
    ]
    return sordino(monkeypatch, "train", *map(str, given), *fixed)


def test_gaps_are_filled_under_the_budget_and_counted(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book, out = tmp_path / "ledger.db", tmp_path / "run"
    counted = ("--ledger", book, "--data-name", "people")
    paid = ("--epsilon", 4, "--private-bounds", 1, "--metric-epsilon", 1)
    assert invoked(monkeypatch, table, *paid, "--out", out, *counted) == 0
    printed = capsys.readouterr().out
    assert "; epsilon 1 for bounds and values of the schema; epsilon 1 for metrics" in printed
    assert "not looked at" not in printed  # held-out rows were
    said = json.loads((out / "run.json").read_text())
    assert said["epsilon"] <= 4
    assert said["before"]["event"] == {"type": "approximate", "epsilon": 1.0, "delta": 1e-6}
    assert said["metrics"]["covered"] is True
    schema = json.loads((out / "inputs.json").read_text())["schema"]
    assert schema["target"] == {"name": "income", "labels": ["high", "low"], "obtained": "private"}
    assert schema["column"][0]["obtained"] == "private"
    assert schema["column"][1]["values"] == ["baker", "smith"]
    assert sd.verify(out, ledger=book).stands
    assert sordino(monkeypatch, "verify", str(out)) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "delta is 1e-06 in all: at deltas up to that nothing is known, so ask for a larger one" in told
    assert "not private" not in told
    assert sordino(monkeypatch, "ledger", "show", "--ledger", str(book), "--delta", "1e-7") == 0
    assert "delta is 1e-06 in all: at 1e-07 nothing is known" in capsys.readouterr().out
    assert [each.kind for each in LedgerFile(book).runs()] == ["bounds", "run"]


def test_a_cap_refuses_before_a_row_is_looked_at(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sordino.data import private_bounds

    def looked(*_: Any) -> None:
        raise AssertionError("a row was looked at")

    monkeypatch.setattr(private_bounds._Counted, "add", looked)
    book = LedgerFile(tmp_path / "ledger.db")
    book.cap("people", epsilon=0.5, delta=1e-4, aside=1e-6)
    counted = ("--ledger", book.path, "--data-name", "people", "--out", tmp_path / "run")
    assert invoked(monkeypatch, table, "--epsilon", 4, "--private-bounds", 1, *counted) == 2
    assert "has no room for this" in capsys.readouterr().err
    assert book.runs() == []


def test_a_cap_that_keeps_no_delta_aside_says_how_much_and_how(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    book.cap("our people", epsilon=5, delta=1e-4)
    counted = ("--ledger", book.path, "--data-name", "our people", "--out", tmp_path / "run")
    asked = (table, "--epsilon", 4, "--private-bounds", 1, *counted)
    assert invoked(monkeypatch, *asked) == 2
    command = capsys.readouterr().err.partition("to set, sordino ")[2]
    assert command.strip() == "ledger cap 'our people' --epsilon 5 --delta 0.0001 --aside 1e-06"
    assert sordino(monkeypatch, *shlex.split(command), "--ledger", str(book.path)) == 0
    assert invoked(monkeypatch, *asked) == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--epsilon", 1, "--private-bounds", 1), "a part of --epsilon"),
        (("--epsilon", 3, "--private-bounds", 1, "--ledger", "ledger.db"), "with --data-name"),
        (("--epsilon", 3), "fill in"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    table: Path,
    given: Any,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoked(monkeypatch, table, *given, "--out", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--model", "mpl"), "did you mean mlp"),
        (("--model", "mlp:many"), "positive whole numbers"),
        (("--model", "nowhere.py:model"), "there is no file nowhere.py"),
        (("--metric-epsilon", 1, "--unit", "user", "--user-column", "job"), "no price for users"),
        (("--test", "nowhere.csv"), "not --test and --holdout"),
        (("--out", "full"), "is not empty"),
        (("--out", "nowhere", "--resume"), "no interrupted run"),
        (("--signing-key", "nowhere.pem"), "cannot be read"),
        (("--holdout", 1.5), "between 0 and 1"),
        (("--method", "sgd"), "without privacy"),
        (("--features", "scatering"), "did you mean scattering"),
        (
            ("--features", "scattering"),
            "for images, and this is a table: leave them out, or give its columns of texts",
        ),
        (("--features", "sentence-transformers:nothing"), "no column of kind text"),
        (("--model", "cnn"), "needs images"),
        (("--model", "lstm"), "cannot run on inputs"),
        (("--metric-epsilon", 3), "leaves nothing to train with"),
        (("--tensorboard", "board"), "TensorBoard is not installed"),
        (("--mlflow", "people"), "MLflow is not installed"),
        (("--accountant", "pdl"), "did you mean pld"),
        (("--sampling", "poison"), "did you mean poisson"),
        (("--epochs", -1), "epochs must be a positive number"),
        (("--batch-size", 0), "batch"),
        (("--device", "abacus"), "no device"),
        (("--evaluations", 0), "at least once"),
        (("--classes", 2), "leave out classes"),
        (("--grey",), "no folder of images"),
        (("--unit", "user", "--user-column", "job", "--rows-per-user", 0), "at least 1"),
        (("--unit", "user", "--user-column", "who"), "no column 'who'"),
    ],
)
def test_what_needs_no_row_is_refused_before_bounds_are_paid_for(
    table: Path,
    given: Any,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from sordino.data.csv_rows import CsvRows

    def looked(*_: Any) -> None:
        raise AssertionError("a row was looked at")

    monkeypatch.setattr(CsvRows, "batches", looked)
    for missing in ("tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "somebody's").touch()
    asked = ("train", table, "--epsilon", 4, "--delta", 1e-4, "--private-bounds", 1, "--holdout", 0.2)
    counted = ("--ledger", "ledger.db", "--data-name", "people")
    assert sordino(monkeypatch, *map(str, (*asked, *counted, *given))) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "ledger.db").exists()


def test_held_out_rows_that_are_not_there_are_missed_before_bounds_are_paid_for(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("train", table, "--epsilon", 4, "--delta", 1e-4, "--private-bounds", 1)
    counted = ("--ledger", tmp_path / "ledger.db", "--data-name", "people", "--out", tmp_path / "run")
    (tmp_path / "others.csv").write_text("age,job\n30,baker\n")
    cases = (
        (("--test", tmp_path / "nowhere.csv"), "does not exist"),
        (("--test", tmp_path / "others.csv"), "no column 'income'"),
        (("--metric-epsilon", 1), "give --test"),
    )
    for given, says in cases:
        assert sordino(monkeypatch, *map(str, (*asked, *counted, *given))) == 2
        assert says in capsys.readouterr().err
        assert not (tmp_path / "ledger.db").exists()


def test_a_resumed_run_has_the_bounds_that_it_began_with(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino.data import private_bounds
    from sordino.descent import Descent

    given = (table, "--epsilon", 4, "--private-bounds", 1, "--out", tmp_path / "run")
    with monkeypatch.context() as stopped:
        stopped.setattr(Descent, "step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert invoked(stopped, *given) == 2
    began = json.loads((tmp_path / "run" / "run.json").read_text())["before"]
    monkeypatch.setattr(private_bounds, "private_bounds", None)  # it is not asked again
    assert invoked(monkeypatch, *given, "--resume") == 0
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert said["status"] == "complete"
    assert said["before"] == began
