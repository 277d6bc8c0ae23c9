"""Shared fixtures: small real data and small models."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.cli.main import main
from sordino.gradients import Engine
from sordino.steps import Plan

# `make test` runs two processes, and the models here are small; a test that needs more threads asks for them.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of commands that tests start


@pytest.fixture(autouse=True, scope="session")
def _no_waiting() -> Iterator[None]:
    """Nobody pulls the plug here: syncing to the disk is what a run with a directory waits for most. And seeding
    devices that are not there formats the whole stack, at every step of a model with dropout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                patch.setattr(device, "manual_seed_all", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the user's cache holds must not decide whether tests pass, nor tests fill it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _counted_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests spend is nobody's: it does not go into the ledger of whoever runs them."""
    monkeypatch.delenv("SORDINO_LEDGER", raising=False)


@pytest.fixture(autouse=True)
def _errors_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that cannot be computed counts as zero, which would hide our own mistakes as well."""
    monkeypatch.setattr(Engine, "debug", True)


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A figure takes longer than the run it is of: only tests marked ``figures`` draw them."""
    if request.node.get_closest_marker("figures") is None:
        monkeypatch.setattr("sordino.runs.closing.drawn", lambda *_: b"a figure")


@pytest.fixture
def toy() -> tuple[Tensor, Tensor]:
    """Sixty rows of ten features in three classes."""
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(60, 10, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


@pytest.fixture
def small_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no data but what is bundled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    return tmp_path


def sordino(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The command line, in this process: its exit code."""
    monkeypatch.setattr(sys, "argv", ["sordino", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return int(exit_info.value.code or 0)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")


@dataclass(frozen=True)
class Answer:
    """What a field returns, made up."""

    gradient: Tensor
    noise_std: float = 0.0
    threshold: float = 1.0
    probes: Mapping[str, Any] = field(default_factory=dict)


def in_turn(*lists: Sequence[Any]) -> list[tuple[Any, ...]]:
    """As many cases as the longest list is long, in which every value of every list comes up.

    >>> in_turn("abc", [1, 2])
    [('a', 1), ('b', 2), ('c', 1)]
    """
    return [tuple(each[i % len(each)] for each in lists) for i in range(max(map(len, lists)))]


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def plan_of(**numbers: Any) -> Plan:
    """A plan with these numbers, and others that do not matter."""
    defaults: dict[str, Any] = {
        "parameters": 1, "steps": 100, "batches": 100, "batches_per_epoch": 10.0, "expected_batch": 1.0,
        "noise_multiplier": 1.0,
    }  # fmt: skip
    return Plan(**{**defaults, **numbers})


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes are no names: compressed ones hold the time, and two processes have to agree on what they collect."""
    return argname if isinstance(val, bytes) else None
