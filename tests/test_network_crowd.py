"""The server believes no answer that is not exactly what it asked for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import sordino as sd
from memory_link import DIGITS, MemoryLink, across, changed, fresh_model, nodes_in, weights_of
from sordino.network.crowd import Place, Roll
from sordino.network.federation import federate_across
from sordino.network.wire import Refused, unpacked
from test_network_node import ODD, _damaged


def test_clients_are_numbered_by_the_names_of_their_nodes() -> None:
    roll = Roll([Place("b", 7, 2, 20), Place("a", 9, 3, 30), Place("c", 5, 1, 10)], bound=True)
    assert roll.clients == 6
    assert roll.rows == 60
    assert [roll.places[place].name for place in roll.by_place([0, 2, 3, 5])] == ["a", "b", "c"]
    assert roll.by_place([0, 2, 3, 5]) == {0: [0, 2], 1: [3], 2: [5]}
    assert [roll.first(place) for place in range(3)] == [0, 3, 5]
    assert Roll.from_state(roll.to_state(), True).places == roll.places


def test_a_node_comes_back_as_who_it_was_or_not_at_all() -> None:
    roll = Roll([Place("a", 1, 3, 30)], bound=False)
    roll.returned(Place("a", 2, 3, 30))
    assert roll.places[0].node == 2
    for place, why in (
        (Place("b", 3, 3, 30), "was not there"),
        (Place("a", 3, 4, 30), "other clients or rows"),
        (Place("a", 3, 3, 31), "other clients or rows"),
    ):
        with pytest.raises(Refused, match=why):
            roll.returned(place)
    with pytest.raises(Refused, match="belongs to another node"):
        Roll([Place("a", 1, 3, 30)], bound=True).returned(Place("a", 2, 3, 30))


def test_answers_that_came_early_wait_for_their_turn_as_far_as_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come in the reverse order of the nodes; sums of floats in either order are the same but for rounding."""
    import sordino.network.crowd as module

    def trained() -> tuple[torch.Tensor, list[int]]:
        model, order = fresh_model(), []
        given: Any = {"rounds": 1, "per_round": 12, "seed": 1, "inputs": DIGITS.inputs, "algorithm": "fedavg"}
        given["callbacks"] = [lambda seen: order.extend(seen.participants)]
        federate_across(across(MemoryLink(nodes_in(tmp_path))), model, "mlp:16", **given)
        return weights_of(model), order

    weights, order = trained()
    assert order == sorted(order)
    monkeypatch.setattr(module, "_AHEAD", 1)
    other, order = trained()
    assert order == [*range(9, 12), *range(6, 9), *range(3, 6), *range(3)]
    assert torch.allclose(weights, other, rtol=1e-5, atol=1e-7)


def _malformed(answer: bytes, chance: random.Random) -> bytes | None:
    header, vectors = unpacked(answer, len(answer))
    kind = chance.randrange(5)
    if kind == 0:
        return _damaged(answer, chance)
    if kind == 1:
        return changed(answer, {chance.choice([*header]): chance.choice(ODD)})
    if kind == 2:
        update = vectors["update"].clone()
        update[chance.randrange(len(update)), chance.randrange(update.shape[1])] = chance.choice(
            [torch.nan, torch.inf]
        )
        others = [update, update[1:], update[:, 1:], update.flatten(), update.repeat(2, 1)]
        return changed(answer, {}, {"update": chance.choice(others)})
    if kind == 3:
        return chance.choice([None, b"", b"\0" * 100, answer * 2, answer + b"\0"])
    return changed(
        answer, {}, {chance.choice(["more", "answers", "h"]): torch.zeros(chance.choice([0, 1, 7]))}
    )


def _bombarded(folder: Path, rounds: int, **asked: Any) -> tuple[Any, int]:
    """One node of four, whose answers are all damaged."""
    chance, count = random.Random(5), 0
    last: list[bytes] = []

    def meddle(node: int, answer: bytes) -> bytes | None:
        nonlocal count
        if node != 102 or unpacked(answer, len(answer))[0]["kind"] != "done":
            return answer
        count += 1
        last.append(answer)
        if chance.random() < 0.1 and len(last) > 1:
            return last[-2]  # a replay
        return _malformed(answer, chance)

    model = fresh_model()
    given = {
        "rounds": rounds,
        "per_round": 12,
        "seed": 1,
        "inputs": DIGITS.inputs,
        "local_epochs": 1,
        "algorithm": "fedavg",
    }
    run = federate_across(across(MemoryLink(nodes_in(folder), meddle)), model, "mlp:16", **given | asked)
    assert bool(weights_of(model).isfinite().all())
    return run, count


PRIVATE: dict[str, Any] = {"noise_multiplier": 0.1, "delta": 1e-2, "clip": sd.Fixed(0.5), "accountant": "rdp"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("asked", [{}, PRIVATE], ids=["open", "private"])
def test_malformed_answers_stop_no_round_and_are_left_out(asked: dict[str, Any], tmp_path: Path) -> None:
    run, count = _bombarded(tmp_path, 60, **asked)
    assert count > 40
    if asked:
        assert "left_out" not in str(run.history)
    else:
        assert all(set(line.get("left_out", {})) <= {"6", "7", "8"} for line in run.history)
        assert sum("left_out" in line for line in run.history) > 40


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("asked", [{}, PRIVATE], ids=["open", "private"])
def test_ten_thousand_malformed_answers(
    asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, count = _bombarded(tmp_path, 10_000 if not asked else 11_000, batch_size=200, **asked)
    left = sum("left_out" in line for line in run.history)
    with capsys.disabled():
        print(
            f"\na server: {count} damaged answers in {run.summary['rounds']} rounds, no crash, {left} rounds named them"
        )
    assert count >= 10_000
