"""`torchrun -m sordino train`: one run, one charge, one voice; and a process that is killed costs no more than time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sordino.cli.main import main
from sordino.ledger import LedgerFile
from test_kill_and_resume import children_of, results

PRIVATE = ["train", "digits", "--epsilon", "3", "--delta", "1e-5", "--accountant", "rdp"]
TRAIN = [*PRIVATE, "--seed", "3"]
LONG = [*TRAIN, "--method", "dp-adam", "--epochs", "60", "--set", "target_quantile=0.5"]


def started(count: int, *arguments: str) -> subprocess.Popen[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    several = torchrun if count > 1 else []
    return subprocess.Popen(
        [sys.executable, *several, "-m", "sordino", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Its exit code, what it printed, and what Sordino said on stderr, without torchrun's own words."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, re.findall(r"^sordino: .*$", err, re.MULTILINE)


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Process ids by rank."""
    found = {}
    for child in children_of(process.pid):
        environment = Path(f"/proc/{child}/environ").read_text().split("\0")
        if rank := next((each for each in environment if each.startswith("RANK=")), None):
            found[int(rank.removeprefix("RANK="))] = child
    return found


def kill_rank(rank: int, out: Path, lines: int, *arguments: str) -> tuple[int, str, list[str]]:
    """Kill one of two processes when the history has so many lines, and wait for the end of the other."""
    process = started(2, *arguments, "--out", str(out))
    history = out / "history.jsonl"
    while not history.exists() or history.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    os.kill(ranks_of(process)[rank], signal.SIGKILL)
    return said(process)


def finish(count: int, out: Path, *arguments: str) -> None:
    assert said(started(count, *arguments, "--out", str(out)))[0] == 0


def test_two_processes_are_one_run_with_one_charge(tmp_path: Path) -> None:
    ledger, out = tmp_path / "ledger.db", tmp_path / "run"
    counted = ["--ledger", str(ledger), "--data-name", "digits of ours", "--json", "--epochs", "3"]
    code, printed, warnings = said(started(2, *PRIVATE, *counted, "--out", str(out)))
    assert (code, warnings) == (0, [])
    summary = json.loads(printed)  # exactly one object
    assert (summary["shares"], summary["seeded"]) == (2, False)
    steps = [json.loads(line)["step"] for line in (out / "history.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert not (out / "checkpoint").exists()
    (run,) = LedgerFile(ledger).runs("digits of ours")
    assert run.run == summary["ledger"]["run"]
    certificate = json.loads((out / "certificate.json").read_text())
    with pytest.raises(SystemExit) as ended:
        verify(out / "certificate.json")
    assert not ended.value.code
    assert certificate["guarantee"]["epsilon"] == summary["epsilon"] <= 3


def verify(certificate: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sordino", "verify", str(certificate)])
        main()


@pytest.mark.parametrize(
    "wrong",
    [
        ["train", "digits", "--epsilon", "3"],
        ["train", "nothing-such.csv", "--epsilon", "3", "--delta", "1e-5"],
        ["federate", "digits", "--rounds", "2"],
    ],
    ids=["arguments", "data", "another command"],
)
def test_a_refusal_is_said_once_and_ends_all(wrong: list[str], tmp_path: Path) -> None:
    process = started(2, *wrong, "--out", str(tmp_path / "run"))
    _, err = process.communicate(timeout=60)
    assert len(re.findall(r"^sordino: .*$", err, re.MULTILINE)) == 1, err
    assert set(re.findall(r"exitcode *: (-?\d+)", err)) <= {
        "2",
        "-2",
        "-15",
    }  # its own, or told to end by torchrun
    assert "exitcode  : 2" in err
    assert not (tmp_path / "run").exists()


def test_a_rank_that_is_killed_ends_the_run_which_goes_on_with_any_number(tmp_path: Path) -> None:
    """With one process as with two, bit for bit: the same model, history and certificate."""
    finish(1, tmp_path / "whole", *LONG, "--shares", "2")
    expected = results(tmp_path / "whole")
    for rank, count in ((1, 1), (0, 2)):
        out = tmp_path / f"killed{rank}"
        before = time.monotonic()
        code, printed, lines = kill_rank(rank, out, 9, *LONG)
        assert time.monotonic() - before < 60
        assert (code, printed) == (1, "")
        assert len(lines) == (rank == 1), lines  # rank 0 says what happened, if it can
        assert all("resume" in line for line in lines)
        assert json.loads((out / "run.json").read_text())["status"] == "running"
        finish(count, out, *LONG, "--resume")
        assert results(out) == expected


@pytest.mark.soak
@pytest.mark.parametrize("method", ["dp-ftrl", "adadp", "oso"])
def test_ranks_killed_at_many_points(method: str, tmp_path: Path) -> None:
    # Shares are said: one that is killed before its first checkpoint has released nothing, and begins anew.
    command: list[Any] = [*TRAIN, "--method", method, "--epochs", "60", "--shares", "2"]
    finish(1, tmp_path / "whole", *command)
    expected = results(tmp_path / "whole")
    for lines in (0, 1, 7, 20, 33):
        for rank, count in ((0, 1), (1, 2), (1, 3)):
            out = tmp_path / f"{lines}-{rank}-{count}"
            kill_rank(rank, out, lines, *command)
            finish(count, out, *command, *(["--resume"] if any(out.iterdir()) else []))
            assert results(out) == expected
