"""Shared fixtures: small real data and small models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

torch.set_num_threads(2)


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


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")
