"""Federated training as a whole: the same result however it is run, faults, resuming, and privacy for whole clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from sordino.data import load
from sordino.data.partitions import Random
from sordino.federated import OwnLoop, federate
from sordino.federated.algorithms import ALGORITHMS
from sordino.federated.rounds import Workplace
from sordino.runs import Checkpoint, conductor

LOSS = nn.CrossEntropyLoss(reduction="none")
DIGITS = load("digits")


def small() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def start(model: nn.Module | None = None, data: Any = None, **settings: Any) -> sd.Run:
    usual: dict[str, Any] = {
        "rounds": 6,
        "clients": 20,
        "per_round": 6,
        "batch_size": 8,
        "local_epochs": 1,
        "seed": 3,
    }
    usual |= {"engine": "stacked", "partition": "dirichlet:0.3,spread=0.4"}
    return federate(model or small(), LOSS, DIGITS.train if data is None else data, **{**usual, **settings})


def theta(run: sd.Run) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# The result does not depend on how it was run ---------------------------------------------------------------


@pytest.mark.parametrize("local", ["sgd", "adadp"])
@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"scaffold-m"}))
def test_processes_and_engines_give_the_same_model(algorithm: str, local: str) -> None:
    """Bit for bit where the kernels are the same. Engines add the terms of a gradient in another order: float32 sums of
    some hundred terms differ by 1e-6 of their size, and training on for some dozens of steps by a few times that."""
    settings: dict[str, Any] = {"algorithm": algorithm, "local": local, "rounds": 3}
    one = theta(start(**settings))
    assert torch.equal(one, theta(start(**settings, workers=2)))
    for engine in ("debug", "mapped") if local == "sgd" else ("debug",):
        other = theta(start(**{**settings, "engine": engine}))
        assert torch.allclose(one, other, rtol=0, atol=2e-5), engine
    assert not torch.allclose(one, theta(start(**{**settings, "seed": 4})), atol=1e-3)


def test_chunks_do_not_change_the_result() -> None:
    whole = theta(start(chunk=6))
    for chunk in (1, 4):
        assert torch.allclose(whole, theta(start(chunk=chunk)), rtol=0, atol=2e-5)


def test_dropout_is_drawn_from_the_streams_of_clients() -> None:
    def model() -> nn.Module:
        net = small()
        return nn.Sequential(*list(net), nn.Dropout(0.3))

    one = start(model(), engine="auto")
    two = start(model(), engine="auto", workers=2)
    assert one.summary["engine"] == "looped"
    assert torch.equal(theta(one), theta(two))


def test_training_learns_and_the_run_tells_what_it_did() -> None:
    run = start(rounds=25, local_epochs=3, holdout=4, test=DIGITS.test, evaluations=5)
    assert run.metrics["test_accuracy"] > 0.85
    assert run.metrics["holdout_accuracy"] > 0.8
    assert run.metrics["covered"] is False
    assert [line["round"] for line in run.history] == list(range(1, 26))
    assert sum("test_accuracy" in line for line in run.history) == 5
    assert run.epsilon == float("inf")
    assert run.summary["holdout"] == 4
    assert run.summary["clients"] == 20


def test_holdout_clients_never_train() -> None:
    rows: list[np.ndarray] = [np.arange(i, 1437, 24) for i in range(24)]
    touched: set[int] = set()
    real = Workplace._finished

    def recorded(self: Workplace, chunk: Any, *rest: Any) -> Any:
        for client in chunk.clients:
            touched.update(self.population.rows(client).tolist())
        return real(self, chunk, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workplace, "_finished", recorded)
        start(partition=rows, clients=20, holdout=4, per_round=20, rounds=2)
    owners = {row % 24 for row in touched}
    assert len(owners) == 20
    assert touched == {row for row in range(1437) if row % 24 in owners}


def test_adabest_without_correction_is_plain_averaging_bit_for_bit() -> None:
    ours = theta(start(algorithm=sd.AdaBest(mu=0.0, beta=0.0)))
    assert torch.equal(ours, theta(start(algorithm=sd.FedAvg(weighted=False))))


def test_scaffold_in_two_forms() -> None:
    """SCAFFOLD/m is SCAFFOLD for clients of one size."""
    same: dict[str, Any] = {"partition": "iid", "clients": 9, "batch_size": 16}
    same["data"] = tuple(t[:1431] for t in DIGITS.train)
    one, two = (theta(start(algorithm=a, decay=0.9, **same)) for a in ("scaffold", "scaffold-m"))
    assert torch.allclose(one, two, rtol=0, atol=2e-5)
    assert not torch.allclose(one, theta(start(algorithm="fedavg", decay=0.9, **same)), atol=1e-3)


def test_clients_that_tune_themselves_keep_their_rate_or_not() -> None:
    kept = start(local="adadp", rounds=12, rate=0.01, decay=1.0)
    fresh = start(local="adadp", rounds=12, rate=0.01, decay=1.0, keep_rates=False)
    assert kept.history[-1]["client_rates"][-1] > 0.02
    assert "client_rates" not in fresh.history[-1]
    assert not torch.equal(theta(kept), theta(fresh))


# Who takes part ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [sd.Poisson(0.3), sd.FixedOrder(5), sd.Shuffled(5, every=None), sd.Separated(4, separation=2)]
)
def test_other_participation(how: Any) -> None:
    run = start(participation=how)
    assert len(run.history) == 6
    assert run.summary["participation"]["kind"] == type(how).__name__


def test_a_loop_that_fails_for_everybody_is_refused_before_anything_is_spent() -> None:
    loops: list[Any] = [lambda *_: None, lambda theta: theta, lambda *_: 1 / 0]
    for broken in loops:
        with pytest.raises(ValueError, match="made-up rows"):
            private(local=OwnLoop(broken), algorithm="fedavg")
    with pytest.raises(ValueError, match="OwnLoop"):
        start(local=own, algorithm="fedavg")
    with pytest.raises(ValueError, match="nobody was left in round 1"):
        start(data=(DIGITS.train[0], DIGITS.train[1] + 70), engine="looped")
    nowhere = DIGITS.train[0] * torch.nan
    diverged = start(data=(nowhere, DIGITS.train[1]), rounds=2)  # that is no error of the program: it goes on
    assert all(line["participants"] == 0 for line in diverged.history)


def test_a_row_belongs_to_one_client() -> None:
    parts = [np.arange(100), np.arange(99, 200), np.arange(200, 300)]
    settings: dict[str, Any] = {"partition": parts, "clients": 3, "per_round": 2}
    with pytest.raises(ValueError, match="two clients"):
        private(**settings)
    start(**settings)
    with pytest.raises(ValueError, match="whole numbers"):
        start(partition=[[0.5, 1.5], [2.0, 3.0]], clients=2, per_round=1)


def test_thresholds_do_not_run_away_and_too_much_noise_is_said() -> None:
    with pytest.warns(UserWarning, match="outweighs"):
        run = private(noise_multiplier=8.0, rounds=40)
    assert max(line["threshold"] for line in run.history) <= 1.0


# Faults -----------------------------------------------------------------------------------------------------


def own(theta_d: Tensor, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
    """One gradient step on all the rows of a client, as a user would write it."""
    if len(targets) == 121:
        return theta_d[:-1]  # a client of another make
    net = small()
    nn.utils.vector_to_parameters(theta_d, net.parameters())
    order = torch.randperm(len(targets), generator=generator)
    gradients = torch.autograd.grad(LOSS(net(inputs[order]), targets[order]).mean(), list(net.parameters()))
    return theta_d - 0.1 * torch.cat([g.flatten() for g in gradients])


def test_ones_own_loop_and_a_wrong_shape() -> None:
    parts = [np.arange(i * 120, (i + 1) * 120) for i in range(11)] + [np.arange(1316, 1437)]
    run = start(local=OwnLoop(own), algorithm="fedavg", partition=parts, clients=12, per_round=12, rounds=3)
    assert all(list(line["left_out"]) == ["11"] for line in run.history)
    assert "shape (1210,)" in run.history[0]["left_out"]["11"]
    plain = start(
        algorithm="fedavg",
        partition=parts[:11],
        clients=11,
        per_round=11,
        rounds=3,
        batch_size=120,
        decay=1.0,
    )
    assert torch.allclose(theta(run), theta(plain), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="corrects the gradients"):
        start(local=OwnLoop(own), algorithm="adabest")


# Resuming ---------------------------------------------------------------------------------------------------


class Crash(Exception):
    pass


CASES: dict[str, dict[str, Any]] = {
    "adabest": {"algorithm": "adabest", "workers": 2},
    "file": {"algorithm": "feddyn", "store": "file"},
    "scaffold": {"algorithm": "scaffold", "local": "adadp"},
    "fedadam": {"algorithm": "fedadam"},
    "private": {"algorithm": "adabest", "noise_multiplier": 1.0, "delta": 1e-3, "workers": 2},
    "tree": {
        "algorithm": sd.FedAvg(server=sd.Ftrl(momentum=0.9)),
        "noise": sd.Tree(restart_every=None),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    settings = {**CASES[case], "rounds": 9, "test": DIGITS.test, "evaluations": 3}
    whole = start(out=tmp_path / "whole", **settings)

    def crash(seen: Any) -> None:
        if seen.now.number == 6:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conductor, "_CHECKPOINTS", 3)  # the last before the crash is of round 3
        with pytest.raises(Crash):
            start(out=tmp_path / "cut", observe=crash, **settings)
    saved = Checkpoint.load(tmp_path / "cut/checkpoint")
    assert saved is not None
    assert saved.state["step"] == 3
    again = start(out=tmp_path / "cut", resume=True, **settings)
    assert torch.equal(theta(whole), theta(again))
    assert whole.history == again.history
    assert whole.epsilon == again.epsilon
    assert not (tmp_path / "cut/checkpoint").exists()
    assert json.loads((tmp_path / "cut/run.json").read_text())["status"] == "complete"
    with pytest.raises(ValueError, match="complete"):
        start(out=tmp_path / "cut", resume=True, **settings)


def test_another_run_cannot_be_resumed(tmp_path: Path) -> None:
    def crash(seen: Any) -> None:
        raise Crash

    with pytest.raises(Crash):
        start(out=tmp_path / "cut", observe=crash)
    with pytest.raises(ValueError, match="algorithm changed"):
        start(out=tmp_path / "cut", resume=True, algorithm="fedavg")


# Privacy for whole clients -----------------------------------------------------------------------------------


def private(**settings: Any) -> sd.Run:
    return start(**{"noise_multiplier": 1.0, "delta": 1e-3, "rounds": 4, **settings})


# Populations that do not fit ----------------------------------------------------------------------------------


def test_random_partitions_are_functions_of_the_seed() -> None:
    one, two, other = (start(partition=Random(), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(theta(one), theta(two))
    assert not torch.equal(theta(one), theta(other))
