"""A run killed with SIGKILL at a random moment and resumed is bit for bit the uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from conftest import cross_entropy
from sordino.federated import federate
from sordino.runs import RunDirectory

COMMAND = [
    sys.executable, "-m", "sordino.cli.main", "train", "digits", "--epsilon", "3", "--delta", "1e-5",
    "--accountant", "rdp", "--seed", "3",
]  # fmt: skip
METHODS = {
    "dp-adam": ["--epochs", "150", "--set", "target_quantile=0.5", "--set", "average=0.5"],
    "dp-ftrl": ["--epochs", "60", "--set", "restart_every=20", "--set", "target_quantile=0.8"],
    "adadp": ["--epochs", "60", "--set", "online=true", "--set", "freeze_after=30"],
    "composed": [
        "--epochs", "12", "--batch-size", "16", "--set", "noise=banded:40", "--set", "clip=quantile:0.8",
        "--set", "rate=constant:0.3",
    ],
}  # fmt: skip


FEDERATE = [
    sys.executable, "-m", "sordino.cli.main", "federate", "digits", "--seed", "3", "--rounds", "40",
    "--clients", "30", "--per-round", "6", "--engine", "looped",
]  # fmt: skip
FEDERATIONS = {
    "adabest": ["--workers", "2", "--store", "file", "--partition", "dirichlet:0.3"],
    "dp-ftrlm": [
        "--server", "dp-ftrlm", "--noise-multiplier", "1", "--delta", "1e-3", "--accountant", "rdp",
        "--set", "restart_every=3",
    ],
}  # fmt: skip
MORE_FEDERATIONS = {
    "scaffold-adadp": ["--algorithm", "scaffold", "--local", "adadp", "--workers", "2", "--store", "file"],
    "feddyn-dropping-out": ["--algorithm", "feddyn", "--drop-out", "0.3", "--over-selection", "1.5"],
    "dp-adabest": [
        "--noise-multiplier", "1", "--delta", "1e-3", "--accountant", "rdp", "--workers", "2", "--store", "file",
    ],
    "dp-fedavg-banded": [
        "--noise-multiplier", "1", "--delta", "1e-3", "--accountant", "rdp", "--set", "noise=banded:5",
    ],
    "dp-fedavg-buffered": [
        "--noise-multiplier", "1", "--delta", "1e-3", "--accountant", "rdp", "--set", "noise=buffered:3,horizon=15",
        "--set", "threshold=0.1", "--participation", "separated:3",
    ],
    "dp-fedavg-separated": [
        "--server", "dp-ftrl", "--noise-multiplier", "1", "--delta", "1e-3", "--accountant", "rdp",
        "--participation", "separated:3",
    ],
}  # fmt: skip
COMMANDS = {
    **{method: [*COMMAND, "--method", method, *more] for method, more in METHODS.items()},
    **{name: [*FEDERATE, *more] for name, more in (FEDERATIONS | MORE_FEDERATIONS).items()},
    "short": [*COMMAND, "--method", "dp-adam", "--epochs", "5"],
}
NOT_OF_THE_RUN = {"seconds", "peak_memory_mib"}  # but of the machine


def launch(out: Path, method: str) -> subprocess.Popen[bytes]:
    # One thread: many short parallel regions on a machine that is busy otherwise wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    resume = ["--resume"] if out.exists() and any(out.iterdir()) else []
    return subprocess.Popen(
        [*COMMANDS[method], "--out", str(out), *resume],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def finish(out: Path, method: str) -> None:
    process = launch(out, method)
    assert process.wait(timeout=300) == 0


def kill_after(out: Path, method: str, history_lines: int, delay: float) -> bool:
    """Kill a run a little after it has logged so many lines; False if it was done before."""
    process = launch(out, method)
    history = out / "history.jsonl"
    while process.poll() is None:
        if history.exists() and history.read_bytes().count(b"\n") >= history_lines:
            time.sleep(delay)
            if process.poll() is None:
                workers = children_of(process.pid)
                os.kill(process.pid, signal.SIGKILL)
                for worker in workers:  # which a parent that is killed cannot end
                    wait_for_the_end_of(worker)
            break
        time.sleep(0.002)
    return process.wait() == -signal.SIGKILL


def children_of(process: int) -> list[int]:
    known = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in known.read_text().split()] if known.exists() else []


def wait_for_the_end_of(process: int, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while Path(f"/proc/{process}/stat").exists():
        assert time.monotonic() < until, "a worker outlived the run"
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return  # ended, and nobody asked how
        time.sleep(0.01)


def results(out: Path) -> tuple[object, ...]:
    summary = json.loads((out / "run.json").read_text())
    certificate = json.loads((out / "certificate.json").read_text())
    clients = out / "clients.json"
    return (
        (out / "model.safetensors").read_bytes(),
        (out / "history.jsonl").read_bytes(),
        {name: value for name, value in summary.items() if name not in NOT_OF_THE_RUN},
        {name: value for name, value in certificate.items() if name not in ("created", "digest")},
        clients.read_bytes() if clients.exists() else None,
    )


def check(folder: Path, method: str, points: int, seed: int) -> int:
    """Cut runs at random points, some of them twice; return how many were really cut."""
    chance = random.Random(seed)
    finish(folder / "whole", method)
    expected = results(folder / "whole")
    cut = 0
    for point in range(points):
        out = folder / f"cut{point}"
        for _ in range(chance.choice([1, 1, 2])):
            cut += kill_after(out, method, chance.randrange(0, 38), chance.uniform(0, 0.05))
        run = out / "run.json"
        if not run.exists() or json.loads(run.read_text())["status"] != "complete":
            finish(out, method)
        assert results(out) == expected
        assert not (out / "checkpoint").exists()
    return cut


@pytest.mark.parametrize("name", ["dp-ftrl", "composed", "adabest"])
def test_a_sample(name: str, tmp_path: Path) -> None:
    """What has most to put back: trees, bands and a threshold that moves, and clients in processes and files of their
    own."""
    assert check(tmp_path, name, points=1, seed=1) >= 1


@pytest.mark.parametrize("file", ["certificate.json", "clients.json", "run.json", "model.safetensors"])
def test_a_federation_stopped_before_one_of_its_last_files_still_writes_all(
    file: str, tmp_path: Path, toy: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, resume: bool = False) -> None:
        model = nn.Linear(10, 3)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        federate(
            model, cross_entropy, toy, rounds=3, clients=6, per_round=2, batch_size=5, engine="looped", workers=1,
            seed=1, out=tmp_path / name, resume=resume,
        )  # fmt: skip

    write_json = RunDirectory.write_json

    def stopping(directory: RunDirectory, name: str, content: dict[str, Any]) -> None:
        if name == file and content.get("status") != "running":
            raise KeyboardInterrupt
        write_json(directory, name, content)

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_json", stopping)
        if file == "model.safetensors":
            patch.setattr(RunDirectory, "write_model", stopped)
        with pytest.raises(KeyboardInterrupt):
            run("cut")
    assert not (tmp_path / "cut" / file).exists() or file == "run.json"
    run("cut", resume=True)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def killed_at_points(folder: Path, kind: str, most: int, every: int) -> list[tuple[int, str, str]]:
    """Where the run was killed: the number of the change to a file it was about to make, its name, and the status."""
    program = Path(__file__).with_name("kill_points.py")
    command = [sys.executable, str(program), str(folder), kind, str(most), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [(change, name, status) for change, name, status in json.loads(done.stdout)]


@pytest.mark.parametrize("kind", ["train", "federate"])
def test_no_kill_at_a_sample_of_points_leaves_a_key_or_half_a_run(kind: str, tmp_path: Path) -> None:
    found = killed_at_points(tmp_path, kind, most=20, every=6)
    assert {status for _, _, status in found} == {"none", "running", "complete"}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["train", "federate"])
def test_no_kill_at_any_point_leaves_a_key_or_half_a_run(kind: str, tmp_path: Path) -> None:
    """Before every single change to a file, the last deletion included: never two runs in one history either."""
    found = killed_at_points(tmp_path, kind, most=1000, every=1)
    assert len(found) >= 40
    assert [status for _, _, status in found].count("complete") >= 5


def both_at_once(out: Path, method: str) -> None:
    codes = sorted(process.wait(timeout=300) for process in [launch(out, method), launch(out, method)])
    assert codes == [0, 2]  # exactly one wins
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    steps = [line.get("step", line.get("round")) for line in lines]
    assert steps == sorted(set(steps))  # of one run only
    assert not (out / "checkpoint").exists()
    assert not (out / ".lock").exists()


def test_of_two_commands_at_once_into_one_directory_exactly_one_wins(tmp_path: Path) -> None:
    both_at_once(tmp_path / "run", "short")


@pytest.mark.soak
@pytest.mark.parametrize("method", ["dp-adam", "adabest", "dp-ftrlm"])
def test_of_two_that_resume_at_once_exactly_one_wins(method: str, tmp_path: Path) -> None:
    finish(tmp_path / "whole", method)
    assert kill_after(tmp_path / "run", method, 5, 0.0)
    both_at_once(tmp_path / "run", method)
    assert results(tmp_path / "run") == results(tmp_path / "whole")


@pytest.mark.soak
@pytest.mark.parametrize("name", FEDERATIONS | MORE_FEDERATIONS)
def test_ten_random_points_of_a_federation(name: str, tmp_path: Path) -> None:
    assert check(tmp_path, name, points=10, seed=2) >= 10


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_twenty_random_points(method: str, tmp_path: Path) -> None:
    assert check(tmp_path, method, points=20, seed=2) >= 20
