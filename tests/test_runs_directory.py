"""The directory of a run: what a command finds in it, and that the key of a run goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from conftest import sordino
from sordino.runs import RunDirectory, closing
from test_runs_closing import RUNS, trained

Toy = tuple[Tensor, Tensor]


def killed_at_the_end(run: Any, toy: Toy, out: Path, **more: Any) -> None:
    """What a kill between "complete" and the deletion of the checkpoint leaves."""

    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing, "delete_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            run(toy, out, **more)
    assert RunDirectory(out).is_complete
    assert (out / "checkpoint/state.safetensors").exists()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("resume", "line"), [(True, "is complete"), (False, "not empty")])
def test_the_next_command_deletes_the_key_of_a_complete_run(
    run: Any, resume: bool, line: str, toy: Toy, tmp_path: Path
) -> None:
    killed_at_the_end(run, toy, tmp_path / "run")
    with pytest.raises(ValueError, match=line):
        run(toy, tmp_path / "run", resume=resume)
    assert not (tmp_path / "run/checkpoint").exists()
    assert RunDirectory(tmp_path / "run").is_complete


@pytest.mark.parametrize(
    "command",
    [
        ["train", "digits", "--noise-multiplier", "1", "--delta", "1e-5", "--out", "run"],
        ["train", "digits", "--noise-multiplier", "1", "--delta", "1e-5", "--out", "run", "--resume"],
        ["federate", "digits", "--rounds", "2", "--out", "run"],
        ["reproduce", "adadp-gmm", "--out", "run"],
    ],
    ids=lambda command: " ".join(command),
)
def test_any_command_into_the_directory_deletes_it(
    command: list[str], toy: Toy, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def recipe(*_: Any) -> None:
        raise KeyboardInterrupt

    killed_at_the_end(trained, toy, here / "run")
    monkeypatch.setattr("sordino.recipes.frame.Workshop.__call__", recipe)
    assert sordino(monkeypatch, *command) == 2
    assert not (here / "run/checkpoint").exists()


def test_a_checkpoint_that_was_kept_on_purpose_stays(toy: Toy, tmp_path: Path) -> None:
    run = trained(toy, tmp_path / "run", keep_checkpoint=True)
    assert run.summary["checkpoint_kept"] is True
    with pytest.raises(ValueError, match="complete"):
        trained(toy, tmp_path / "run", resume=True)
    assert (tmp_path / "run/checkpoint/state.safetensors").exists()
    assert trained(toy, tmp_path / "other").summary["checkpoint_kept"] is False


def test_what_a_run_left_before_its_first_checkpoint_goes_too(toy: Toy, tmp_path: Path) -> None:
    """Half a file may hold a whole key; also if the next run does not get far either."""
    folder = tmp_path / "run/checkpoint"
    folder.mkdir(parents=True)
    (folder / ".state.safetensors.tmp").write_bytes(b"key")
    (folder / "constants.safetensors").write_bytes(b"constants")
    with pytest.raises(ValueError, match="batch of 5000"):
        trained(toy, tmp_path / "run", batch_size=5000)
    assert not folder.exists()


def test_a_folder_of_somebody_elses_is_left_alone(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "run/checkpoint").mkdir(parents=True)
    (tmp_path / "run/checkpoint/mine").touch()
    (tmp_path / "run/run.json").write_text('{"status": "complete"}')
    with pytest.raises(ValueError, match="not empty"):
        trained(toy, tmp_path / "run")
    assert (tmp_path / "run/checkpoint/mine").exists()


def test_a_history_that_lost_lines_its_checkpoint_knows_is_refused(toy: Toy, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create()
    directory.append_history({"step": 1})
    with pytest.raises(ValueError, match=r"history.jsonl is shorter than .*: put it back, or start afresh"):
        directory.cut_history(directory.history_size() + 1)
    assert directory.cut_history(directory.history_size()) == [{"step": 1}]
