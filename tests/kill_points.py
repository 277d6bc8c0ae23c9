"""Kill a run before each of its calls that change a file, and see what the next command makes of it.

A program of its own, started by `test_kill_and_resume.py`: it loads torch once, never uses it itself, and forks a
process for every run, so that a hundred kills take seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sordino import training
from sordino.federated import federate
from sordino.methods import adadp
from sordino.runs import closing, conductor

CHANGES = ("mkdir", "replace", "write", "fsync", "unlink", "rmdir", "ftruncate", "posix_fallocate")


def start(kind: str, out: Path, resume: bool) -> Any:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(60, 10, generator=generator)
    data = inputs, inputs[:, :3].argmax(1)
    model = nn.Linear(10, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    loss = nn.CrossEntropyLoss(reduction="none")
    usual: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "seed": 1,
        "accountant": "rdp",
        "out": out,
    }
    usual |= {"progress": False, "resume": resume}
    conductor._CHECKPOINTS = 2
    closing.drawn = lambda *_: b"a figure"  # type: ignore[attr-defined]
    if kind == "train":
        method = adadp(tol=0.5, target_quantile=0.5)
        return training.train(model, loss, data, method=method, epochs=2, batch_size=20, **usual)
    return federate(
        model, loss, data, rounds=4, clients=6, per_round=3, local_epochs=1, batch_size=5, workers=1, engine="looped",
        algorithm="scaffold", store="file", **usual
    )  # fmt: skip


def in_a_fork(function: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except ValueError as error:
            code = 2
            (Path(sys.argv[1]) / "last-error").write_text(str(error))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def counted(count: Callable[[str], None]) -> None:
    """``count`` is called before each call that changes a file."""
    for name in CHANGES:
        original = getattr(os, name)

        def counting(*args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            count(_name)
            return _original(*args, **kwargs)

        setattr(os, name, counting)


def changes_of(kind: str, out: Path) -> list[str]:
    """What a run that nobody kills does to its files."""

    def run() -> None:
        done: list[str] = []
        counted(done.append)
        start(kind, out, False)
        out.with_suffix(".changes").write_text(json.dumps(done))

    assert in_a_fork(run) == 0
    found: list[str] = json.loads(out.with_suffix(".changes").read_text())[:-1]
    return found


def kill_before(kind: str, out: Path, change: int) -> None:
    def run() -> None:
        done = 0

        def count(_: str) -> None:
            nonlocal done
            if done == change:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1

        counted(count)
        start(kind, out, False)

    assert in_a_fork(run) == -signal.SIGKILL


def check(kind: str, out: Path, whole: Path) -> str:
    """Whatever was left, the next command makes a whole run of it, and no key stays."""
    status = json.loads((out / "run.json").read_text())["status"] if (out / "run.json").exists() else "none"
    begun = out.exists() and any(out.iterdir())
    if begun and status != "none":  # a run from the start does not go where another one was
        assert in_a_fork(lambda: start(kind, out, False)) == 2
        assert "not empty" in (out.parent / "last-error").read_text()
    key = (out / "checkpoint").exists()
    if status == "complete":
        assert not key, "a key was left after a command"
    code = in_a_fork(lambda: start(kind, out, begun))
    assert code == (2 if status == "complete" else 0), (code, status)
    assert not (out / "checkpoint").exists(), "a key was left behind"
    assert not list(out.glob(".*")), list(out.iterdir())
    for name in ("history.jsonl", "model.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    return status


def main(folder: Path, kind: str, most: int, every: int) -> None:
    """About ``most`` points of a run, all of those at its end among them, or of these every so many."""
    changes = changes_of(kind, folder / "whole")
    # All from the end of the last step on, where the run is closed, and before that as many as there is room for.
    closing = changes[::-1].index("write")
    ends = list(range(len(changes) - closing, len(changes)))
    before = range(len(changes) - closing)
    spread = (
        before if most - closing >= len(before) else before[:: max(1, len(before) // max(1, most - closing))]
    )
    found = []
    for change in sorted({1, *sorted({*ends, *spread})[::-every]}):  # one before there is a checkpoint, too
        out = folder / f"cut{change}"
        kill_before(kind, out, change)
        try:
            found.append((change, changes[change], check(kind, out, folder / "whole")))
        except BaseException as error:
            error.add_note(f"killed before change {change} of {len(changes)}, {changes[change]}")
            raise
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
