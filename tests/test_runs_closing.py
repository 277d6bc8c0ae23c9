"""What a run writes down at its end, who may read it, and that its key goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.federated import federate
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
