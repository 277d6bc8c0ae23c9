"""`sordino report`: the page of runs, and the figure of each, from what they have written down."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import sordino
from sordino.ledger import LedgerFile
from sordino.privacy import approximate, compose, gaussian
from sordino.report.html.budget import standing_of
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
    written = {name: (here / "run" / name).read_bytes() for name in ("report.png", "report.html")}
    for name in written:
        (here / "run" / name).unlink()
    capsys.readouterr()
    assert sordino(monkeypatch, "report", "run") == 0
    assert capsys.readouterr().out == "run/report.html\n"
    assert {name: (here / "run" / name).read_bytes() for name in written} == written
    assert not (here / "run/.lock").exists()


def test_several_runs_and_one_json_object(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_run(here / "a")
    federated = {"rounds": 2, "algorithm": {"kind": "FedAvg"}, "method": None, "clients": 3}
    write_run(here / "b", json.dumps({"round": 1, "cloud_norm": 2.0}) + "\n", **federated)
    (here / "b/clients.json").write_text(json.dumps({"sizes": [1, 2, 3], "clients": 3}))
    assert sordino(monkeypatch, "report", "a", "b", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "page": "report.html",
        "reports": [
            {"run": "a", "report": "a/report.png", "status": "complete", "step": 1},
            {"run": "b", "report": "b/report.png", "status": "complete", "round": 1},
        ],
    }
    assert all((here / name / "report.png").read_bytes().startswith(PNG) for name in "ab")
    assert "2 runs on made up" in (here / "report.html").read_text()
    assert not (here / "a/report.html").exists()


def test_an_unfinished_run_is_drawn_as_far_as_it_came(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_run(here / "run", json.dumps(HISTORY[0]) + '\n{"step": 2, "epo', status="running")
    assert sordino(monkeypatch, "report", "run") == 0
    assert capsys.readouterr().out == (
        "run/report.html (the run is not finished, step 1: to go on, repeat its command with --out run --resume)\n"
    )
    assert (here / "run/report.png").read_bytes().startswith(PNG)


def test_an_unfinished_run_says_what_it_spent_at_least(here: Path, monkeypatch: Any, capsys: Any) -> None:
    line = {"step": 1350, "epoch": 1.0, "rate": 0.1, "epsilon": 0.3999}
    paid = {"noise_multiplier": 1.0, "delta": 1e-5, "steps": 2000}
    write_run(here / "run", json.dumps(line) + "\n", status="running", **paid)
    assert sordino(monkeypatch, "report", "run") == 0
    assert capsys.readouterr().out == (
        "run/report.html (the run is not finished, epsilon at least 0.400 so far (at step 1350 of 2000), and more may "
        "have been released since: to go on, repeat its command with --out run --resume)\n"
    )


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda run: None,
            "there is no run in run: give a directory that sordino train, tune, federate or reproduce has written",
        ),
        (lambda run: run.mkdir(), "there is no run in run"),
        (lambda run: run.write_text("a file"), "there is no run in run"),
        (lambda run: write_run(run, "no json\n"), "what lies in run cannot be read"),
        (lambda run: write_run(run, "[1]\n"), "what lies in run was not written by a run"),
        (lambda run: (write_run(run) / "inputs.json").write_text("{"), "what lies in run cannot be read"),
        (lambda run: (write_run(run) / "certificate.json").write_text("3"), "what lies in run was not"),
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
    assert not (here / "run/report.html").exists()
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


def test_the_page_goes_where_it_is_told(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_run(here / "run")
    assert sordino(monkeypatch, "report", "run", "--out", "mine.html") == 0
    assert capsys.readouterr().out == "mine.html\n"
    assert (here / "mine.html").read_text().startswith("<!doctype html>")
    assert not (here / "run/report.html").exists()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--out", "run/run.json"], "--out is the page, a file that ends in .html, not run/run.json"),
        (["--out", "nowhere/page.html"], "there is no folder nowhere"),
        (["--ledger", "none.db"], "there is no ledger none.db"),
    ],
)
def test_a_page_that_has_no_place_is_one_line(
    given: list[str], line: str, here: Path, monkeypatch: Any, capsys: Any
) -> None:
    run = write_run(here / "run")
    before = (run / "run.json").read_bytes()
    assert sordino(monkeypatch, "report", "run", *given) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"sordino: {line}")
    assert err.count("\n") == 1
    assert (run / "run.json").read_bytes() == before
    assert not (here / "run/report.html").exists()


def test_what_else_was_spent_is_asked_of_the_ledger(here: Path, monkeypatch: Any, capsys: Any) -> None:
    run = [
        "train",
        "digits",
        "--noise-multiplier",
        "4",
        "--delta",
        "1e-5",
        "--epochs",
        "1",
        "--ledger",
        "led.db",
    ]
    assert sordino(monkeypatch, *run, "--out", "one") == 0
    assert sordino(monkeypatch, *run, "--out", "two") == 0
    assert (
        sordino(
            monkeypatch, "ledger", "cap", "digits", "--epsilon", "9", "--delta", "1e-5", "--ledger", "led.db"
        )
        == 0
    )
    alone = (here / "two/report.html").read_text()
    assert "Cap on" not in alone
    assert sordino(monkeypatch, "report", "two") == 0
    page = (here / "two/report.html").read_text()
    assert "Cap on &#x27;digits&#x27;: epsilon 9 at delta 1e-5" in page
    assert "2 runs, composed by Renyi DP" in page
    shares = re.search(r"([\d.]+) % is taken: ([\d.]+) % by this run, ([\d.]+) % by others", page)
    assert shares is not None
    total, own, others = map(float, shares.groups())
    assert own == others
    assert abs(total - own - others) <= 0.1001  # each is rounded up
    assert str(here) not in page


def test_what_a_runs_preprocessing_was_paid_with_is_its_own(tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "led.db")
    book.cap("people", epsilon=9.0, delta=1e-5, aside=1e-6)
    bounds = book.pay("people", approximate(0.5, 1e-7), what="bounds")
    event = compose([gaussian(2.0), approximate(0.5)])
    account = book.reserve("people", event)
    account.spend("all", event)
    account.close()

    def share(*runs: str) -> float:
        return standing_of(tmp_path / "led.db", "people", "example", runs).own_share or 0.0

    whole = standing_of(tmp_path / "led.db", "people", "example", ()).share
    assert share() == 0
    assert 0 < share(bounds) < share(account.run)
    assert share(bounds) + share(account.run) == pytest.approx(share(bounds, account.run))
    assert share(bounds, account.run) == pytest.approx(whole)  # metrics that were paid for are in it


def test_a_reproduction_has_a_page_as_well(here: Path, monkeypatch: Any, capsys: Any) -> None:
    (here / "done").mkdir()
    tables = [{"title": "A <table>", "columns": ["a", "b"], "rows": [["x", 1.5], [None, "<i>"]]}]
    result = {"recipe": "some", "summary": "a & b", "size": "quick", "tables": tables, "notes": ["n < m"]}
    (here / "done/result.json").write_text(json.dumps(result))
    assert sordino(monkeypatch, "report", "done") == 0
    assert capsys.readouterr().out == "done/report.html\n"
    page = (here / "done/report.html").read_text()
    assert "A &lt;table&gt;" in page
    assert "<i>" not in page
    assert "Nothing on this page is covered by a guarantee" in page
