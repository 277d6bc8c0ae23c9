"""`sordino audit run`: who scripts it can rely on exit codes, and what it spends is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import sordino
from sordino import LedgerFile
from sordino.noise import GaussianNoise

SMALL = ("audit", "run", "digits", "--canaries", "300", "--epochs", "1", "--model", "linear", "--seed", "1")
CLAIM = ("--noise-multiplier", "0.8", "--delta", "1e-5")


def test_the_command_prints_claim_bounds_and_verdict(monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, *SMALL, *CLAIM, "--method", "dp-ftrl") == 0
    out, err = capsys.readouterr()
    for words in (
        "claimed",
        "at least, whatever was done",
        "at least, each canary apart",
        "the claim stands",
        "300 canaries, each one example, sought in the releases",
        "counted in no ledger",
        "a low bound proves nothing",
    ):
        assert words in out
    assert "sordino:" not in err


def test_json_is_one_object_with_the_claim_and_what_was_audited(monkeypatch: Any, capsys: Any) -> None:
    small = (*SMALL[:5], "--model", "linear", "--seed", "1", *CLAIM, "--federated", "--rounds", "2")
    federation = ("--clients", "10", "--per-round", "60", "--server", "dp-ftrl", "--see", "model", "--json")
    assert sordino(monkeypatch, *small, *federation) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["violated"], found["unit"], found["federated"], found["see"]) == (
        False,
        "user",
        True,
        "model",
    )
    assert (found["canaries"], found["releases"], found["confidence"]) == (300, 2, 0.95)
    assert found["epsilon"] <= found["claimed_epsilon"]
    assert found["apart"]["in_the_verdict"] is False
    assert found["guesses"][0]["made"] == 300
    assert found["relation"] == "zero-out (REPLACE_SPECIAL)"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_violated_claim_exits_with_2_and_one_line(monkeypatch: Any, capsys: Any, as_json: bool) -> None:
    add = GaussianNoise.add_
    monkeypatch.setattr(
        GaussianNoise, "add_", lambda self, vector, std, *rest: add(self, vector, std / 4, *rest)
    )
    assert sordino(monkeypatch, *SMALL, *CLAIM, *(["--json"] if as_json else [])) == 2
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if line.startswith("sordino:")]
    assert "the claim is violated" in line
    assert "Traceback" not in err
    if as_json:
        assert json.loads(out)["violated"] is True
    else:
        assert "the claim is violated" in out


def test_what_it_spends_is_counted(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert sordino(monkeypatch, *SMALL, *CLAIM, "--ledger", str(path), "--data-name", "patients") == 0
    assert "on 'patients' as run" in capsys.readouterr().out
    (run,) = LedgerFile(path).runs("patients")
    assert (run.kind, run.state, run.unit) == ("audit", "closed", "example")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "an audit needs a claim"),
        (("--epsilon", "3"), "--epsilon needs a --delta"),
        (("--noise-multiplier", "1"), "an audit needs a claim"),
        (("--noise-multiplier", "0", "--delta", "1e-5"), "nothing is claimed"),
        ((*CLAIM, "--canaries", "10"), "at least 160"),
        ((*CLAIM, "--confidence", "1"), "confidence"),
        ((*CLAIM, "--rounds", "3"), "give --federated too"),
        ((*CLAIM, "--federated", "--method", "oso"), "--method is for central training"),
        ((*CLAIM, "--unit", "user"), "does not say whose its rows are"),
        ((*CLAIM, "--method", "adam"), "private method"),
    ],
)
def test_mistakes_are_one_line(
    monkeypatch: Any, capsys: Any, arguments: tuple[str, ...], message: str
) -> None:
    assert sordino(monkeypatch, "audit", "run", "digits", *arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
