"""What a run writes down at its end, who may read it, and that its key goes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy, sordino
from sordino.federated import federate
from sordino.gate import Door
from sordino.runs import RunDirectory, closing
from sordino.training import train

Toy = tuple[Tensor, Tensor]


def trained(toy: Toy, out: Path | None, **more: Any) -> Any:
    given: dict[str, Any] = {"method": sd.dp_sgd(), "epochs": 2, "batch_size": 12, "noise_multiplier": 1.0}
    given |= {"delta": 1e-3, "accountant": "rdp", "out": out, "progress": False, "test": toy}
    return train(nn.Linear(10, 3), cross_entropy, toy, **given | more)


def federated(toy: Toy, out: Path | None, **more: Any) -> Any:
    given: dict[str, Any] = {"rounds": 3, "clients": 6, "per_round": 3, "batch_size": 5, "local_epochs": 1}
    given |= {"noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp", "workers": 1, "engine": "looped"}
    given |= {"test": toy}
    return federate(nn.Linear(10, 3), cross_entropy, toy, out=out, progress=False, **given | more)


RUNS = [trained, federated]


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


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.usefixtures("no_umask")
def test_everything_in_a_checkpoint_is_for_the_owner_only_whatever_the_umask(
    run: Any, toy: Toy, tmp_path: Path
) -> None:
    more = {"algorithm": "scaffold", "store": "file"} if run is federated else {}
    run(toy, tmp_path / "run", keep_checkpoint=True, **more)
    folder = tmp_path / "run/checkpoint"
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()}
    assert {"state.safetensors", "constants.safetensors", "releases.txt"} <= set(modes)
    assert ("clients.f32" in modes) is (run is federated)
    assert set(modes.values()) == {"0o600"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def lists_of_numbers(content: Any) -> Iterator[Any]:
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    if isinstance(content, list) and any(isinstance(part, int) for part in content):
        yield content
    for part in parts:
        yield from lists_of_numbers(part)


@pytest.mark.parametrize("more", [{}, {"noise_multiplier": None, "delta": None}], ids=["private", "not"])
def test_whose_rows_are_whose_is_not_written_down(more: dict[str, Any], toy: Toy, tmp_path: Path) -> None:
    parts = [list(range(0, 31)), list(range(31, 40)), [40], list(range(41, 60))]
    run = federated(toy, tmp_path / "run", clients=None, partition=parts, **more)
    assert run.summary["partition"] == "given as lists, 4 clients"
    assert list(lists_of_numbers(json.loads((tmp_path / "run/run.json").read_text()))) == []


@pytest.mark.parametrize("run", RUNS)
def test_time_and_memory_of_a_private_run_are_coarse_and_not_covered(run: Any, toy: Toy) -> None:
    summary = run(toy, None).summary
    assert summary["seconds"] in {1, 2, 5, 10, 20, 50, 100}
    memory = summary["peak_memory_mib"]
    assert memory == 2 ** (int(memory).bit_length() - 1)
    assert summary["seconds_and_memory"]["covered"] is False


def test_time_and_memory_of_other_runs_are_exact(toy: Toy) -> None:
    summary = federated(toy, None, noise_multiplier=None, delta=None).summary
    assert summary["seconds"] == round(summary["seconds"], 3)
    assert "seconds_and_memory" not in summary


@pytest.mark.parametrize("run", RUNS)
def test_lines_with_measures_on_held_out_rows_say_that_they_are_not_covered(
    run: Any, toy: Toy, tmp_path: Path
) -> None:
    run(toy, tmp_path / "run", evaluations=1)
    lines = [json.loads(line) for line in (tmp_path / "run/history.jsonl").read_text().splitlines()]
    assert {"test_loss" in line for line in lines} == {True, False}
    for line in lines:
        assert ("covered" in line) is ("test_loss" in line)
        assert line.get("covered", False) is False


def test_a_resumed_run_is_charged_under_its_old_name(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    original = Door.__call__

    def noting(gate: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(gate.charged_as)
        if gate.step == 7 and len(names) == 8:
            raise KeyboardInterrupt
        return original(gate, *args, **kwargs)

    monkeypatch.setattr(Door, "__call__", noting)
    with pytest.raises(KeyboardInterrupt):
        trained(toy, tmp_path / "run", seed=1)
    trained(toy, tmp_path / "run", seed=1, resume=True)
    assert len(set(names)) == 1
    trained(toy, tmp_path / "other", seed=1)
    assert len(set(names)) == 2
