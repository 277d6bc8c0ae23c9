"""What commands share: settings by name, and being told to end."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from conftest import sordino
from sordino.cli.common import parsed_settings, told_to_end_is_interrupted
from sordino.gate import Door
from sordino.runs import Checkpoint
from test_runs_writing import FEDERATE, TRAIN, left, start

Toy = tuple[Tensor, Tensor]


@pytest.mark.parametrize("command", [TRAIN, [*FEDERATE, "--noise-multiplier", "1", "--delta", "1e-3"]])
def test_being_told_to_end_is_ctrl_c(
    command: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    before, original = signal.getsignal(signal.SIGTERM), Door.__call__

    def told(gate: Any, *args: Any, **kwargs: Any) -> Any:
        if gate.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(gate, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Door, "__call__", told)
        assert sordino(patch, *command) == 2
    err = capsys.readouterr().err
    assert (
        "sordino: interrupted; to go on from the last checkpoint, give the same command with --out run" in err
    )
    assert "Traceback" not in err
    assert signal.getsignal(signal.SIGTERM) is before
    assert Checkpoint.load(here / "run/checkpoint") is not None
    assert left(here) == []
    assert sordino(monkeypatch, *command, "--resume") == 0
    assert json.loads((here / "run/run.json").read_text())["status"] == "complete"


def test_handlers_are_set_by_commands_in_the_main_thread_only(toy: Toy, tmp_path: Path) -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def elsewhere() -> None:
        with told_to_end_is_interrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]
    original = Door.__call__

    def noted(*args: Any, **options: Any) -> Any:
        seen.append(signal.getsignal(signal.SIGTERM))
        return original(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Door, "__call__", noted)
        start(toy, tmp_path / "run")  # the library leaves them alone
    assert set(seen) == {before}


def test_settings_by_name_are_numbers_words_or_nothing() -> None:
    given = ["tol=0.1", "restart_every=2", "online=True", "threshold=none", "keep=hat"]
    assert parsed_settings(given) == {
        "tol": 0.1, "restart_every": 2, "online": True, "threshold": None, "keep": "hat",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"--set takes NAME=VALUE, not 'tol'"):
        parsed_settings(["tol"])
    with pytest.raises(ValueError, match=r"--set tol was given twice: give it once"):
        parsed_settings(["tol=1", "tol=1"])
