"""The command line, in this process: what it prints, writes and exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import sordino

CHEAP = ["--accountant", "rdp", "--epochs", "2"]
PAID = ["--epsilon", "3", "--delta", "1e-5"]


def test_train_prints_what_matters(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "train", "digits", *PAID, *CHEAP, "--out", "run") == 0
    out, err = capsys.readouterr()
    for word in (
        "test accuracy",
        "epsilon",
        "delta              1e-05",
        "example of 1437",
        "run                run",
    ):
        assert word in out
    assert "rate" in err
    written = {p.name for p in (here / "run").iterdir()}
    assert written == {
        "run.json",
        "history.jsonl",
        "certificate.json",
        "model.safetensors",
        "report.png",
        "inputs.json",
    }


def test_two_batches_a_step_are_not_called_one(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "train", "digits", *PAID, *CHEAP, "--method", "adadp", "--out", "run") == 0
    assert "18 noisy batches in 9 steps" in capsys.readouterr().out
    assert '"error"' in (here / "run/history.jsonl").read_text()


def test_json_is_exactly_one_object(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "train", "digits", *PAID, *CHEAP, "--json", "--method", "dp-adam") == 0
    out, _ = capsys.readouterr()
    summary = json.loads(out)
    assert summary["method"]["name"] == "dp-adam"
    assert summary["epsilon"] <= 3
    assert (here / summary["run"] / "run.json").exists()


def test_settings_and_no_privacy(here: Path, monkeypatch: Any, capsys: Any) -> None:
    code = sordino(
        monkeypatch, "train", "digits", "--method", "sgd", "--set", "learning_rate=0.25", "--set", "momentum=0.9",
        "--model", "linear", "--epochs", "2", "--json",
    )  # fmt: skip
    summary = json.loads(capsys.readouterr().out)
    assert code == 0
    assert summary["epsilon"] == "inf"
    assert summary["method"]["step"]["momentum"] == 0.9
    assert summary["model"] == "linear"


def test_npz_from_end_to_end(here: Path, monkeypatch: Any, capsys: Any) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5)).astype(np.float32)
    np.savez(here / "mine.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    assert sordino(monkeypatch, "train", "mine.npz", *PAID, *CHEAP, "--json") == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["data"], summary["n"]) == ("mine", 200)
    assert err.startswith(
        "sordino: warning: 2 classes, read from the labels: give classes (--classes) if that"
    )


def bad_files(folder: Path) -> None:
    (folder / "broken.npz").write_bytes(b"not a zip")
    np.savez(folder / "words.npz", x=np.zeros((3, 2), np.float32), y=np.array(["a", "b", "c"]))
    np.savez(folder / "uneven.npz", x=np.zeros((3, 2), np.float32), y=np.zeros(4, np.int64))
    (folder / "normed.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))\n"
        "def narrow():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
        "def wrong():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))\n"
        "def none():\n"
        "    return 3\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit", *PAID], "digits"),
        (["nowhere.npz", *PAID], "nowhere.npz"),
        (["broken.npz", *PAID], "broken.npz"),
        (["words.npz", *PAID], "integer"),
        (["uneven.npz", *PAID], "uneven.npz"),
        (["digits"], "needs a budget"),
        (["digits", "--epsilon", "3"], "--delta"),
        (["digits", "--epsilon", "0", "--delta", "1e-5"], "epsilon"),
        (["digits", "--epsilon", "-1", "--delta", "1e-5"], "epsilon"),
        (["digits", "--epsilon", "nan", "--delta", "1e-5"], "epsilon"),
        (["digits", "--epsilon", "3", "--delta", "0"], "delta"),
        (["digits", "--epsilon", "3", "--delta", "1"], "delta"),
        (["digits", "--epsilon", "3", "--delta", "1e-5", "--noise-multiplier", "1"], "not both"),
        (["digits", "--noise-multiplier", "-1", "--delta", "1e-5"], "noise_multiplier"),
        (["digits", "--epsilon", "1e-7", "--delta", "1e-12", "--accountant", "moments"], "epsilon"),
        (["digits", *PAID, "--method", "dp-sdg"], "choose one of"),
        (["digits", *PAID, "--method", "sgd"], "without privacy"),
        (["digits", *PAID, "--set", "lr=1"], "no setting"),
        (["digits", *PAID, "--set", "learning_rate"], "NAME=VALUE"),
        (["digits", *PAID, "--set", "travel=1", "--set", "travel=2"], "twice"),
        (["digits", *PAID, "--set", "travel=-1"], "positive"),
        (["digits", *PAID, "--method", "adadp", "--set", "tol=0"], "tol"),
        (["digits", *PAID, "--method", "oso", "--set", "update=guess"], "sign or cosine"),
        (["digits", *PAID, "--method", "oso", "--set", "learning_rate=1e39"], "learning_rate"),
        (["digits", *PAID, "--set", "learning_rate=fast"], "learning_rate"),
        (["digits", *PAID, "--model", "resnet"], "model"),
        (["digits", *PAID, "--model", "normed.py:net"], "BatchNorm1d"),
        (["digits", *PAID, "--model", "normed.py:none"], "nn.Module"),
        (["digits", *PAID, "--model", "normed.py:narrow"], "10 scores"),
        (["digits", *PAID, "--model", "normed.py:wrong"], "cannot run on inputs"),
        (["digits", *PAID, "--batch-size", "5000"], "at most"),
        (["digits", *PAID, "--epochs", "0"], "epochs"),
        (["digits", *PAID, "--sampling", "random"], "there is no sampling"),
        (
            ["digits", *PAID, "--secure", "--seed", "1"],
            "--secure takes its randomness from the operating system",
        ),
        (["digits", *PAID, "--secure", "--seed", "1"], "leave out --seed"),
        (["digits", *PAID, "--device", "gpu"], "there is no device 'gpu' here: leave it out, or use cpu"),
        (["digits", *PAID, "--method", "dp-sgd", "--set", "lr=1"], "did you mean learning_rate?"),
        (["digits", *PAID, "--resume"], "--out"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_bad_input_gets_one_line_and_exit_code_2(
    here: Path, monkeypatch: Any, capsys: Any, arguments: list[str], message: str
) -> None:
    bad_files(here)
    before = sorted(here.rglob("*"))
    assert sordino(monkeypatch, "train", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1, err
    assert err.startswith("sordino: ")
    after = [p for p in sorted(here.rglob("*")) if "__pycache__" not in p.parts]
    assert after == before


def test_a_used_directory_is_not_overwritten(here: Path, monkeypatch: Any, capsys: Any) -> None:
    (here / "run").mkdir()
    (here / "run/precious.txt").write_text("mine")
    assert sordino(monkeypatch, "train", "digits", *PAID, *CHEAP, "--out", "run") == 2
    assert "not empty" in capsys.readouterr().err
    assert [p.name for p in (here / "run").iterdir()] == ["precious.txt"]


def test_help_and_version(monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "--help") == 0
    assert "train" in capsys.readouterr().out
    assert sordino(monkeypatch, "train", "--help") == 0
    assert "--epsilon" in capsys.readouterr().out
    assert sordino(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("sordino ")
    assert sordino(monkeypatch, "train", "digits", "--no-such-option") == 2
