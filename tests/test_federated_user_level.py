"""Privacy for whole clients: what is released, what it costs, and that nobody is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sordino as sd
from sordino.federated import Conditions
from sordino.federated.rounds import Workplace
from sordino.federated.user_level import UserGate
from sordino.privacy import recompute
from test_federate import DIGITS, Crash, private, start


def test_a_private_run_is_for_users_and_names_nobody(tmp_path: Path) -> None:
    run = private(
        algorithm="adabest",
        budget=sd.Budget(5, 1e-3),
        noise_multiplier=None,
        delta=None,
        out=tmp_path / "run",
    )
    assert 4.9 < run.epsilon <= 5
    assert run.certificate["guarantee"]["unit"] == "user"
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
    bands = private(
        clip=sd.Fixed(0.1), participation=sd.Separated(3, separation=3), rounds=8, noise=sd.Banded()
    )
    assert bands.summary["noise"] == {"kind": "Banded", "bands": 4}
    assert bands.epsilon == ordered.epsilon  # whose sums are noisier
    kept = private(
        clip=sd.Fixed(0.1), participation=sd.Separated(3, separation=3), rounds=8, noise=sd.Buffered()
    )
    assert kept.summary["noise"] == {"kind": "Buffered", "buffers": 4, "horizon": None}
    moved = sd.Buffered().over(sd.Separated(3, separation=3), 20, 8).decays.sensitivity(8, 4)  # type: ignore[attr-defined]
    assert kept.certificate["events"]["noise_multiplier"] == 1 / moved > 1 / np.sqrt(10)
    with pytest.raises(ValueError, match="Quantile moves its threshold"):
        private(clip=None, participation=sd.Separated(3, separation=3), rounds=8, noise=sd.Buffered())
    # Two visits at distance 4 in a tree of 8: 1 + 1 nodes at heights 0, 1, 2 and 4 at the root.
    assert tree.certificate["events"]["noise_multiplier"] == pytest.approx(1 / np.sqrt(10))
