"""Federated training as a whole: the same result however it is run, faults, resuming, and privacy for whole clients."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino as sd
import sordino.federated.federation as module
from sordino.data import load
from sordino.data.partitions import Random
from sordino.federated import Conditions, OwnLoop, Population, federate
from sordino.federated.algorithms import ALGORITHMS
from sordino.federated.rounds import Workplace
from sordino.federated.simulator import Simulator
from sordino.federated.user_level import UserGate
from sordino.privacy import recompute
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


def test_drop_outs_deadlines_and_over_selection() -> None:
    run = start(
        rounds=30, conditions=Conditions(drop_out=0.3, slowness=0.6, deadline=1.3, over_selection=1.5)
    )
    why = [reason for line in run.history for reason in line.get("left_out", {}).values()]
    assert {"dropped out", "missed the deadline"} <= set(why)
    assert all(line["participants"] + len(line.get("left_out", {})) == 9 for line in run.history)
    assert all(line["participants"] <= 6 for line in run.history)
    assert 0.2 < why.count("dropped out") / (30 * 9) < 0.4
    crowd = start(rounds=5, conditions=Conditions(over_selection=2.0))
    assert all(line["participants"] == 6 for line in crowd.history)
    assert all(set(line["left_out"].values()) == {"was not needed"} for line in crowd.history)
    same = start(
        partition="iid", rounds=60, local_epochs=1, conditions=Conditions(over_selection=2.0), clients=24
    )
    needed = [int(c) for line in same.history for c in line["left_out"]]
    assert 0.3 < sum(client < 12 for client in needed) / len(needed) < 0.7  # ties are broken by lot


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


def test_a_round_without_anybody_changes_nothing() -> None:
    run = start(rounds=3, clients=3, per_round=1, conditions=Conditions(drop_out=0.999))
    assert all(line["participants"] == 0 for line in run.history)
    assert torch.equal(theta(run), torch.cat([p.detach().flatten() for p in small().parameters()]))


# Faults -----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("trouble", ["nan", "raises", "outside"])
def test_under_privacy_nobody_knows_why_a_client_is_left_out(
    monkeypatch: pytest.MonkeyPatch, trouble: str, workers: int
) -> None:
    """Not even the simulator, so that no later line of code can show it."""
    reasons: list[str] = []
    real = Simulator.finished

    def spied(self: Any, *args: Any) -> Any:
        for part in real(self, *args):
            reasons.extend(part.failed.values())
            yield part

    monkeypatch.setattr(Simulator, "finished", spied)
    data, settings = faulty(trouble)
    start(data=data, workers=workers, engine="looped", rounds=2, noise_multiplier=1.0, delta=1e-2, **settings)
    assert reasons == ["", ""]


def test_a_client_without_rows_sends_nothing() -> None:
    parts = [np.arange(i, 1437, 12) for i in range(12)]
    parts[5] = np.zeros(0, dtype=np.int64)
    run = start(partition=parts, clients=12, per_round=12, rounds=2, algorithm="fedavg")
    for line in run.history:
        assert line["participants"] == 11
        assert list(line["left_out"]) == ["5"]
        assert "no rows" in line["left_out"]["5"]
    with pytest.raises(ValueError, match="no client has a row"):
        start(partition=[[], []], clients=2, per_round=2)


def test_a_row_twice_in_one_client_counts_twice_there_and_is_still_one_client() -> None:
    parts = [np.arange(i, 1437, 12) for i in range(12)]
    parts[5] = np.repeat(parts[5][:10], 2)
    run = start(partition=parts, clients=12, per_round=12, rounds=1, algorithm="fedavg")
    assert run.history[0]["participants"] == 12
    # Needs setup.py's part, where such a row passes for one of two clients: what a client sends is clipped as a whole.
    private: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-2}
    assert start(partition=parts, clients=12, per_round=12, rounds=1, **private).summary["n"] == 12
    parts[6] = np.append(parts[6], parts[5][0])
    with pytest.raises(ValueError, match="a row belongs to two clients"):
        start(partition=parts, clients=12, per_round=12, rounds=1, **private)


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


def test_a_private_run_is_for_users_and_names_nobody(tmp_path: Path) -> None:
    run = private(
        algorithm="adabest",
        budget=sd.Budget(5, 1e-3),
        noise_multiplier=None,
        delta=None,
        out=tmp_path / "run",
    )
    assert 4.9 < run.epsilon <= 5
    assert run.certificate["unit"] == "user"
    assert recompute(run.certificate).epsilon == pytest.approx(run.epsilon)
    assert any("probability 0.3" in line for line in run.certificate["assumptions"])
    for line in run.history:
        assert not {"participants", "left_out", "client_rates"} & set(line)
    assert "clients_with_state" not in run.summary
    assert not (tmp_path / "run/clients.json").exists()
    private(out=tmp_path / "shown", show_unprotected=True)
    assert json.loads((tmp_path / "shown/clients.json").read_text())["covered"] is False


def recorded_sums(**settings: Any) -> list[Tensor]:
    """The exact clipped sums behind the noise, which only a test may see."""
    sums: list[Tensor] = []
    real = UserGate._sums_at

    def spied(self: Any, *args: Any) -> Any:
        found = real(self, *args)
        sums.append(found[0].clone())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UserGate, "_sums_at", spied)
        private(**settings)
    return sums


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "adabest", "feddyn"])
def test_one_client_moves_the_sum_by_the_threshold_at_most(algorithm: str) -> None:
    """A client whose rows are zeroed out, or that is NaN or drops out, moves what is released by C at most."""
    clip = sd.Fixed(0.05)
    parts = [np.arange(i, 1437, 12) for i in range(12)]
    base = {"clip": clip, "partition": parts, "clients": 12, "participation": sd.Poisson(1.0), "rounds": 1}
    (whole,) = recorded_sums(algorithm=algorithm, **base)
    inputs = DIGITS.train[0].clone()
    inputs[parts[5]] = torch.nan
    (without,) = recorded_sums(algorithm=algorithm, data=(inputs, DIGITS.train[1]), **base)
    assert 0.04 < float((whole - without).norm()) <= 0.05 * (1 + 1e-5)
    assert whole.norm() <= 12 * 0.05 * (1 + 1e-5)


def test_a_dropped_client_changes_neither_sensitivity_nor_divisor() -> None:
    """What is released is (sum + noise) / 6, whoever delivers: with little noise nearly the sum over 6."""
    epsilons = set()
    for conditions in (Conditions(), Conditions(drop_out=0.6), Conditions(slowness=1.0, deadline=0.8)):
        means: list[Tensor] = []

        def see(seen: Any, means: list[Tensor] = means) -> None:
            means.append(seen.mean["update"].clone())

        little = {"clip": sd.Fixed(0.1), "noise_multiplier": 1e-3, "observe": see, "conditions": conditions}
        sums = recorded_sums(algorithm="fedavg", **little)
        for mean, (total,) in zip(means, sums, strict=True):
            noise = mean * 6 - total
            assert float(noise.norm()) == pytest.approx(1e-3 * 0.1 * 1210**0.5, rel=0.15)
            assert float(total.norm()) > 3 * float(noise.norm())
        epsilons.add(private(clip=sd.Fixed(0.1), algorithm="fedavg", conditions=conditions).epsilon)
    assert len(epsilons) == 1


def test_clients_count_alike_whatever_they_have() -> None:
    """A client's number of examples is one public number in every formula."""
    seen: set[float] = set()
    real = sd.FedDyn.pull

    def spied(self: Any, who: Any, *rest: Any) -> Any:
        seen.update(who.examples.flatten().tolist())
        return real(self, who, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sd.FedDyn, "pull", spied)
        private(algorithm="feddyn", public_examples=64)
        assert seen == {64.0}
        start(algorithm="feddyn")
        assert len(seen) > 5


@pytest.mark.parametrize("first", [True, False])
def test_a_client_that_fails_once_gives_nothing_away(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is not shown twice with different sums under one noise: neither if the failure was before the kill, where
    the round is not repeated, nor if it comes when the round is repeated, which is then refused."""
    parts = [np.arange(i, 1437, 12) for i in range(12)]
    settings = {"partition": parts, "clients": 12, "participation": sd.Poisson(1.0)}
    settings |= {"out": tmp_path / "run", "rounds": 3, "clip": sd.Fixed(0.05)}
    real = Workplace._finished

    def flaky(self: Any, chunk: Any, *rest: Any) -> Any:
        if broken and 5 in chunk.clients:
            raise MemoryError("for now")
        return real(self, chunk, *rest)

    monkeypatch.setattr(Workplace, "_finished", flaky)
    shown: dict[int, list[Tensor]] = {}

    def see(seen: Any) -> None:
        shown.setdefault(seen.now.number, []).append(seen.theta.clone())
        if stop and seen.now.number == 2:
            raise Crash

    broken, stop = first, True
    with pytest.raises(Crash):
        private(observe=see, **settings)
    broken, stop = not first, False
    if first:
        private(observe=see, resume=True, **settings)
    else:
        with pytest.raises(ValueError, match="same noise"):
            private(observe=see, resume=True, **settings)
        broken = False
        private(observe=see, resume=True, **settings)
    for found in shown.values():
        assert all(torch.equal(found[0], other) for other in found)
    lines = (tmp_path / "run/history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]


def test_a_slow_client_costs_no_other_its_place() -> None:
    """One client's time must not decide about another: it is late alone."""
    parts = [np.arange(i * 120, (i + 1) * 120) for i in range(4)] + [np.arange(1316, 1437)]
    base = {"algorithm": "fedavg", "partition": parts, "clients": 5, "participation": sd.Poisson(1.0)}
    base |= {"clip": sd.Fixed(0.05), "rounds": 1, "patience": 1.5, "workers": 2}
    (late,) = recorded_sums(local=OwnLoop(never), **base)
    (wrong,) = recorded_sums(local=OwnLoop(own), **base)  # of another shape, so it does not count either
    assert torch.equal(late, wrong)
    assert private(local=OwnLoop(own), **base).summary["chunk"] == 1


def test_the_servers_formulas_use_planned_numbers() -> None:
    rounds: list[Any] = []
    private(
        algorithm="scaffold-m",
        conditions=Conditions(drop_out=0.5),
        partition="iid",
        observe=lambda seen: rounds.append(seen),
    )
    assert {round(seen.now.participants, 9) for seen in rounds} == {6.0}
    assert {seen.now.steps for seen in rounds} == {9.0}  # ceil(72 / 8)
    assert {seen.participants for seen in rounds} == {()}
    assert {seen.population for seen in rounds} == {None}
    server: dict[str, Any] = {}
    private(algorithm="adabest", observe=lambda seen: server.update(seen.server), public_examples=50)
    assert server["mean_examples"] == 50.0  # AdaBest's average is a public number, whoever takes part


def test_what_clients_send_is_averaged_with_noise_of_the_right_size() -> None:
    """With a tiny threshold the release is noise alone: its spread is z C / expected clients, not 2/3 or 3/2 of it."""
    means: list[Tensor] = []
    private(
        algorithm=sd.FedAvg(),
        clip=sd.Fixed(1e-6),
        rounds=8,
        observe=lambda s: means.append(s.mean["update"].clone()),
    )
    noise = torch.cat(means) * 6 / 1e-6
    spread = float(noise.std())
    assert abs(spread - 1) < 0.05  # clients add at most 6 to the norm of a release, over 1210 coordinates


def test_thresholds_move_by_what_is_released() -> None:
    for clip in (sd.Quantile(threshold=0.01), sd.Online(threshold=0.01, speed=0.1)):
        run = private(clip=clip, rounds=6)
        assert len({line["threshold"] for line in run.history}) >= 3


def test_prices_of_ways_to_take_part() -> None:
    poisson = private(clip=sd.Fixed(0.1), algorithm="fedavg").epsilon
    drawn = private(clip=sd.Fixed(0.1), algorithm="fedavg", participation=sd.WithoutReplacement(6))
    assert drawn.epsilon > 2 * poisson  # substitution moves the sum by 2C
    assert "substitution" in drawn.summary["relation"]
    assert recompute(drawn.certificate).epsilon == pytest.approx(drawn.epsilon)
    ordered = private(clip=sd.Fixed(0.1), participation=sd.FixedOrder(5), rounds=8)
    assert ordered.certificate["events"] == {
        "type": "repeated",
        "count": 2,
        "event": {"type": "gaussian", "noise_multiplier": 1.0},
    }
    apart = private(clip=sd.Fixed(0.1), participation=sd.Separated(3, separation=3), rounds=8)
    assert apart.epsilon == ordered.epsilon
    tree = private(
        clip=sd.Fixed(0.1), participation=sd.Separated(3, separation=3), rounds=8, noise=sd.Tree(False, None)
    )
    # Two visits at distance 4 in a tree of 8: 1 + 1 nodes at heights 0, 1, 2 and 4 at the root.
    assert tree.certificate["events"]["noise_multiplier"] == pytest.approx(1 / np.sqrt(10))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conditions": Conditions(over_selection=1.5)}, "no price"),
        ({"participation": sd.WithoutReplacement(6), "algorithm": "adabest"}, "no known price"),
        ({"participation": "poisson"}, "Sampling"),
        ({"participation": sd.WithoutReplacement(6), "algorithm": "fedavg", "noise": sd.Tree()}, "order"),
        ({"noise": sd.Tree(), "participation": sd.Poisson(0.3)}, "dealt in an order"),
        ({"clip": sd.PerLayer(1.0)}, "as one vector"),
        ({"clip": sd.Online(), "algorithm": "fedadam"}, "Adam"),
        ({"clip": sd.Unclipped()}, "without clipping"),
        ({"budget": sd.Budget(1, 1e-3)}, "either a budget"),
        ({"participation": sd.Separated(6, separation=9)}, "sit out"),
        ({"delta": None}, "needs a delta"),
        ({"public_examples": 0}, "public_examples"),
    ],
)
def test_what_has_no_price_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        private(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedbest"}, "no algorithm"),
        ({"local": "lbfgs"}, "no local rule"),
        ({"partition": "dirichlet:x"}, "dirichlet"),
        ({"rounds": 0}, "rounds"),
        ({"per_round": 21}, "per_round"),
        ({"clients": 2000}, "2000"),
        ({"rate": -1.0}, "rate"),
        ({"decay": 2.0}, "decay"),
        ({"engine": "gpu"}, "engine"),
        ({"workers": 0, "patience": 1.0}, "workers"),
        ({"workers": 0}, "workers"),
        ({"store": "disk"}, "memory or in a file"),
        ({"delta": 1e-3}, "budget"),
        ({"secure": True, "seed": None}, "budget"),
        ({"public_examples": 5}, "budget"),
        ({"local": "adadp", "batch_size": 100}, "takes two"),
        ({"algorithm": "scaffold", "local": "adam"}, "sum of gradients"),
        ({"algorithm": "scaffold-m", "local": "adadp"}, "planned rate"),
        ({"partition": [np.arange(5), np.arange(3000, 3005)], "clients": None}, "outside"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"holdout": -1}, "holdout"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        start(out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


# Populations that do not fit ----------------------------------------------------------------------------------


def test_only_those_who_take_part_cost_something() -> None:
    asked: set[int] = set()

    def rows(client: int) -> np.ndarray:
        asked.add(client)
        return np.arange(8) + 8 * (client % 150)

    million = Population(DIGITS.train, 10**6, rows, 8.0)  # type: ignore[arg-type]
    run = start(data=million, clients=None, per_round=30, rounds=4, algorithm="adabest")
    assert run.summary["n"] == 10**6
    assert len(asked) <= 4 * 30
    assert run.summary["clients_with_state"] == len(asked)


def test_random_partitions_are_functions_of_the_seed() -> None:
    one, two, other = (start(partition=Random(), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(theta(one), theta(two))
    assert not torch.equal(theta(one), theta(other))
