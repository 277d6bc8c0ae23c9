from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino as sd
from conftest import sordino
from sordino.data import load

TRAIN = (
    "--noise-multiplier",
    "1",
    "--delta",
    "1e-5",
    "--accountant",
    "rdp",
    "--epochs",
    "0.5",
    "--model",
    "linear",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of digits."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.runs.closing.drawn", lambda *_: b"")
        assert sordino(patch, "train", "digits", *TRAIN, "--out", str(folder / "digits")) == 0
    return folder / "digits"


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_row_gets_a_line_in_its_order(run: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "predict", str(run), "digits", "--proba") == 0
    lines = lines_of(capsys.readouterr().out)
    trained = sd.load(run)
    rows = load("digits").test[0]
    assert [line["prediction"] for line in lines] == trained.predict(rows)
    shares = [[float(line[f"probability of {label}"]) for label in trained.classes] for line in lines]
    np.testing.assert_allclose(shares, trained.predict_proba(rows), rtol=1e-12)


@pytest.mark.parametrize("what", [("predict", "digits", "--proba"), ("evaluate", "digits")])
def test_a_reader_that_has_had_enough_is_no_failure(run: Path, what: tuple[str, ...]) -> None:
    """Both where it goes while lines are written, and where all of them still wait to be."""
    name, *given = what
    command = [sys.executable, "-m", "sordino", name, str(run), *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, said = process.communicate()
    assert (process.returncode, said) == (0, b"")


def test_a_row_that_cannot_be_answered_gets_a_line_too(
    run: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    rows = np.zeros((3, 1, 8, 8), dtype=np.float32)
    rows[1] = np.nan
    np.savez(tmp_path / "rows.npz", x=rows)
    assert sordino(monkeypatch, "predict", str(run), str(tmp_path / "rows.npz")) == 0
    out = capsys.readouterr().out
    lines = list(csv.reader(io.StringIO(out)))
    assert lines[0] == ["prediction"]
    assert [line[0] == "" for line in lines[1:]] == [False, True, False]


@pytest.mark.parametrize("name", ["said.csv", "said.parquet"])
def test_files_hold_what_stdout_would(
    run: Path, tmp_path: Path, monkeypatch: Any, capsys: Any, name: str
) -> None:
    out = tmp_path / name
    assert sordino(monkeypatch, "predict", str(run), "digits", "--proba", "--out", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": str(run),
        "file": "digits",
        "rows": 360,
        "out": str(out),
    }
    import pyarrow.csv
    import pyarrow.parquet

    texts = pyarrow.csv.ConvertOptions(column_types={"prediction": "string"})
    read = (
        pyarrow.csv.read_csv(out, convert_options=texts)
        if name.endswith("csv")
        else pyarrow.parquet.read_table(out)
    )
    trained = sd.load(run)
    assert read["prediction"].to_pylist() == trained.predict("digits")
    np.testing.assert_allclose(read["probability of 7"], trained.predict_proba("digits")[:, 7])
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_json_is_one_object(run: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "predict", str(run), "digits", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["columns"]["prediction"] == sd.load(run).predict("digits")
    assert sordino(monkeypatch, "evaluate", str(run), "digits", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["covered"], len(found["confusion"])) == (360, False, 10)


def test_evaluation_says_that_nothing_covers_it(run: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "evaluate", str(run), "digits") == 0
    out = capsys.readouterr().out
    accuracy = sd.load(run).evaluate("digits")["accuracy"]
    assert f"{accuracy:.2%}   (not covered by any guarantee" in out
    assert out.count("\n") == 3 + 3 + 10  # metrics and rows, the table's head, its lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "nowhere", "digits"], "there is no run in nowhere"),
        (["predict", "RUN", "nowhere.npz"], "nowhere.npz does not exist"),
        (["predict", "RUN", "digits", "--out", "said.txt"], "takes a .csv or a .parquet"),
        (["evaluate", "RUN", "x.npz"], "has x and no y"),
        (["evaluate", "RUN", "wide.npz"], "make them alike"),
        (["export", "RUN", "--format", "pickle"], "there is no format 'pickle'"),
        (["predict", "RUN", "digits", "--out", "no/such/folder.csv"], "no/such"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    run: Path, here: Path, monkeypatch: Any, capsys: Any, arguments: list[str], words: str
) -> None:
    np.savez("x.npz", x=np.zeros((2, 1, 8, 8)))
    np.savez("wide.npz", x=np.zeros((2, 9)), y=np.zeros(2, dtype=int))
    assert sordino(monkeypatch, *[str(run) if each == "RUN" else each for each in arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert (said.err.count("\n"), said.out) == (1, "")


def test_export_says_where_it_went(run: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    out = tmp_path / "digits.safetensors"
    assert sordino(monkeypatch, "export", str(run), "--out", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(out)
    assert out.exists()


CENSUS = "age,job,wage\n" + "".join(
    f"{20 + n % 50},{'ab'[n % 2]},{['low', 'high'][n % 2]}\n" for n in range(120)
)
SCHEMA = """
[target]
name = "wage"
labels = ["low", "high"]

[[column]]
name = "age"
kind = "number"
low = 0
high = 100

[[column]]
name = "job"
kind = "category"
values = ["a", "b"]
"""


def test_a_table_is_predicted_row_by_row_whatever_is_in_its_cells(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    Path("people.csv").write_text(CENSUS)
    Path("schema.toml").write_text(SCHEMA)
    assert sordino(monkeypatch, "train", "people.csv", *TRAIN, "--out", "run") == 0
    Path("new.csv").write_text("job,age\na,30\nzebra,\n,12e\nb,99999\n")
    capsys.readouterr()
    assert sordino(monkeypatch, "predict", "run", "new.csv", "--proba") == 0
    lines = lines_of(capsys.readouterr().out)
    assert [line["prediction"] in ("low", "high") for line in lines] == [True] * 4
    trained = sd.load("run")
    rows = [{"age": 30, "job": "a"}, {"job": "zebra"}, {}, {"age": 99999, "job": "b"}]
    assert trained.predict(rows) == [line["prediction"] for line in lines]
    assert sordino(monkeypatch, "evaluate", "run", "people.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 120
    said = [each for each in trained.certificate["assumptions"] if each.startswith("public: ")]
    assert len(said) == 1


def test_code_that_a_run_names_is_run_on_request_alone(
    run: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    mine = tmp_path / "mine.py"
    mine.write_text(
        f"import pathlib, torch\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "def net(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    summary = json.loads((copy / "run.json").read_text()) | {"model": f"{mine}:net"}
    (copy / "run.json").write_text(json.dumps(summary))
    commands = (("predict", str(copy), "digits"), ("evaluate", str(copy), "digits"), ("export", str(copy)))
    for command in commands:
        assert sordino(monkeypatch, *command) != 0
        assert "--trust-code" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    for command in commands:
        assert sordino(monkeypatch, *command, "--trust-code") == 0
    assert (tmp_path / "ran").exists()
