"""Clients in processes of their own: in order, and without those who never come back."""

from __future__ import annotations

import copy
import dataclasses
import os
import signal
import time
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from sordino.federated import OwnLoop
from sordino.federated.pool import Pool, _Process
from sordino.federated.rounds import Broadcast, Chunk, Finished
from test_federate import own, private, start, theta
from test_federated_user_level import recorded_sums


def never(theta_d: Tensor, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
    if len(targets) == 121:
        time.sleep(60)
    return own(theta_d, inputs, targets, generator)


def dies(theta_d: Tensor, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
    if len(targets) == 121:
        os.kill(os.getpid(), signal.SIGKILL)
    return own(theta_d, inputs, targets, generator)


@pytest.mark.parametrize(("loop", "patience"), [(never, 0.5), (dies, None)])
def test_a_client_that_never_comes_back(loop: Any, patience: float | None) -> None:
    parts = [np.arange(i * 120, (i + 1) * 120) for i in range(11)] + [np.arange(1316, 1437)]
    settings: dict[str, Any] = {"algorithm": "fedavg", "partition": parts, "clients": 12, "per_round": 12}
    settings["rounds"] = 2
    began = time.monotonic()
    run = start(local=OwnLoop(loop), workers=2, patience=patience, **settings)
    assert time.monotonic() - began < 40
    assert all(line["left_out"] == {"11": "never came back"} for line in run.history)
    assert torch.equal(theta(run), theta(start(local=OwnLoop(own), **settings)))


def test_a_slow_client_costs_no_other_its_place() -> None:
    """One client's time must not decide about another: it is late alone."""
    parts = [np.arange(i * 120, (i + 1) * 120) for i in range(4)] + [np.arange(1316, 1437)]
    base = {"algorithm": "fedavg", "partition": parts, "clients": 5, "participation": sd.Poisson(1.0)}
    base |= {"clip": sd.Fixed(0.05), "rounds": 1, "patience": 1.5, "workers": 2}
    (late,) = recorded_sums(local=OwnLoop(never), **base)
    (wrong,) = recorded_sums(local=OwnLoop(own), **base)  # of another shape, so it does not count either
    assert torch.equal(late, wrong)
    assert private(local=OwnLoop(own), **base).summary["chunk"] == 1


@dataclasses.dataclass(frozen=True, eq=False)
class Bench:
    """A place of work where clients take as long as they are told to."""

    seconds: dict[int, float]

    def finished(self, chunk: Chunk, sent: Broadcast) -> Finished:
        time.sleep(self.seconds.get(chunk.clients[0], 0.0))
        numbers = torch.tensor([[float(client)] for client in chunk.clients])
        return Finished(chunk.clients, {"update": numbers + sent.theta}, {}, numbers, numbers)

    def why(self, reason: str) -> str:
        return reason


def test_results_come_in_the_order_of_the_chunks_however_long_each_takes() -> None:
    nothing = torch.zeros(1, 1)
    chunks = [Chunk((client,), {}, nothing, nothing, (0,)) for client in range(6)]
    bench: Any = Bench({0: 0.4, 3: 0.2})
    with Pool(bench, workers=2, patience=None) as pool:
        for theta_d in (torch.zeros(1), torch.ones(1)):  # what a round is about reaches every worker
            found = list(pool(chunks, Broadcast(theta_d, {}, cast(Any, None))))
            assert [part.clients for part in found] == [(client,) for client in range(6)]
            assert [float(part.sent["update"]) for part in found] == [c + float(theta_d) for c in range(6)]


def test_the_chunk_of_a_lost_process_is_done_again_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a whole: convolutions of fewer clients at a time come to other last digits."""
    lost: list[int | None] = []
    real = _Process.give

    def give(self: _Process, chunk: Chunk) -> None:
        if not lost and len(chunk.clients) == 5:
            lost.append(self.process.pid)
            os.kill(self.process.pid or 0, signal.SIGSTOP)  # so that it is not done before it is gone
            real(self, chunk)
            self.process.kill()
        else:
            real(self, chunk)

    monkeypatch.setattr(_Process, "give", give)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    settings: dict[str, Any] = {"engine": "mapped", "rounds": 1, "per_round": 10, "clients": 12}
    again, alone = copy.deepcopy(model), copy.deepcopy(model)
    one = theta(start(again, workers=2, **settings))
    assert len(lost) == 1
    assert torch.equal(one, theta(start(model, **settings)))
    assert not torch.equal(one, theta(start(alone, chunk=1, **settings)))
