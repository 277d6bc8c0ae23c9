"""How what clients send comes together, against a plain loop over clients whose updates are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.federated import Conditions, OwnLoop
from sordino.federated.aggregate import Tally
from sordino.federated.rounds import Finished

PARTS = [np.arange(0, 9), np.arange(9, 11), np.arange(11, 30), np.arange(30, 31), np.arange(31, 60)]


def updates_of(inputs: Tensor) -> list[Tensor]:
    """What each client sends, by its own rows: the cloud model has three numbers for each of ten, and three more."""
    return [told(inputs[torch.from_numpy(part)]) for part in PARTS]


def told(rows: Tensor) -> Tensor:
    return torch.cat([rows.mean(0).repeat(3), rows.square().mean(0)[:3]])


def own_loop(theta: Tensor, inputs: Tensor, targets: Tensor, generator: Any) -> Tensor:
    return theta - told(inputs)


def failing(*sizes: int) -> OwnLoop:
    """Clients of these sizes fail: the first of them raises, others return what is not finite."""

    def loop(theta: Tensor, inputs: Tensor, targets: Tensor, generator: Any) -> Tensor:
        if len(inputs) == sizes[0]:
            raise RuntimeError("my disk is full")
        return theta * torch.nan if len(inputs) in sizes else own_loop(theta, inputs, targets, generator)

    return OwnLoop(loop)


def start(toy: Any, **options: Any) -> tuple[sd.Run, list[Any]]:
    seen: list[Any] = []

    def look(each: Any) -> None:
        mean = {name: value.clone() for name, value in each.mean.items()}
        seen.append((each.participants, mean, each.now.participants))

    usual: dict[str, Any] = {
        "rounds": 3, "per_round": 3, "partition": PARTS, "local": OwnLoop(own_loop), "seed": 1, "observe": look,
        "algorithm": sd.FedAvg(weighted=False),
    }  # fmt: skip
    return sd.federate(nn.Linear(10, 3), cross_entropy, toy, **{**usual, **options}), seen


def plain_mean(updates: Sequence[Tensor], clients: Sequence[int], weighted: bool) -> Tensor:
    total, weight = torch.zeros_like(updates[0]), 0.0
    for client in clients:
        share = float(len(PARTS[client])) if weighted else 1.0
        total, weight = total + share * updates[client], weight + share
    return total / weight


# Nothing promised -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_the_open_mean_is_that_of_a_plain_loop(toy: Any, weighted: bool, chunk: int) -> None:
    run, seen = start(toy, algorithm=sd.FedAvg(weighted=weighted), chunk=chunk)
    for participants, mean, count in seen:
        assert len(set(participants)) == count == 3
        torch.testing.assert_close(mean["update"], plain_mean(updates_of(toy[0]), participants, weighted))
    assert [line["participants"] for line in run.history] == [3, 3, 3]


@pytest.mark.parametrize("weighted", [True, False])
def test_the_open_mean_is_over_whoever_delivers(toy: Any, weighted: bool) -> None:
    run, seen = start(
        toy, algorithm=sd.FedAvg(weighted=weighted), local=failing(2, 19), participation=sd.FixedOrder(5)
    )
    for (participants, mean, count), line in zip(seen, run.history, strict=True):
        assert (sorted(participants), count) == ([0, 3, 4], 3)
        torch.testing.assert_close(mean["update"], plain_mean(updates_of(toy[0]), [0, 3, 4], weighted))
        assert line["left_out"] == {
            "1": "raised RuntimeError: my disk is full",
            "2": "returned numbers that are not finite",
        }


def test_a_round_without_anybody_moves_nothing(toy: Any) -> None:
    run, seen = start(toy, conditions=Conditions(slowness=1.0, deadline=1e-9))
    assert all((participants, mean, count) == ((), {}, 0.0) for participants, mean, count in seen)
    assert len({line["cloud_norm"] for line in run.history}) == 1


def test_where_everybody_raises_the_run_ends_with_the_first_reason(toy: Any) -> None:
    def loop(theta: Tensor, inputs: Tensor, targets: Tensor, generator: Any) -> Tensor:
        if len(inputs) != 5:  # not so on the made-up rows
            raise RuntimeError("my disk is full")
        return theta

    with pytest.raises(
        ValueError, match="nobody was left in round 1: the first of its clients raised Runtime"
    ):
        start(toy, local=OwnLoop(loop))


def test_a_tally_knows_errors_of_the_program_from_other_reasons() -> None:
    part = Finished((3, 4), {}, {}, torch.ones(2, 1), torch.tensor([[5.0], [6.0]]), {4: "raised it"})
    tally = Tally({})
    assert list(tally.counted(iter([part]))) == [part]
    assert (tally.clients, tally.examples, tally.left_out) == ([3], [5.0], {4: "raised it"})
    assert not tally.all_raised
    assert Tally({4: "raised it"}).all_raised
    assert not Tally({4: "raised it", 5: "dropped out"}).all_raised
    assert not Tally({}).all_raised


# Promised -------------------------------------------------------------------------------------------------------

EVERYBODY: dict[str, Any] = {"participation": sd.Poisson(1.0), "noise_multiplier": 0.0, "clip": sd.Fixed(2.0)}


def clipped(update: Tensor) -> Tensor:
    return update * min(1.0, 2.0 / float(update.norm()))


@pytest.mark.parametrize(
    ("how", "there"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"local": failing(2, 19)}, [0, 3, 4]),
        ({"local": failing(29)}, [0, 1, 2, 3]),
        ({"conditions": Conditions(slowness=1e-9, deadline=1e-9)}, []),
    ],
    ids=["all", "two fail", "the largest fails", "nobody is in time"],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_the_private_mean_divides_by_the_planned_number_whoever_fails(
    toy: Any, how: dict[str, Any], there: list[int], weighted: bool
) -> None:
    """And a client counts as a client, however many rows it has."""
    run, seen = start(toy, algorithm=sd.FedAvg(weighted=weighted), **EVERYBODY, **how)
    expected = sum((clipped(updates_of(toy[0])[client]) for client in there), torch.zeros(33)) / 5
    for participants, mean, count in seen:
        assert (participants, count) == ((), 5.0)
        torch.testing.assert_close(mean["update"], expected, rtol=1e-5, atol=1e-6)
    assert all(not {"left_out", "participants"} & line.keys() for line in run.history)


def test_with_half_the_clients_expected_the_divisor_is_half(toy: Any) -> None:
    _, seen = start(toy, **{**EVERYBODY, "participation": sd.Poisson(0.5)}, rounds=12)
    updates, shares = [clipped(update) for update in updates_of(toy[0])], []
    for _, mean, count in seen:
        assert count == 2.5
        found = torch.linalg.lstsq(torch.stack(updates).T, mean["update"][:, None] * 2.5).solution.flatten()
        torch.testing.assert_close(
            found, found.round(), rtol=0, atol=1e-3
        )  # each is there whole or not at all
        shares.append(found.round())
    assert 0.2 < float(torch.stack(shares).mean()) < 0.8
