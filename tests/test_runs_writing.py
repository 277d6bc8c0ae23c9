"""A full disk, a file that may not be written, and being told to end: one line, and a run that can go on."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import cross_entropy, sordino
from sordino.methods import dp_sgd
from sordino.runs import CannotWrite, RunDirectory, replace_file
from sordino.runs.writing import Lines
from sordino.training import train

Toy = tuple[Tensor, Tensor]


def start(toy: Toy, out: Path, **more: Any) -> Any:
    model = nn.Linear(10, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    given: dict[str, Any] = {"method": dp_sgd(), "epochs": 4, "batch_size": 12, "noise_multiplier": 1.0}
    given |= {"delta": 1e-3, "seed": 1, "accountant": "rdp", "out": out, "progress": False, "test": toy}
    return train(model, cross_entropy, toy, **given | more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    generator = torch.Generator().manual_seed(11)  # the rows of ``toy``
    inputs = torch.randn(60, 10, generator=generator)
    out = tmp_path_factory.mktemp("whole") / "run"
    start((inputs, inputs[:, :3].argmax(1)), out)
    return out


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, call: int, code: int) -> None:
    """The disk is full at this call of a function of ``os``, and at every later one."""
    original, calls = getattr(os, name), 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise OSError(code, os.strerror(code))
        return original(*args, **kwargs)

    monkeypatch.setattr(os, name, failing)


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(".tmp") or path.name == ".lock"]


# Which call of which function: files that are replaced, lines of the journal and of the history, and the closing.
POINTS = [("replace", n) for n in (1, 2, 3, 8, 22, 23, 24, 25)] + [("fsync", n) for n in (1, 2, 9)]
POINTS += [("write", n) for n in (2, 3, 17)]


@pytest.mark.parametrize(("name", "call"), POINTS, ids=lambda value: str(value))
def test_a_full_disk_names_the_file_and_leaves_a_run_that_goes_on(
    name: str, call: int, toy: Toy, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, name, call, errno.ENOSPC)
        with pytest.raises(CannotWrite) as caught:
            start(toy, tmp_path / "run")
    line = str(caught.value)
    assert str(tmp_path / "run") in line
    assert "could not be written (No space left on device): free some space, then " in line
    assert "\n" not in line
    assert left(tmp_path) == []
    start(toy, tmp_path / "run", resume=(tmp_path / "run").exists())
    for file in ("history.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()
    assert not (tmp_path / "run/checkpoint").exists()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EDQUOT, "free some of your quota"),
        (errno.EROFS, "make its file system writable"),
        (errno.EACCES, "make its directory writable"),
        (errno.ENXIO, "mend that"),
    ],
)
def test_the_line_says_what_to_do(
    code: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(tmp_path / "a", b"old")
    fail_at(monkeypatch, "replace", 1, code)
    with pytest.raises(CannotWrite, match=rf"/a could not be written \(.+\): {remedy}, then resume the run"):
        replace_file(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A real limit of the kernel's, and no made-up error: it takes a part of what is written and refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [300, 700, 1500, 2500])
def test_a_limit_of_the_systems_own_stops_a_run_which_then_goes_on(
    size: int, toy: Toy, whole: Path, tmp_path: Path
) -> None:
    with files_of_at_most(size), pytest.raises(CannotWrite, match="File too large"):
        start(toy, tmp_path / "run")
    assert left(tmp_path) == []
    for path in (tmp_path / "run").rglob("*"):
        if path.suffix in (".jsonl", ".txt"):
            assert path.read_bytes()[-1:] in (b"", b"\n")  # whole lines
    start(toy, tmp_path / "run", resume=True)
    assert (tmp_path / "run/history.jsonl").read_bytes() == (whole / "history.jsonl").read_bytes()


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines")
    lines.append("first")
    with files_of_at_most(9), pytest.raises(CannotWrite):
        lines.append("second")
    assert (tmp_path / "lines").read_text() == "first\n"
    with (tmp_path / "lines").open("a") as file:
        file.write("seco")  # what a kill has left
    assert lines.read() == ["first"]
    lines.append("second")
    assert lines.read() == ["first", "second"]


TRAIN = ["train", "digits", "--noise-multiplier", "1", "--delta", "1e-5", "--seed", "1", "--epochs", "2"]
TRAIN += ["--method", "dp-sgd", "--batch-size", "200", "--accountant", "rdp", "--out", "run"]
FEDERATE = [
    "federate",
    "digits",
    "--rounds",
    "3",
    "--clients",
    "10",
    "--per-round",
    "3",
    "--local-epochs",
    "1",
]
FEDERATE += ["--seed", "1", "--engine", "looped", "--workers", "1", "--out", "run"]


def test_the_command_says_it_in_one_line_with_code_2(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, "replace", 5, errno.ENOSPC)
        assert sordino(patch, *TRAIN) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sordino: ")]
    assert "could not be written (No space left on device)" in line
    assert line.endswith("(the same command with --out run --resume)")
    assert sordino(monkeypatch, *TRAIN, "--resume") == 0


@pytest.mark.figures
@pytest.mark.parametrize("command", [TRAIN, FEDERATE], ids=["train", "federate"])
def test_a_figure_that_could_not_be_written_is_drawn_by_a_resume(
    command: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write = RunDirectory.write

    def full(directory: RunDirectory, name: str, content: bytes) -> None:
        with files_of_at_most(100):
            write(directory, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write", full)  # what a figure is written with, and nothing else
        assert sordino(patch, *command) == 2
    err = capsys.readouterr().err
    assert "run/report.png could not be written (File too large)" in err
    assert left(here) == []
    assert json.loads((here / "run/run.json").read_text())["status"] == "running"
    assert sordino(monkeypatch, *command, "--resume") == 0
    assert (here / "run/report.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert sordino(monkeypatch, *command, "--resume") == 2  # now there is nothing left to do
    assert "complete" in capsys.readouterr().err


def test_a_figure_that_cannot_be_drawn_costs_nothing_but_the_figure(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino.runs.closing.drawn", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match="ZeroDivisionError.*sordino report"):
        start(toy, tmp_path / "run")
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "complete"
    assert not (tmp_path / "run/report.png").exists()
