"""Step rules against plain loops and golden values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sordino.rates import Constant, Scheduled
from sordino.steps import Adam, AdamWithoutSecondMoments, Sgd, StepRule


@dataclass(frozen=True)
class Answer:
    gradient: Tensor
    noise_std: float = 0.0
    threshold: float = 1.0
    probes = {}  # noqa: RUF012


def run(rule: StepRule, gradients: list[float], rate: float, noise_std: float = 0.0) -> list[float]:
    theta, answers = torch.zeros(1, dtype=torch.float64), iter(gradients)
    state, path = rule.start(theta), []
    for _ in gradients:
        rule.step(
            lambda theta, adapt=True: Answer(torch.tensor([next(answers)], dtype=torch.float64), noise_std),
            theta,
            rate,
            state,
        )
        path.append(float(theta))
    return path


def test_adam_wosm_golden_values() -> None:
    """ALGORITHMS.md D6: nu = 1, C = 1, B = 512."""
    path = run(AdamWithoutSecondMoments(), [1.0, -0.5, 2.0], 1e-3, noise_std=1 / 512)
    assert path == pytest.approx([-0.511997378573, -0.619786300378, -1.065658556258], abs=1e-11)


def test_adam_wosm_refuses_to_divide_by_no_noise() -> None:
    with pytest.raises(ValueError, match="needs some"):
        run(AdamWithoutSecondMoments(), [1.0], 1e-3, noise_std=0.0)


@pytest.mark.parametrize(
    ("rule", "peer"),
    [
        (Sgd(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (Sgd(0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (Adam(), lambda p: torch.optim.Adam(p, lr=0.1)),
        (Adam(0.8, 0.99), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99))),
    ],
    ids=["sgd", "momentum", "adam", "adam betas"],
)
def test_same_path_as_torch(rule: StepRule, peer: Callable[[list[Tensor]], torch.optim.Optimizer]) -> None:
    gradients = [1.0, -0.5, 2.0, 0.25, -3.0]
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser, expected = peer([theta]), []
    for g in gradients:
        theta.grad = torch.tensor([g], dtype=torch.float64)
        optimiser.step()
        expected.append(float(theta.detach()))
    assert run(rule, gradients, 0.1) == pytest.approx(expected, rel=1e-12)


def test_schedules() -> None:
    assert Constant(0.3).rate(7, {}) == 0.3
    cosine = Scheduled(2.0, "cosine", final=0.1)
    state = cosine.start(100)
    assert cosine.rate(0, state) == 2.0
    assert cosine.rate(50, state) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert cosine.rate(100, state) == pytest.approx(0.2)
    warm = Scheduled(1.0, "linear", warmup=0.1)
    state = warm.start(100)
    assert [round(warm.rate(s, state), 4) for s in (0, 9, 10)] == [round(1 / 11, 4), round(10 / 11, 4), 1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sgd(1.0),
        lambda: Sgd(-0.1),
        lambda: Adam(beta1=1.0),
        lambda: AdamWithoutSecondMoments(1.5),
        lambda: Constant(0.0),
        lambda: Constant(float("nan")),
        lambda: Scheduled(1.0, "square"),
        lambda: Scheduled(1.0, final=2.0),
    ],
)
def test_impossible_settings(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        make()
