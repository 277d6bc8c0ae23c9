"""The noise a plan needs, and what a run has spent so far."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from conftest import cross_entropy
from sordino import Fixed, FixedOrder, Gate, Online, Poisson, Tree
from sordino.clipping import ClippingPolicy
from sordino.noise import Gaussian, Mechanism
from sordino.privacy import Budget, price
from sordino.runs.spending import Spending
from sordino.terms import Terms


def planned(clip: ClippingPolicy, noise: Mechanism, **given: Any) -> tuple[float, float | None]:
    sampling = FixedOrder(10) if isinstance(noise, Tree) else Poisson(0.1)
    options: dict[str, Any] = {"budget": None, "noise_multiplier": None, "delta": None, "accountant": "rdp"}
    terms, delta = Terms(clip, noise, sampling, 100, 40).within(**options | given)
    return terms.multiplier, delta


def test_probes_are_part_of_what_the_noise_is_for() -> None:
    """Beside independent noise they share one release; under trees they are releases of their own, and cost more."""
    budget = Budget(3.0, 1e-5)
    alone, _ = planned(Fixed(1.0), Gaussian(), budget=budget)
    assert planned(Online(1.0), Gaussian(), budget=budget)[0] == alone
    tree = Tree(restart_every=None)
    alone, delta = planned(Fixed(1.0), tree, budget=budget)
    beside, _ = planned(Online(1.0), tree, budget=budget)
    assert delta == 1e-5
    assert beside > 1.0005 * alone
    probes = [probe.multiplier for probe in Online(1.0).probes(beside, 10.0)]
    cost = tree.over(FixedOrder(10), 100, 40).cost(40, beside, probes)
    assert 2.99 < price(cost, 1e-5, "rdp").epsilon <= 3.0


def test_what_is_missing_or_too_much_is_said() -> None:
    for given in ({}, {"budget": Budget(1.0, 1e-5), "noise_multiplier": 1.0}):
        with pytest.raises(ValueError, match="either a budget"):
            planned(Fixed(1.0), Gaussian(), **given)
    with pytest.raises(ValueError, match="needs a delta"):
        planned(Fixed(1.0), Gaussian(), noise_multiplier=1.0)
    assert planned(Fixed(1.0), Gaussian(), noise_multiplier=0.0) == (0.0, None)


@pytest.mark.parametrize("noise", [Gaussian(), Tree(restart_every=1)], ids=["gaussian", "tree"])
def test_what_is_spent_rises_to_the_total_and_is_what_the_ledger_holds(noise: Mechanism) -> None:
    sampling = FixedOrder(10) if isinstance(noise, Tree) else Poisson(0.1)
    data = torch.randn(100, 4), torch.zeros(100, dtype=torch.int64)
    gate = Gate(
        nn.Linear(4, 2), cross_entropy, data, clip=Fixed(1.0), noise_multiplier=2.0, sampling=sampling,
        noise=noise, steps=20, seed=1,
    )  # fmt: skip
    spent = Spending(gate.terms, 1e-5, "rdp")
    curve = [spent(calls) for calls in (1, 5, 10, 11, 20)]
    assert curve == sorted(curve)
    assert curve[-1] == pytest.approx(spent.total.epsilon)
    with pytest.raises(RuntimeError, match="does not hold what was planned"):
        spent.paid(gate.ledger)
    for _ in range(20):
        gate()
    assert spent.paid(gate.ledger) == gate.ledger.event
    assert price(gate.ledger.event, 1e-5, "rdp").epsilon == pytest.approx(spent.total.epsilon)


def test_without_noise_everything_is_spent_at_once() -> None:
    data = torch.randn(100, 4), torch.zeros(100, dtype=torch.int64)
    gate = Gate(
        nn.Linear(4, 2), cross_entropy, data, clip=Fixed(1.0), noise_multiplier=0.0, sampling=Poisson(0.1),
        steps=20,
    )  # fmt: skip
    assert Spending(gate.terms, None, "rdp")(1) == math.inf
