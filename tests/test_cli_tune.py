"""`sordino tune`: what it prints, writes and exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import sordino

PAID = ["--epsilon", "3", "--delta", "1e-5", "--accountant", "rdp", "--epochs", "1", "--model", "linear"]
RATES = ["--method", "dp-sgd", "--over", "learning_rate=0.1,1"]
TUNE = ["tune", "digits", *PAID, *RATES]


def test_a_grid_ends_with_a_table_of_candidates(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, *TUNE, "--score", "0.2", "--out", "run") == 0
    out, err = capsys.readouterr()
    for words in (
        "candidates/1",
        "candidates/2",
        "best",
        "noisy; covered by the guarantee",
        "example of 1437",
    ):
        assert words in out
    assert "spent by           2 candidates and their scores" in out
    assert "candidate 2 of 2: learning_rate=1" in err
    assert (here / "run/candidates/2/model.safetensors").exists()


def test_a_selection_prints_its_winner_and_nothing_of_the_others(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    assert sordino(monkeypatch, *TUNE, "--score", "test", "--runs", "2", "--out", "run", "--json") == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert summary["tuning"]["protocol"] == "selection"
    assert summary["tuning"]["table"] is None
    assert summary["epsilon"] <= 3
    assert err == ""
    assert not (here / "run/candidates").exists()


def test_rows_to_score_on_come_from_a_file(here: Path, monkeypatch: Any, capsys: Any) -> None:
    from sklearn.datasets import load_digits

    rows = load_digits()
    np.savez("judges.npz", x=(rows.images[:200] / 16).astype(np.float32), y=rows.target[:200])
    assert sordino(monkeypatch, *TUNE, "--score", "judges.npz", "--score-is-public", "--json") == 0
    tuning = json.loads(capsys.readouterr().out)["tuning"]
    assert tuning["score"] == {"units": 200, "of": "accuracy", "public": True, "noise_multiplier": 0.0}


def test_the_rows_of_a_share_are_not_trained_on(here: Path, monkeypatch: Any) -> None:
    from sordino.cli.common import loaded_data
    from sordino.cli.tune import _rows

    loaded = loaded_data("digits", None)
    (x, y), (a, b) = _rows(loaded, "0.25", None)
    assert (len(y), len(b)) == (1078, 359)
    both = np.concatenate([x.flatten(1).numpy(), a.flatten(1).numpy()])
    assert np.allclose(np.sort(both.sum(1)), np.sort(loaded.train[0].flatten(1).numpy().sum(1)))
    again = _rows(loaded, "0.25", None)
    assert bool((again[1][0] == a).all())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tune", *PAID, *RATES, "--score", "0.1"], "tune which data"),
        (["tune", "digits", *RATES, "--score", "0.1"], "needs a budget"),
        ([*TUNE], "give --score"),
        (["tune", "digits", *PAID, "--score", "0.1"], "nothing to try"),
        ([*TUNE, "--score", "1.5"], "between 0 and 1"),
        ([*TUNE, "--score", "nowhere.npz"], "nowhere.npz"),
        ([*TUNE, "--score", "0.1", "--over", "learning_rate=3"], "given twice"),
        ([*TUNE, "--score", "0.1", "--over", "speed"], "NAME=VALUE"),
        ([*TUNE, "--score", "0.1", "--over", "speed=1,2"], "no setting"),
        ([*TUNE, "--score", "0.1", "--stopping", "geometric"], "give --runs"),
        ([*TUNE, "--score", "0.1", "--stopping", "soon", "--runs", "3"], "soon"),
        ([*TUNE, "--score", "0.1", "--runs", "0.2"], "from 1 to"),
        ([*TUNE, "--score", "0.1", "--resume"], "give it as --out"),
        (["tune", "--abandon"], "give it as --out"),
        (["tune", "--abandon", "--out", "nothing"], "no interrupted tuning"),
    ],
)
def test_bad_input_is_one_line(
    here: Path, monkeypatch: Any, capsys: Any, arguments: list[str], says: str
) -> None:
    assert sordino(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert list(here.iterdir()) == []


def test_an_interrupted_tuning_says_how_to_go_on_and_can_be_given_up(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    from sordino.tuning.trials import Trials

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trials, "scored", stopped)
        arguments = [*TUNE, "--score", "0.1", "--runs", "2", "--out", "run", "--ledger", "ledger.db"]
        assert sordino(patch, *arguments) == 2
    assert "--out run --resume" in capsys.readouterr().err
    assert sordino(monkeypatch, "tune", "--abandon", "--out", "run", "--ledger", "ledger.db") == 0
    assert "abandoned after 1 run: epsilon" in capsys.readouterr().out
    assert sordino(monkeypatch, "ledger", "runs", "--ledger", "ledger.db", "--json") == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["kind"], run["state"]) == ("selection", "closed")
