"""`sordino audit gate`: who scripts it can rely on exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import sordino
from sordino.noise import GaussianNoise

SMALL = ("audit", "gate", "--releases", "2", "--runs", "60", "--seed", "1", "--delta", "1e-5")


def test_the_command_prints_claim_bounds_and_verdict(monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, *SMALL, "--epsilon", "3", "--method", "dp-sgd") == 0
    out, err = capsys.readouterr()
    for words in (
        "claimed",
        "95.0% sure",
        "99.9% sure",
        "the claim stands",
        "if Gaussian",
        "the verdict does not use it",
    ):
        assert words in out
    assert "sordino:" not in err


def test_json_is_one_object_with_the_claim_and_what_was_audited(monkeypatch: Any, capsys: Any) -> None:
    arguments = ("--noise-multiplier", "1", "--method", "oso", "--federated", "--json")
    assert sordino(monkeypatch, *SMALL, *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["violated"] is False
    assert found["unit"] == "user"
    assert found["federated"] is True
    assert [bound["confidence"] for bound in found["bounds"]] == [0.95, 0.999]
    assert all(bound["epsilon"] <= found["claimed_epsilon"] for bound in found["bounds"])
    assert (found["runs"], found["releases"], found["noise_multiplier"]) == (60, 2, 1.0)
    assert "mu-GDP" in found["gdp_assumption"]
    assert found["relation"] == "zero-out (REPLACE_SPECIAL)"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_violated_claim_exits_with_2_and_one_line(monkeypatch: Any, capsys: Any, as_json: bool) -> None:
    add = GaussianNoise.add_
    monkeypatch.setattr(
        GaussianNoise, "add_", lambda self, vector, std, *rest: add(self, vector, std / 10, *rest)
    )
    assert sordino(monkeypatch, *SMALL, "--noise-multiplier", "1", *(["--json"] if as_json else [])) == 2
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if line.startswith("sordino:")]
    assert "the claim is violated" in line
    assert "Traceback" not in err
    if as_json:
        assert json.loads(out)["violated"] is True
    else:
        assert "the claim is violated" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "an audit needs a claim"),
        (("--epsilon", "3"), "--epsilon needs a --delta"),
        (("--noise-multiplier", "1"), "--noise-multiplier needs a --delta"),
        (("--epsilon", "3", "--delta", "1e-5", "--noise-multiplier", "1"), "not both"),
        (("--epsilon", "3", "--delta", "1e-5", "--set", "tol"), "--set takes NAME=VALUE"),
        (("--epsilon", "3", "--delta", "1e-5", "--method", "adam"), "claims nothing"),
    ],
)
def test_mistakes_are_one_line(
    monkeypatch: Any, capsys: Any, arguments: tuple[str, ...], message: str
) -> None:
    assert sordino(monkeypatch, "audit", "gate", *arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
