"""`sordino report`: the figure of a run, drawn again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import sordino
from sordino.runs.lock import locked

PNG = b"\x89PNG\r\n"
SUMMARY = {
    "status": "complete",
    "data": "made up",
    "method": {"name": "sgd"},
    "epochs": 2.0,
    "noise_multiplier": 0.0,
}
HISTORY = [{"step": 1, "epoch": 1.0, "rate": 0.1, "epsilon": "inf", "test_accuracy": 0.5}]


def write_run(folder: Path, history: str | None = None, **changes: Any) -> Path:
    """The directory of a run, as far as the figure needs it."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({**SUMMARY, **changes}))
    lines = "".join(json.dumps(line) + "\n" for line in HISTORY) if history is None else history
    (folder / "history.jsonl").write_text(lines)
    return folder


@pytest.mark.figures
def test_a_report_is_drawn_again(here: Path, monkeypatch: Any, capsys: Any) -> None:
    run = ["train", "digits", "--method", "sgd", "--epochs", "1", "--seed", "1", "--out", "run"]
    assert sordino(monkeypatch, *run) == 0
    first = (here / "run/report.png").read_bytes()
    (here / "run/report.png").unlink()
    capsys.readouterr()
    assert sordino(monkeypatch, "report", "run") == 0
    assert capsys.readouterr().out == "run/report.png\n"
    assert (here / "run/report.png").read_bytes() == first
    assert not (here / "run/.lock").exists()


def test_several_runs_and_one_json_object(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_run(here / "a")
    federated = {"rounds": 2, "algorithm": {"kind": "FedAvg"}, "method": None, "clients": 3}
    write_run(here / "b", json.dumps({"round": 1, "cloud_norm": 2.0}) + "\n", **federated)
    (here / "b/clients.json").write_text(json.dumps({"sizes": [1, 2, 3], "clients": 3}))
    assert sordino(monkeypatch, "report", "a", "b", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "reports": [
            {"run": "a", "report": "a/report.png", "status": "complete", "step": 1},
            {"run": "b", "report": "b/report.png", "status": "complete", "round": 1},
        ]
    }
    assert all((here / name / "report.png").read_bytes().startswith(PNG) for name in "ab")


def test_an_unfinished_run_is_drawn_as_far_as_it_came(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_run(here / "run", json.dumps(HISTORY[0]) + '\n{"step": 2, "epo', status="running")
    assert sordino(monkeypatch, "report", "run") == 0
    assert capsys.readouterr().out == (
        "run/report.png (the run is not finished, step 1: to go on, repeat its command with --out run --resume)\n"
    )
    assert (here / "run/report.png").read_bytes().startswith(PNG)


def test_an_unfinished_run_says_what_it_spent_at_least(here: Path, monkeypatch: Any, capsys: Any) -> None:
    line = {"step": 1350, "epoch": 1.0, "rate": 0.1, "epsilon": 0.3999}
    paid = {"noise_multiplier": 1.0, "delta": 1e-5, "steps": 2000}
    write_run(here / "run", json.dumps(line) + "\n", status="running", **paid)
    assert sordino(monkeypatch, "report", "run") == 0
    assert capsys.readouterr().out == (
        "run/report.png (the run is not finished, epsilon at least 0.400 so far (at step 1350 of 2000), and more may "
        "have been released since: to go on, repeat its command with --out run --resume)\n"
    )


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda run: None,
            "there is no run in run: give a directory that sordino train or federate has written",
        ),
        (lambda run: run.mkdir(), "there is no run in run"),
        (lambda run: run.write_text("a file"), "there is no run in run"),
        (lambda run: write_run(run, "no json\n"), "what lies in run cannot be read"),
        (lambda run: write_run(run, "[1]\n"), "what lies in run was not written by a run"),
        (lambda run: (write_run(run) / "clients.json").write_text("{"), "what lies in run cannot be read"),
        (
            lambda run: (write_run(run) / "clients.json").write_text("[]"),
            "what lies in run was not written by a run",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    make: Any, line: str, here: Path, monkeypatch: Any, capsys: Any
) -> None:
    make(here / "run")
    assert sordino(monkeypatch, "report", "run") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"sordino: {line}")
    assert err.count("\n") == 1
    assert not (here / "run/report.png").exists()


def test_a_run_that_is_under_way_is_left_alone(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_run(here / "run", status="running")
    with locked(here / "run"):
        assert sordino(monkeypatch, "report", "run") == 2
    assert "another run is writing to run" in capsys.readouterr().err
    assert not (here / "run/report.png").exists()


def test_what_a_killed_run_could_not_delete_is_deleted(here: Path, monkeypatch: Any) -> None:
    run = write_run(here / "run", sordino_version="0", checkpoint_kept=False)
    (run / "checkpoint").mkdir()
    (run / "checkpoint/state.json").write_text("a key")
    assert sordino(monkeypatch, "report", "run") == 0
    assert not (run / "checkpoint").exists()
