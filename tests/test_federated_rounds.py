"""The work of a round: who fails is left out, and nobody else notices."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino.federated.machinery as module
from sordino.federated import Population
from sordino.federated.rounds import Workplace
from test_federate import DIGITS, start, theta


def faulty(trouble: str, bad: int = 5) -> tuple[Any, dict[str, Any]]:
    """A population in which one client is broken."""
    parts = [np.arange(i, 1437, 12) for i in range(12)]
    inputs, targets = DIGITS.train[0].clone(), DIGITS.train[1].clone()
    if trouble == "nan":
        inputs[parts[bad]] = torch.nan
    if trouble == "outside":
        targets[parts[bad]] = 77  # the loss raises
    population = Population.of(sd_examples(inputs, targets), parts)
    if trouble == "raises":

        def rows(client: int) -> np.ndarray:
            if client == bad:
                raise OSError("the disk of this client is gone")
            return parts[client]

        population = dataclasses.replace(population, rows=rows)
    return population, {"clients": None, "partition": "iid", "per_round": 12}


def sd_examples(inputs: Tensor, targets: Tensor) -> Any:
    from sordino.data import as_examples

    return as_examples((inputs, targets))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("trouble", "said"),
    [("nan", "not finite"), ("raises", "OSError: the disk"), ("outside", "raised")],
)
def test_a_broken_client_is_left_out_and_named(trouble: str, said: str, workers: int) -> None:
    data, settings = faulty(trouble)
    run = start(data=data, workers=workers, engine="looped", algorithm="fedavg", rounds=2, **settings)
    for line in run.history:
        assert line["participants"] == 11
        assert list(line["left_out"]) == ["5"]
        assert said in line["left_out"]["5"]
    assert theta(run).isfinite().all()
    assert run.summary["n"] == 12


def test_a_client_that_fails_does_not_move_a_digit_of_what_others_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batched convolutions of five clients and of one differ in their last digits."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    first = [p.detach().clone() for p in net.parameters()]
    sent: list[dict[int, Tensor]] = []
    real = Workplace.finished

    def spied(self: Any, chunk: Any, *rest: Any) -> Any:
        found = real(self, chunk, *rest)
        sent[-1] |= {found.clients[row]: found.sent["update"][row] for row in found.fine}
        return found

    for trouble in ("none", "outside"):
        data, settings = faulty(trouble)
        with torch.no_grad():
            for p, value in zip(net.parameters(), first, strict=True):
                p.copy_(value)
        sent.append({})
        with monkeypatch.context() as patch:
            patch.setattr(Workplace, "finished", spied)
            start(net, data, engine="mapped", chunk=6, workers=1, rounds=1, algorithm="fedavg", **settings)
    assert sorted(sent[0]) == list(range(12))
    assert sorted(sent[1]) == [client for client in range(12) if client != 5]
    assert all(torch.equal(sent[0][client], sent[1][client]) for client in sent[1])


def test_nothing_of_a_broken_client_is_kept() -> None:
    data, settings = faulty("nan")
    stores = []
    real = module.client_store  # type: ignore[attr-defined]

    def spied(*args: Any) -> Any:
        stores.append(real(*args))
        return stores[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "client_store", spied)
        run = start(data=data, algorithm="adabest", rounds=3, **settings)
    _, _, known = stores[0].read(range(12))
    assert known.tolist() == [client != 5 for client in range(12)]
    assert run.summary["clients_with_state"] == 11
