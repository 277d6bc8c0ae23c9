"""Runs that are killed at random moments, on one ledger: nothing that was released is uncounted."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import traceback
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conftest import cross_entropy
from sordino.federated import federate
from sordino.gate import Door
from sordino.ledger import LedgerFile
from sordino.ledger.account import spent_so_far
from sordino.privacy.events import event_from_json, event_to_json
from sordino.runs import closing
from sordino.training import train

STEPS = 60  # of a run; a loop of runs goes on until it is killed
ROWS = 60

# What is killed -----------------------------------------------------------------------------------------------


def _loop(folder: Path, seed: int, ready: Connection) -> None:
    """One run after the other: that of the process before goes on, or is left as it is."""
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        vars(closing)["drawn"] = lambda *_: b""  # a figure takes longer than the run
        _write_down_releases(folder / "released.jsonl")
        chance = random.Random(seed)
        ready.send("begun")
        number = len(list(folder.glob("run-*")))
        last = folder / f"run-{number - 1}-{_kind(number - 1)}"
        if number and chance.random() < 0.75 and not _is_complete(last):
            _run(folder, last, resume=True)
        while True:
            _run(folder, folder / f"run-{number}-{_kind(number)}", resume=False)
            number += 1
    except BaseException:
        (folder / "failed.txt").write_text(traceback.format_exc())
        raise


def _kind(number: int) -> str:
    return ("train", "train", "federate", "ftrl")[number % 4]


def _is_complete(run: Path) -> bool:
    try:
        return bool(json.loads((run / "run.json").read_text())["status"] == "complete")
    except OSError:
        return False


def _run(folder: Path, out: Path, resume: bool) -> None:
    kind = out.name.rpartition("-")[2]
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(ROWS, 10, generator=generator)
    rows = inputs, inputs[:, :3].argmax(1)
    out.mkdir(exist_ok=True)
    given: dict[str, Any] = {
        "out": out, "resume": resume and any(out.iterdir()), "ledger": folder / "ledger.db", "progress": False,
        "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp",
    }  # fmt: skip
    if kind == "federate":
        federate(
            nn.Linear(10, 3), cross_entropy, rows, rounds=STEPS, clients=6, per_round=3, workers=1,
            data_name="users", **given,
        )  # fmt: skip
    elif kind == "ftrl":
        train(
            nn.Linear(10, 3),
            cross_entropy,
            rows,
            method="dp-ftrl",
            epochs=10,
            batch_size=10,
            **given,
            data_name="toy",
        )
    else:
        train(
            nn.Linear(10, 3),
            cross_entropy,
            rows,
            method="dp-sgd",
            epochs=10,
            batch_size=10,
            **given,
            data_name="toy",
        )


def _write_down_releases(journal: Path) -> None:
    """Every release is on the disk before anybody has it."""
    release = Door._release

    def noted(door: Door, at: Any) -> Any:
        step = door.step
        released = release(door, at)
        key, event = door.terms.charge(step)
        account: Any = getattr(door.payer, "_account", None)
        line = json.dumps([account.run, key, step, event_to_json(event)]) + "\n"
        descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
        os.close(descriptor)
        return released

    Door._release = noted  # type: ignore[method-assign,assignment]


# And what holds after each kill ---------------------------------------------------------------------------------


def _check(folder: Path) -> tuple[int, int]:
    """How many releases were made and how many were paid for; raises if one was not."""
    book = LedgerFile(folder / "ledger.db")
    book.verify()
    journal = folder / "released.jsonl"
    released = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    paid = 0
    with book._file.reading() as entries:
        runs = {run for run, *_ in released}
        for run in runs:
            spent = spent_so_far(entries.of_run(run))
            paid += spent.charges
            for key, event in {(key, json.dumps(event)) for of, key, _, event in released if of == run}:
                assert not spent.charge(key, event_from_json(json.loads(event))), (
                    f"{key} of {run} was not paid for"
                )
    return len({(run, key) for run, key, *_ in released}), paid


@pytest.fixture
def _found_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


def killed(folder: Path, kills: int, seed: int, longest: float) -> Counter[str]:
    """Kill so many loops of runs, each within ``longest`` seconds, and look at the ledger after each."""
    context = multiprocessing.get_context("forkserver")
    # One process loads everything, has one thread, and is forked for every run.
    context.set_forkserver_preload([__name__, "dp_accounting", "scipy.stats", "scipy.optimize"])
    chance, found = random.Random(seed), Counter[str]()
    for number in range(kills):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_loop, args=(folder, seed + number, theirs))
        process.start()
        theirs.close()
        assert ours.recv() == "begun"
        process.join(chance.uniform(0, longest))
        process.kill()
        process.join()
        ours.close()
        assert process.exitcode == -9, (folder / "failed.txt").read_text()
        if (folder / "ledger.db").exists() and (folder / "ledger.db").stat().st_size:
            released, paid = _check(folder)
            assert paid >= released
            found["released"], found["paid"] = released, paid
    found["kills"] = kills
    found["runs"] = len(list(folder.glob("run-*")))
    found["complete"] = sum(_is_complete(run) for run in folder.glob("run-*"))
    return found


@pytest.mark.usefixtures("_found_by_processes")
def test_after_eight_kills_at_random_everything_released_is_in_the_ledger(tmp_path: Path) -> None:
    found = killed(tmp_path, 8, seed=3, longest=0.8)
    assert found["released"] > 10  # a busy machine is slow to start
    assert found["paid"] >= found["released"]


@pytest.mark.soak
@pytest.mark.usefixtures("_found_by_processes")
def test_after_two_hundred_kills_at_random_everything_released_is_in_the_ledger(tmp_path: Path) -> None:
    found = killed(tmp_path, 200, seed=4, longest=1.2)
    print(dict(found))
    assert found["released"] > 1000
    assert found["complete"] > 10
    records = LedgerFile(tmp_path / "ledger.db").runs()
    assert {record.kind for record in records} == {"run", "federation"}
    assert {record.state for record in records} == {"open", "closed"}
