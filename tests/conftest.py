"""Shared fixtures: small real data and small models."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.cli.main import main
from sordino.gradients import Engine
from sordino.steps import Plan

torch.set_num_threads(
    1
)  # `make test` runs two processes, and models here are small; a test that needs two asks


@pytest.fixture(autouse=True)
def _errors_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that cannot be computed counts as zero, which would hide our own mistakes as well."""
    monkeypatch.setattr(Engine, "debug", True)


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
