from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.ledger import LedgerFile

X = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
DATA = X, (X[:, 0] > 0).long()
loss = nn.CrossEntropyLoss(reduction="none")


def made(model: nn.Module, **given: Any) -> tuple[sd.PrivateLoop, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    usual: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 20,
        "budget": (3, 1e-3),
        "accountant": "rdp",
        "optimizer": optimizer,
    }
    usual |= given
    return sd.make_private(model, loss, usual.pop("data", DATA), **usual), optimizer


def test_the_loop_is_the_gate_by_hand_to_the_last_bit() -> None:
    model = nn.Linear(4, 2)
    by_hand = copy.deepcopy(model)
    private, optimizer = made(model, seed=1)
    for _ in private:
        optimizer.step()
    gate = sd.Gate(
        by_hand,
        loss,
        DATA,
        clip=sd.Fixed(1.0),
        noise_multiplier=private.gate.noise_multiplier,
        sampling=sd.Poisson(0.2),
        seed=1,
    )
    velocity = torch.zeros_like(gate.theta)
    for _ in range(10):
        velocity = 0.9 * velocity + gate().gradient
        gate.theta.sub_(velocity, alpha=0.5)
    torch.testing.assert_close(private.gate.theta, gate.theta, rtol=0, atol=1e-6)
    assert len(private) == 10


def test_noise_is_made_for_the_planned_steps_and_no_more_are_taken() -> None:
    private, optimizer = made(nn.Linear(4, 2))
    before = private.epsilon
    spent = []
    for _ in private:
        optimizer.step()
        spent.append(private.epsilon)
    assert before == 0 < spent[0] < spent[-1] <= 3
    assert spent[-1] > 2.9
    with pytest.raises(ValueError, match="all 10 planned steps are taken"):
        private.backward()
    assert private.gate.ledger.charges == 10


@pytest.mark.parametrize("counted", [True, False])
def test_a_gate_that_is_called_by_hand_keeps_to_the_plan_too(tmp_path: Path, counted: bool) -> None:
    given = {"ledger": tmp_path / "mine.db", "data_name": "people"} if counted else {}
    private, _ = made(nn.Linear(4, 2), **given)
    for _ in range(10):
        private.gate()
    with pytest.raises(ValueError, match="all 10 planned steps are taken"):
        private.gate()
    assert private.gate.ledger.charges == 10
    assert private.certificate["claim"]["stands"]


def test_what_was_released_beyond_the_plan_gets_no_certificate() -> None:
    private, _ = made(nn.Linear(4, 2))
    private.gate.payer = None
    for _ in range(11):
        private.gate()
    with pytest.raises(ValueError, match="released more than was planned"):
        _ = private.certificate
    private, _ = made(nn.Linear(4, 2))
    private.backward()
    private.gate.ledger.charge("something else", private.gate.charge_event)
    with pytest.raises(ValueError, match="released more than was planned"):
        _ = private.certificate


@pytest.mark.parametrize("sampling", ["poisson", "shuffled", "fixed-order"])
def test_a_certificate_can_be_had_at_every_step(sampling: str) -> None:
    private, _ = made(nn.Linear(4, 2), sampling=sampling, budget=(30, 1e-3), max_grad_norm=sd.Quantile())
    first = private.certificate["events"]
    for _ in private:
        assert private.certificate["events"] == first


def test_a_loop_that_stops_early_goes_on_where_it_was_and_is_certified_as_planned() -> None:
    private, _ = made(nn.Linear(4, 2))
    for number, _ in enumerate(private):
        if number == 3:
            break
    assert private.gate.step == 4
    assert private.certificate["guarantee"]["epsilon"] > private.epsilon
    assert sum(1 for _ in private) == 6


def test_the_certificate_can_be_verified() -> None:
    private, _ = made(nn.Linear(4, 2), rationale="a test")
    document = private.certificate
    assert sd.verify(document).epsilon <= 3
    assert "through the gate alone" in " ".join(document["assumptions"])
    assert document["claim"]["stands"]
    assert not made(nn.Linear(4, 2), seed=1)[0].certificate["claim"]["stands"]


def test_gradients_are_what_was_released() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    private, _ = made(model)
    released = private.backward()
    grads = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    torch.testing.assert_close(torch.cat(grads), released.gradient, rtol=0, atol=0)


def test_a_ledger_counts_the_plan_before_the_first_step(tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    with pytest.raises(ValueError, match="data_name"):
        made(nn.Linear(4, 2), ledger=file)
    private, _ = made(nn.Linear(4, 2), ledger=file, data_name="people")
    for _ in private:
        pass
    assert private.certificate["ledger"]["data"] == "people"
    ledger = LedgerFile(file)
    ledger.cap("people", epsilon=3.5, delta=1e-3)
    with pytest.raises(ValueError, match="people"):
        made(nn.Linear(4, 2), ledger=file, data_name="people")


def test_how_rows_of_a_table_were_made_follows_them_into_the_certificate(tmp_path: Path) -> None:
    def rows(obtained: str) -> Any:
        age = sd.Column("age", "number", low=0, high=99, obtained=obtained)
        schema = sd.Schema(sd.TargetColumn("y", labels=("no", "yes")), (age,))
        return sd.read({"age": list(range(100)), "y": ["no", "yes"] * 50}, schema=schema).train

    peeked, private, public = (
        made(nn.Linear(2, 2), data=rows(how))[0].certificate for how in ("peeked", "private", "public")
    )
    assert (peeked["claim"]["stands"], public["claim"]["stands"]) == (False, True)
    assert "--peek" in peeked["claim"]["caveat"]
    assert private["claim"]["stands"] is False
    assert "not counted here" in private["claim"]["caveat"]
    assert "names of the columns" in " ".join(public["assumptions"])
    file = tmp_path / "mine.db"
    counted, _ = made(nn.Linear(2, 2), data=rows("peeked"), ledger=file, data_name="people")
    assert not counted.certificate["claim"]["stands"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": "sgd"}, "one of torch.optim"),
        ({"optimizer": torch.optim.SGD(nn.Linear(4, 2).parameters(), lr=1)}, "not the model's"),
        ({"epochs": 0}, "epochs must be a positive number"),
        ({"budget": None}, "give either a budget"),
        ({"max_grad_norm": -1.0}, "threshold"),
    ],
)
def test_what_makes_no_sense_is_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(nn.Linear(4, 2), **given)
