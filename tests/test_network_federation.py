"""A federation whose clients are elsewhere is the one that is simulated: same model, same price, whatever nodes do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sordino as sd
from memory_link import (
    DIGITS,
    LOSS,
    MODEL,
    NODES,
    PARTS,
    MemoryLink,
    across,
    changed,
    fresh_model,
    nodes_in,
    weights_of,
)
from sordino.federated.algorithms import server_named
from sordino.network.federation import federate_across
from sordino.network.node import Node
from sordino.network.wire import unpacked
from sordino.noise import Tree
from sordino.runs import Run

TOLERANCE = 1e-6  # of the length of theta: sums of floats in another order
TREE: dict[str, Any] = {"algorithm": sd.FedAvg(server=server_named("dp-ftrlm")), "noise": Tree()}
KINDS: dict[str, dict[str, Any]] = {
    "adabest": {"algorithm": "adabest"},
    "scaffold, which sends two vectors and is told one": {"algorithm": "scaffold"},
    "feddyn": {"algorithm": "feddyn"},
    "clients that tune their own rates": {"algorithm": "fedavg", "local": "adadp", "batch_size": 10},
    "weighted by examples": {"algorithm": sd.FedAvg(weighted=True), "max_examples": 50},
    "private, a threshold that moves": {"budget": (8, 1e-2)},
    "private, adabest": {"algorithm": "adabest", "budget": (8, 1e-2), "clip": sd.Fixed(0.5)},
    "private, tree noise": {**TREE, "budget": (8, 1e-2)},
    "clipped, without noise": {"noise_multiplier": 0.0, "delta": 1e-2, "clip": sd.Fixed(0.5)},
}
pytestmark = pytest.mark.filterwarnings("ignore:the noise outweighs", "ignore:delta 0.01 is not below")


def over(link: Any, bound: bool = True, **asked: Any) -> tuple[Run, Tensor]:
    model = fresh_model()
    asked = {"rounds": 4, "per_round": 6, "seed": 3, "inputs": DIGITS.inputs, **asked}
    run = federate_across(across(link, bound), model, MODEL, **asked)
    return run, weights_of(model)


def simulated(**asked: Any) -> tuple[Run, Tensor]:
    model = fresh_model()
    asked = {"rounds": 4, "per_round": 6, "seed": 3, **asked}
    run = sd.federate(model, LOSS, DIGITS.train, clients=len(PARTS), partition=list(PARTS), **asked)
    return run, weights_of(model)


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / one.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_that_of_the_simulator(kind: str, tmp_path: Path) -> None:
    there, weights = over(MemoryLink(nodes_in(tmp_path)), **KINDS[kind])
    here, simulation = simulated(**KINDS[kind])
    assert distance(simulation, weights) < TOLERANCE
    assert there.epsilon == here.epsilon
    assert there.summary["rows"] == here.summary["rows"]
    assert not list(tmp_path.glob("state*/federations/*"))  # nothing is kept of a federation that is over


def test_a_node_that_is_started_anew_for_every_message_gives_the_same(tmp_path: Path) -> None:
    class Forgetful(MemoryLink):
        def ask(self, *args: Any) -> Any:
            self.there = {number: Node(node.settings) for number, node in self.there.items()}
            return super().ask(*args)

    _, weights = over(Forgetful(nodes_in(tmp_path)), algorithm="adabest")
    assert distance(simulated(algorithm="adabest")[1], weights) < TOLERANCE


@pytest.mark.parametrize("kind", ["adabest", "private, adabest", "private, tree noise"])
@pytest.mark.parametrize("moment", ["while nodes work", "when the round is over"])
def test_a_killed_server_resumes_and_comes_to_the_same(kind: str, moment: str, tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path)
    killed: list[int] = []

    def kill(node: int, answer: bytes) -> bytes:
        header, _ = unpacked(answer, len(answer))
        rounds = [each for each in killed if each == 3]
        if header["kind"] == "done" and header["round"] == 3:
            killed.append(3)
            if len(rounds) == (1 if moment == "while nodes work" else 99):
                raise KeyboardInterrupt
        if (
            header["kind"] == "done"
            and header["round"] == 4
            and moment == "when the round is over"
            and 4 not in killed
        ):
            killed.append(4)
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        over(MemoryLink(nodes, kill), out=tmp_path / "run", **KINDS[kind])
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    resumed, weights = over(MemoryLink(nodes), out=tmp_path / "run", resume=True, **KINDS[kind])
    whole, simulation = simulated(**KINDS[kind])
    assert distance(simulation, weights) < TOLERANCE
    assert resumed.epsilon == whole.epsilon
    if kind != "adabest":
        assert saved["planned_epsilon"] >= resumed.epsilon  # what a killed run says it may have spent


def test_an_answer_that_was_lost_leaves_its_client_where_it_was(tmp_path: Path) -> None:
    """The client has worked in round 2, and nobody counted it: in round 3 it starts from what it had after round 1."""

    def lost(node: int, answer: bytes) -> bytes | None:
        header, _ = unpacked(answer, len(answer))
        return None if header.get("round") == 2 and node == 101 else answer

    run, weights = over(MemoryLink(nodes_in(tmp_path), lost), algorithm="adabest", per_round=12)
    clients = sorted(map(int, run.history[1]["left_out"]))
    assert clients == [3, 4, 5]
    assert set(run.history[1]["left_out"].values()) == {"no answer"}

    class LeftOut(sd.Conditions):
        def delivered(self, chosen: Any, wanted: Any, number: int, *rest: Any) -> Any:
            keep = [c for c in chosen if not (number == 2 and c in clients)]
            return chosen[[i for i, c in enumerate(chosen) if c in keep]], {}

    _, simulation = simulated(algorithm="adabest", per_round=12, conditions=LeftOut())
    assert distance(simulation, weights) < TOLERANCE


HOSTILE = {
    "no bytes of ours": lambda answer: b"\x80\x04\x95garbage",
    "nothing": lambda answer: b"",
    "half a message": lambda answer: answer[: len(answer) // 2],
    "too much of it": lambda answer: answer + b"\0" * (1 << 23),
    "NaN": lambda answer: changed(answer, {}, {"update": torch.full_like(_update(answer), torch.nan)}),
    "infinity in one place": lambda answer: changed(
        answer, {}, {"update": _with(_update(answer), torch.inf)}
    ),
    "numbers that would overflow": lambda answer: changed(
        answer, {}, {"update": 1e37 * torch.ones_like(_update(answer))}
    ),
    "another shape": lambda answer: changed(answer, {}, {"update": _update(answer)[:, :-1]}),
    "one client more": lambda answer: changed(answer, {"clients": [0, 1, 2, 3]}, {}),
    "other clients": lambda answer: changed(answer, {"clients": [7] * len(_update(answer))}, {}),
    "another round": lambda answer: changed(answer, {"round": 1_000_000}, {}),
    "a nonce of its own": lambda answer: changed(answer, {"nonce": "0" * 32}, {}),
    "a vector that nobody asked for": lambda answer: changed(answer, {}, {"h": torch.zeros(3)}),
}


def _update(answer: bytes) -> Tensor:
    return unpacked(answer, len(answer))[1]["update"]


def _with(update: Tensor, value: float) -> Tensor:
    update[0, 0] = value
    return update


def _meddling(how: Any, victim: int) -> Any:
    def meddle(node: int, answer: bytes) -> bytes | None:
        header, _ = unpacked(answer, len(answer))
        meant = node == victim and header["kind"] == "done"
        return how(answer) if meant else answer

    return meddle


@pytest.mark.parametrize("how", HOSTILE)
def test_what_a_hostile_node_sends_is_left_out_with_a_reason(how: str, tmp_path: Path) -> None:
    link = MemoryLink(nodes_in(tmp_path), _meddling(HOSTILE[how], 101))
    run, weights = over(link, algorithm="fedavg", per_round=12)
    assert bool(weights.isfinite().all())
    left = [line["left_out"] for line in run.history]
    assert all(set(each) <= {"3", "4", "5"} and each for each in left)
    assert all(reason for each in left for reason in each.values())


@pytest.mark.parametrize("how", ["half a message", "NaN", "a nonce of its own", "too much of it"])
def test_under_privacy_it_counts_as_zero_and_nobody_is_named(how: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "budget": (8, 1e-2),
        "clip": sd.Fixed(0.5),
        "per_round": 12,
        "algorithm": "fedavg",
    }
    asked["participation"] = lambda per_round, clients: sd.Poisson(1.0)
    run, weights = over(MemoryLink(nodes_in(tmp_path), _meddling(HOSTILE[how], 101)), **asked)
    _, silent = over(MemoryLink(nodes_in(tmp_path), _meddling(lambda answer: None, 101)), **asked)
    if how == "infinity in one place":
        return
    assert torch.equal(weights, silent)  # the divisor is the planned number, and the noise the same
    assert "left_out" not in json.dumps(run.history)


def test_under_privacy_no_client_moves_the_sum_by_more_than_the_threshold(tmp_path: Path) -> None:
    """A node that does not clip, and claims anything of its norm, is clipped by the server once more."""
    huge = _meddling(lambda a: changed(a, {}, {"update": 1e10 * torch.ones_like(_update(a))}), 101)
    asked: dict[str, Any] = {"noise_multiplier": 1e-3, "delta": 1e-2, "clip": sd.Fixed(0.5), "rounds": 1}
    asked |= {"participation": lambda per_round, clients: sd.Poisson(1.0), "algorithm": "fedavg"}
    _, moved = over(MemoryLink(nodes_in(tmp_path), huge), **asked)
    _, without = over(MemoryLink(nodes_in(tmp_path), _meddling(lambda a: None, 101)), **asked)
    assert float((moved - without).norm()) <= 3 * 0.5 / len(PARTS)


def test_under_privacy_an_answer_to_a_probe_counts_for_no_more_than_one(tmp_path: Path) -> None:
    def lie(answer: bytes) -> bytes:
        answers = unpacked(answer, len(answer))[1]["answers"]
        return changed(answer, {}, {"answers": torch.full_like(answers, 1e9)})

    asked: dict[str, Any] = {"noise_multiplier": 1e-3, "delta": 1e-2, "clip": sd.Quantile(0.5, 1e-4)}
    asked |= {"participation": lambda per_round, clients: sd.Poisson(1.0), "algorithm": "fedavg", "rounds": 2}
    run, _ = over(MemoryLink(nodes_in(tmp_path), _meddling(lie, 101)), **asked)
    # All are beyond the threshold. Three of twelve lie: a quarter is within then, and not all, so that it rises.
    first, second = (line["threshold"] for line in run.history)
    assert second / first > 1.01  # without a bound it falls; the count has noise of its own


def test_an_answer_that_comes_twice_counts_once(tmp_path: Path) -> None:
    class Stammering(MemoryLink):
        def ask(self, *args: Any) -> Any:
            for node, answer in super().ask(*args):
                yield node, answer
                yield node, answer

    _, weights = over(Stammering(nodes_in(tmp_path)), algorithm="adabest")
    assert distance(simulated(algorithm="adabest")[1], weights) < TOLERANCE


def test_a_round_is_saved_before_the_next_one_begins(tmp_path: Path) -> None:
    """Who answers in time is not ours to repeat, so a resumed server asks for no round that was over."""
    nodes, rounds = nodes_in(tmp_path), 60  # of which a simulation would save every third

    def kill(node: int, answer: bytes) -> bytes:
        if unpacked(answer, len(answer))[0].get("round") == 38:
            raise KeyboardInterrupt
        return answer

    asked: dict[str, Any] = {
        "out": tmp_path / "run",
        "rounds": rounds,
        "algorithm": "adabest",
        "local_epochs": 1,
    }
    with pytest.raises(KeyboardInterrupt):
        over(MemoryLink(nodes, kill), **asked)
    link = MemoryLink(nodes)
    over(link, resume=True, **asked)
    headers = [unpacked(question, len(question))[0] for _, question, _ in link.asked]
    assert min(each["now"]["number"] for each in headers if each["kind"] == "round") == 38


def test_under_privacy_no_client_has_so_many_rows_that_its_node_is_late(tmp_path: Path) -> None:
    """A node answers for all its clients at once. What they do is bounded by public numbers, and that is said."""
    run, _ = over(MemoryLink(nodes_in(tmp_path)), budget=(8, 1e-2))
    assert run.summary["local_plan"]["max_examples"] == math.ceil(4 * 1437 / 12)
    assert any(
        "back in time does not depend on the rows of another" in each
        for each in run.certificate["assumptions"]
    )
    run, _ = over(MemoryLink(nodes_in(tmp_path)), budget=(8, 1e-2), max_examples=50)
    assert run.summary["local_plan"]["max_examples"] == 50
    run, _ = over(MemoryLink(nodes_in(tmp_path)), algorithm="fedavg")
    assert run.summary["local_plan"]["max_examples"] is None


def test_who_a_client_is_stays_so_for_a_whole_federation(tmp_path: Path) -> None:
    """Another dealing of the rows would let somebody come more often than was planned."""
    nodes = nodes_in(tmp_path)

    def moved(node: int, answer: bytes) -> bytes:
        header, _ = unpacked(answer, len(answer))
        if header.get("round") == 2 and node == 100:
            rows = np.load(tmp_path / "rows1.npz")
            np.savez(tmp_path / "rows1.npz", x=rows["x"], y=rows["y"], users=(rows["users"] + 1) % 3)
            nodes[101] = Node(nodes[101].settings)  # started again
        return answer

    run, _ = over(MemoryLink(nodes, moved), algorithm="fedavg", per_round=12)
    assert set(run.history[3]["left_out"]) == {"3", "4", "5"}
    assert "other rows than it began with" in run.history[3]["left_out"]["3"]


def test_no_round_is_trained_for_twice_with_another_in_between(tmp_path: Path) -> None:
    """Of a server that was put back to an earlier round (a backup), nodes do not let the rounds be seen once more."""
    nodes, questions = nodes_in(tmp_path), []
    link = MemoryLink(nodes)
    with pytest.raises(KeyboardInterrupt):
        over(link, algorithm="fedavg", budget=(8, 1e-2), callbacks=[_stop_after(3)], out=tmp_path / "run")
    for number, question, shared in link.asked:
        header = unpacked(question, len(question))[0]
        if header["kind"] == "round" and number == link.asked[-1][0]:
            questions.append((header["now"]["number"], nodes[number].answer(question, shared)))
    kinds = {number: unpacked(answer, len(answer))[0] for number, answer in questions}
    last = max(kinds)
    assert kinds[last]["kind"] == "done"
    assert all(kinds[each].get("why") == "of an earlier round" for each in kinds if each < last)
    assert len(kinds) > 1


def _stop_after(rounds: int) -> Any:
    def stop(seen: Any) -> None:
        if seen.step == rounds:
            raise KeyboardInterrupt

    return stop


def test_where_no_node_is_left_no_privacy_is_spent_on_noise(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path)

    def gone(node: int, answer: bytes) -> bytes:
        if unpacked(answer, len(answer))[0].get("round") == 2:
            nodes.clear()
        return answer

    with pytest.raises(ValueError, match="no node is there any more: start them again, and resume"):
        over(MemoryLink(nodes, gone), algorithm="fedavg", per_round=12, patience=1.0)


def test_nothing_but_clipped_updates_leaves_a_node_under_privacy(tmp_path: Path) -> None:
    answers: list[bytes] = []

    def seen(node: int, answer: bytes) -> bytes:
        answers.append(answer)
        return answer

    over(MemoryLink(nodes_in(tmp_path), seen), budget=(8, 1e-2), clip=sd.Fixed(0.01), algorithm="adabest")
    done = [unpacked(answer, len(answer)) for answer in answers]
    done = [(header, vectors) for header, vectors in done if header["kind"] == "done"]
    assert done
    for header, vectors in done:
        assert set(header) == {"kind", "round", "clients", "nonce", "version"}
        assert set(vectors) == {"update", "answers"}
        assert bool((vectors["update"].norm(dim=1) < 0.01).all())


def test_a_client_that_fails_under_privacy_sends_zeros(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path)
    inputs, targets = DIGITS.train
    rows = PARTS[0]
    x = inputs[rows].numpy().copy()
    x[:] = np.nan
    np.savez(tmp_path / "rows0.npz", x=x, y=targets[rows].numpy(), users=np.zeros(len(rows), dtype=int))
    sent = []

    def seen(node: int, answer: bytes) -> bytes:
        header, vectors = unpacked(answer, len(answer))
        if node == 100 and header["kind"] == "done":
            sent.append(vectors)
        return answer

    asked: dict[str, Any] = {
        "participation": lambda per_round, clients: sd.Poisson(1.0),
        "algorithm": "fedavg",
    }
    over(MemoryLink(nodes, seen), budget=(8, 1e-2), **asked)
    assert sent
    assert all(not bool(vectors["update"].any()) and not bool(vectors["answers"].any()) for vectors in sent)


def test_more_clients_are_asked_and_the_first_are_taken(tmp_path: Path) -> None:
    run, _ = over(
        MemoryLink(nodes_in(tmp_path)),
        per_round=6,
        algorithm="fedavg",
        conditions=sd.Conditions(over_selection=2.0),
    )
    for line in run.history:
        assert line["participants"] == 6
        # Answers come in the reverse order of the nodes: those of the first were not needed.
        assert {int(client) for client in line["left_out"]} == set(range(6))
        assert set(line["left_out"].values()) == {"was not needed"}


def test_what_is_simulated_elsewhere_is_refused(tmp_path: Path) -> None:
    link = MemoryLink(nodes_in(tmp_path))
    with pytest.raises(ValueError, match="drop out and are late by themselves"):
        over(link, conditions=sd.Conditions(drop_out=0.1))
    with pytest.raises(ValueError, match="nodes choose how they work"):
        over(link, workers=2)
    with pytest.raises(ValueError, match="cannot be told to nodes"):
        over(link, local=sd.OwnLoop(lambda theta, *rest: theta), algorithm="fedavg")
    with pytest.raises(ValueError, match="cannot be told to nodes"):
        over(link, budget=(8, 1e-2), clip=sd.Normalised(), algorithm="fedavg")
    with pytest.raises(ValueError, match="no price"):
        over(link, budget=(8, 1e-2), conditions=sd.Conditions(over_selection=2.0))
    with pytest.raises(ValueError, match="nodes have to be told what rows are"):
        over(link, inputs=None)


def test_nodes_that_do_not_come_are_said(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path, only_private=True)
    with pytest.raises(ValueError, match=f"0 of {NODES} nodes .* without a promise of privacy"):
        over(MemoryLink(nodes), patience=0.2)


def test_two_nodes_of_one_name_are_not_two_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = nodes_in(tmp_path)
    nodes[104] = nodes[103]
    over(MemoryLink(nodes), algorithm="fedavg")
    assert "a node is not taken: two nodes are called 'node3'" in capsys.readouterr().err


def test_a_node_that_was_mended_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sordino.network.federation as module

    monkeypatch.setattr(module, "_AGAIN", 0.1)
    nodes = nodes_in(tmp_path)
    good = (tmp_path / "rows2.npz").read_bytes()
    (tmp_path / "rows2.npz").write_bytes(b"no arrays")

    def mended(node: int, answer: bytes) -> bytes:
        if node == 100:  # the last that is asked
            (tmp_path / "rows2.npz").write_bytes(good)
        return answer

    run, _ = over(MemoryLink(nodes, mended), algorithm="fedavg")
    assert run.summary["clients"] == len(PARTS)
    assert "a node is not taken: the node refused: the node failed" in capsys.readouterr().err


def test_only_private_nodes_want_noise_too(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"clip": sd.Fixed(0.5), "delta": 1e-2, "algorithm": "fedavg"}
    sent: list[str] = []

    def seen(node: int, answer: bytes) -> bytes:
        sent.append(unpacked(answer, len(answer))[0]["kind"])
        return answer

    over(MemoryLink(nodes_in(tmp_path, only_private=True), seen), noise_multiplier=0.0, **asked)
    assert "done" not in sent
    over(MemoryLink(nodes_in(tmp_path, only_private=True), seen), noise_multiplier=0.5, **asked)
    assert "done" in sent


def test_a_node_that_comes_back_under_another_number_is_found_by_its_name(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path)

    def moved(node: int, answer: bytes) -> bytes:
        header, _ = unpacked(answer, len(answer))
        if header.get("round") == 2 and 101 in nodes:
            nodes[999] = nodes.pop(101)
        return answer

    run, _ = over(MemoryLink(nodes, moved), bound=False, algorithm="adabest", per_round=12)
    assert "left_out" not in run.history[2]
    assert "left_out" not in run.history[3]


def test_where_nodes_prove_who_they_are_a_name_is_not_taken_over(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path)

    def moved(node: int, answer: bytes) -> bytes:
        header, _ = unpacked(answer, len(answer))
        if header.get("round") == 2 and 101 in nodes:
            nodes[999] = nodes.pop(101)
        return answer

    run, _ = over(MemoryLink(nodes, moved), algorithm="adabest", per_round=12)
    assert set(run.history[3]["left_out"]) == {"3", "4", "5"}


def test_the_certificate_says_where_clients_were(tmp_path: Path) -> None:
    run, _ = over(MemoryLink(nodes_in(tmp_path)), budget=(8, 1e-2), out=tmp_path / "run")
    assert "nodes are in this process" in run.certificate["assumptions"]
    assert not any("simulation" in each for each in run.certificate["assumptions"])
    assert sd.verify(tmp_path / "run").epsilon == run.epsilon
    assert not (tmp_path / "run" / "clients.json").exists()
