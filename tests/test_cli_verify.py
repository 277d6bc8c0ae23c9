"""`sordino verify`: 0 when all is well, 2 with one line otherwise; readable by somebody who knows no code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy, sordino

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(toy: tuple[Tensor, Tensor], here: Path) -> Path:
    given: dict[str, Any] = {"method": "dp-sgd", "epochs": 1, "batch_size": 12, "noise_multiplier": 4.0}
    given |= {"delta": 1e-3, "ledger": here / "ledger.db", "data_name": "patients", "progress": False}
    sd.train(nn.Linear(10, 3), cross_entropy, toy, out=here / "run", test=toy, **given)
    return here / "run"


def refused(capsys: Capture) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sordino: ")
    assert err.count("\n") == 1
    return err


def test_what_was_promised_about_whom_and_by_which_assumptions_can_be_read(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert sordino(monkeypatch, "verify", run.name, "--ledger", "ledger.db") == 0
    out = capsys.readouterr().out
    assert out.startswith("The certificate holds")
    for words in ("any one of the 60 examples of 'patients'", "at 0.001", "which ones were is secret"):
        assert words in " ".join(out.split())
    for part in ("promised", "about whom", "whom to trust", "spent by", "assuming", "not covered", "checked"):
        assert any(line.startswith(part) for line in out.splitlines()), part
    assert max(map(len, out.splitlines())) <= 110
    assert out.count("NO ") == 1, "what no file can prove"


def test_the_file_alone_will_do_and_it_is_said_what_was_not_checked(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (here / "alone.json").write_bytes((run / "certificate.json").read_bytes())
    assert sordino(monkeypatch, "verify", "alone.json") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "NO model: there is no model.safetensors beside it" in out
    assert "NO ledger: it says that it was counted" in out


def test_json_is_one_object_with_every_price(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert sordino(monkeypatch, "verify", str(run), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verified"], found["stands"]) == (True, True)
    names = [each["accountant"] for each in found["prices"]]
    assert names == sorted(set(names), key=names.index)
    assert {"sordino rdp", "sordino pld", "dp-accounting rdp", "dp-accounting pld"} <= set(names)


def test_what_does_not_hold_is_one_line_and_2(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for arguments, says in (
        (["none.json"], "there is no none.json"),
        ([str(here)], "or the directory of a complete run"),
        ([str(run), "--ledger", "none.db"], "there is no ledger"),
        ([str(run), "--public-key", "none.pem"], "the key none.pem cannot be read"),
        ([str(run), "--registry", "-", "--json"], "give the entry a file"),
        ([str(run / "run.json")], "it does not say its format"),
        ([str(run), "--registry", "no/such/folder/entry.yaml"], "entry.yaml"),
    ):
        assert sordino(monkeypatch, "verify", *arguments) == 2
        assert says in refused(capsys)
    file = run / "certificate.json"
    file.write_text(file.read_text().replace('"units": 60', '"units": 61'))
    for more in ([], ["--json"], ["--registry", "-"]):
        assert sordino(monkeypatch, "verify", str(run), *more) == 2
        assert "something in it was changed" in refused(capsys)


def test_a_claim_that_is_void_can_be_made_to_fail(
    toy: tuple[Tensor, Tensor], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    given: dict[str, Any] = {"method": "dp-sgd", "epochs": 1, "noise_multiplier": 4.0, "delta": 1e-3}
    sd.train(nn.Linear(10, 3), cross_entropy, toy, out=here / "run", seed=1, accountant="rdp", **given)
    assert sordino(monkeypatch, "verify", "run") == 0
    assert "PROMISES NOTHING" in capsys.readouterr().out
    assert sordino(monkeypatch, "verify", "run", "--must-stand") == 2
    assert "VOID: the run used a known seed" in refused(capsys)
    assert sordino(monkeypatch, "verify", "run", "--registry", "entry.yaml") == 2
    assert "nothing to register" in refused(capsys)
    assert not (here / "entry.yaml").exists()


def test_the_registry_s_entry_goes_to_a_file_or_is_printed(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert sordino(monkeypatch, "verify", str(run), "--registry", "entry.yaml") == 0
    assert capsys.readouterr().out.startswith("The certificate holds")
    assert sordino(monkeypatch, "verify", str(run), "--registry", "-") == 0
    assert capsys.readouterr().out == (here / "entry.yaml").read_text()


def test_verifying_needs_no_training_code() -> None:
    """Nothing of what trains is even loaded."""
    code = (
        "import sys, sordino.verifying.telling, sordino.verifying.deployment;"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('sordino.') and m.split('.')[1] in "
        "('gate', 'training', 'federated', 'noise', 'gradients', 'data', 'runs', 'clipping', 'terms')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
