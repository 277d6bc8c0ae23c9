"""A node believes nothing, says nothing of its rows that was not asked for, and changes nothing for what it refuses."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sordino as sd
from memory_link import DIGITS, MemoryLink, across, changed, fresh_model, nodes_in
from sordino.data.schema import Column, Schema, TargetColumn
from sordino.data.table import Table
from sordino.federated.algorithms import AdaBest
from sordino.federated.options import LocalTraining
from sordino.network.federation import federate_across
from sordino.network.node import Node, NodeSettings, answer_of, rows_of_clients
from sordino.network.orders import Orders
from sordino.network.wire import Refused, packed, unpacked

ORDERS = Orders("mlp:16", DIGITS.inputs, AdaBest(), LocalTraining(local_epochs=1), None)  # type: ignore[arg-type]


def said(answer: bytes) -> dict[str, Any]:
    return unpacked(answer, len(answer))[0]


def asked(node: Node, kind: str = "hello", shared: bytes = b"", **header: Any) -> dict[str, Any]:
    question = {"kind": kind, "nonce": "n", "orders": ORDERS.to_json(), **header}
    return said(node.answer(packed({k: v for k, v in question.items() if v is not None}, {}), shared))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return nodes_in(tmp_path)[100]


def test_it_says_who_it_is_and_how_much_it_has(node: Node) -> None:
    answer = asked(node)
    assert {name: answer[name] for name in ("kind", "name", "clients", "nonce")} == {
        "kind": "here", "name": "node0", "clients": 3, "nonce": "n"
    }  # fmt: skip
    assert answer["rows"] == 360


def test_how_many_rows_it_has_does_not_depend_on_what_is_in_them(tmp_path: Path) -> None:
    """Or a server could count by asking for one label after the other."""
    table, file = _table(tmp_path)
    node = Node(NodeSettings("a", str(file), user_column="who"))
    told = [
        Orders(
            "linear",
            Table(replace(table.schema, target=TargetColumn("y", labels=labels))),
            AdaBest(),
            LocalTraining(),
            None,
        )
        for labels in (("no", "yes"), ("perhaps", "never"))
    ]
    answers = [asked(node, orders=each.to_json()) for each in told]
    assert [(answer["kind"], answer["rows"], answer["clients"]) for answer in answers] == [("here", 6, 3)] * 2


@pytest.mark.parametrize("name", ["patients", "..", "a/b", "0123456789ABCDEF", "0" * 15, ""])
def test_a_server_deletes_and_writes_nothing_that_is_not_its_own(name: str, tmp_path: Path) -> None:
    node = nodes_in(tmp_path)[100]
    own = node.settings.folder / "patients"
    own.mkdir(parents=True)
    (own / "rows.csv").write_text("mine")
    assert asked(node, "goodbye", federation=name)["kind"] == "refused"
    assert asked(node, "goodbye", federation="0123456789abcdef")["kind"] == "goodbye"
    kept = node.settings.folder / "federations" / "0123456789abcdef"
    kept.mkdir(parents=True)
    (kept / "mine.txt").write_text("mine")
    assert asked(node, "goodbye", federation=kept.name)["kind"] == "goodbye"
    assert (own / "rows.csv").exists()
    assert (kept / "mine.txt").exists()


SETTINGS = {"name": "a", "data": "rows.npz"}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "no name and no data"),
        ({"name": "a"}, "no data"),
        ({**SETTINGS, "name": "../a"}, "letters, digits"),
        ({**SETTINGS, "clients": 0}, "at least one client"),
        ({**SETTINGS, "clients": "3"}, "clients must be a int"),
        ({**SETTINGS, "only-private": "yes"}, "only-private must be a bool"),
    ],
)
def test_a_node_that_is_not_set_up_says_why_to_its_owner_alone(
    config: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=why):
        NodeSettings.of(config)
    answer = said(answer_of(config, packed({}, {}), b""))
    assert answer["why"] == "the node is not set up (its own log says why)"
    assert why.split()[-1] in capsys.readouterr().err


def test_other_settings_of_flower_are_left_alone() -> None:
    assert NodeSettings.of({**SETTINGS, "partition-id": 3}) == NodeSettings("a", "rows.npz")


def test_a_file_that_cannot_be_read_is_no_word_for_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.npz").write_bytes(b"secret of a patient")
    answer = asked(Node(NodeSettings("a", str(tmp_path / "rows.npz"))))
    assert answer["why"] == "the node failed (its own log says why)"
    assert "rows.npz" in capsys.readouterr().err


def test_only_private_nodes_refuse_what_promises_nothing(tmp_path: Path) -> None:
    node = nodes_in(tmp_path, only_private=True)[100]
    assert "without a promise of privacy" in asked(node)["why"]
    private = Orders("mlp:16", DIGITS.inputs, AdaBest(), LocalTraining(), sd.Fixed(1.0))  # type: ignore[arg-type]
    assert asked(node, orders=private.to_json())["kind"] == "here"


def test_code_that_the_server_names_is_not_run_unless_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef net(): pass")
    told = {**ORDERS.to_json(), "model": f"{tmp_path / 'evil.py'}:net"}
    assert "does not trust" in asked(nodes_in(tmp_path)[100], orders=told)["why"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("where", ["features", "an embedding"])
def test_features_that_the_server_names_are_not_loaded_unless_they_are_trusted(
    where: str, tmp_path: Path
) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef net(rows): return rows")
    inputs = ORDERS.to_json()["inputs"]
    name = f"{tmp_path / 'evil.py'}:net"
    bad = (
        {**inputs, "features": {"name": name}}
        if where == "features"
        else {**inputs, "columns": [{"embedding": name}]}
    )
    answer = asked(nodes_in(tmp_path)[100], orders={**ORDERS.to_json(), "inputs": bad})
    assert "does not trust" in answer["why"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "transformer"},
        {"model": 3},
        {"inputs": {"format": "sordino-inputs/1", "kind": "named"}},
        {"inputs": None},
        {"algorithm": ["fedsgd", {}]},
        {"algorithm": ["adabest", {"mu": -1}]},
        {"algorithm": ["adabest", {"mu": "large"}]},
        {"algorithm": "adabest"},
        {"local": ["sgd", {"momentum": 2}]},
        {"training": {"local_epochs": 0}},
        {"training": {"batch_size": 1.5}},
        {"training": {"unknown": 1}},
        {"clip": ["normalised", {}]},
        {"clip": ["fixed", {"threshold": -1}]},
        {"clip": ["fixed", {"threshold": float("inf")}]},
    ],
)
def test_orders_that_nobody_could_have_given_are_refused(node: Node, change: dict[str, Any]) -> None:
    answer = asked(node, orders={**ORDERS.to_json(), **change})
    assert answer["kind"] == "refused"
    assert answer["why"] in ("orders that this version does not know", "a model that cannot be built here")


def test_orders_come_back_as_they_were() -> None:
    told = json.loads(json.dumps(ORDERS.to_json()))
    assert Orders.from_json(told).to_json() == told
    with pytest.raises(Refused):
        Orders.from_json({})


# Whose rows ---------------------------------------------------------------------------------------------------------


def _table(folder: Path) -> tuple[Table, Path]:
    schema = Schema(TargetColumn("y", labels=("no", "yes")), (Column("age", "number", low=0, high=100),))
    file = folder / "people.csv"
    file.write_text("age,who,y\n10,ann,no\n20,bob,yes\n30,ann,yes\n40,,no\n50,bob,perhaps\n60,eve,no\n")
    return Table(schema), file


def test_users_of_a_table_are_clients_and_rows_that_cannot_be_read_are_nobodys(tmp_path: Path) -> None:
    table, file = _table(tmp_path)
    examples, parts = rows_of_clients(table, NodeSettings("a", str(file), user_column="who"))
    assert sorted(sorted(part.tolist()) for part in parts) == [[0, 2], [1], [5]]
    assert examples.take(torch.tensor([0]))[0].shape == (1, 2)


def test_without_a_column_all_rows_are_of_one_client_or_dealt_in_order(tmp_path: Path) -> None:
    table, file = _table(tmp_path)
    assert [part.tolist() for part in rows_of_clients(table, NodeSettings("a", str(file)))[1]] == [
        [0, 1, 2, 3, 5]
    ]
    parts = rows_of_clients(table, NodeSettings("a", str(file), clients=3))[1]
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [5]]


def test_whose_a_row_is_must_not_be_learnt_from(tmp_path: Path) -> None:
    table, file = _table(tmp_path)
    with pytest.raises(ValueError, match="must not be learnt from"):
        rows_of_clients(table, NodeSettings("a", str(file), user_column="age"))


def test_users_of_arrays_are_numbers_or_words(tmp_path: Path) -> None:
    x, y = DIGITS.train
    file = tmp_path / "rows.npz"
    settings = NodeSettings("a", str(file))
    np.savez(file, x=x[:4].numpy(), y=y[:4].numpy(), users=["ann", "bob", "ann", "ann"])
    assert [part.tolist() for part in rows_of_clients(DIGITS.inputs, settings)[1]] == [[0, 2, 3], [1]]  # type: ignore[arg-type]
    np.savez(file, x=x[:4].numpy(), y=y[:4].numpy(), users=[0.5, 1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="a whole number or a word for each row"):
        rows_of_clients(DIGITS.inputs, settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only a table has a user-column"):
        rows_of_clients(DIGITS.inputs, NodeSettings("a", str(file), user_column="who"))  # type: ignore[arg-type]


# Malformed messages -------------------------------------------------------------------------------------------------


def _recorded(folder: Path, **asked: Any) -> tuple[Node, list[tuple[bytes, bytes]]]:
    """A node in the middle of a federation, and the questions that it was asked."""
    nodes = nodes_in(folder)

    class Stopped(Exception):
        pass

    def stop(number: int, answer: bytes) -> bytes:
        if said(answer).get("round") == 4:
            raise Stopped
        return answer

    link = MemoryLink(nodes, stop)
    asked = {"rounds": 9, "per_round": 12, "seed": 1, "inputs": DIGITS.inputs, "local_epochs": 1, **asked}
    with pytest.raises(Stopped):
        federate_across(across(link), fresh_model(), "mlp:16", **asked)
    return nodes[103], [(question, shared) for number, question, shared in link.asked if number == 103]


def _state(node: Node) -> str:
    digest = hashlib.sha256()
    for path in sorted(node.settings.folder.rglob("*")):
        digest.update(path.name.encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    float("nan"),
    "",
    "x" * 10_000,
    [],
    {},
    [[]],
    [None],
    [-1],
    [1e300],
    "../../etc",
]


def _malformed(good: tuple[bytes, bytes], chance: random.Random) -> Iterator[tuple[bytes, bytes]]:
    """For ever: questions that are damaged in some way."""
    question, shared = good
    header, vectors = unpacked(shared, len(shared))
    while True:
        kind = chance.randrange(6)
        if kind == 0:
            yield _damaged(question, chance), shared
        elif kind == 1:
            yield question, _damaged(shared, chance)
        elif kind == 2:
            name = chance.choice([*said(question)])
            yield changed(question, {name: chance.choice(ODD)}), shared
        elif kind == 3:
            name = chance.choice([*said(question)["now"]])
            yield changed(question, {"now": {**said(question)["now"], name: chance.choice(ODD)}}), shared
        elif kind == 4:
            theta = vectors["theta"].clone()
            theta[chance.randrange(len(theta))] = chance.choice([torch.nan, torch.inf])
            other = chance.choice([theta, theta[:-1], theta[None], theta.repeat(2)])
            yield question, packed(header, {chance.choice(["theta", "h"]): other})
        else:
            count = len(said(question)["asked"])
            name = chance.choice(["asked", "counted", "seeds"])
            yield (
                changed(
                    question,
                    {name: [chance.choice([0, 1, 2**63, -5, 99])] * chance.choice([count, count + 1])},
                ),
                shared,
            )


def _damaged(message: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(message)
    for _ in range(chance.choice((1, 3, 50))):
        damaged[chance.randrange(min(len(damaged), 4000))] = chance.randrange(256)
    if chance.random() < 0.3:
        del damaged[chance.randrange(len(damaged)) :]
    return bytes(damaged)


def _bombarded(folder: Path, count: int) -> tuple[int, int]:
    node, questions = _recorded(folder, algorithm="adabest")
    chance, before = random.Random(7), _state(node)
    bad = _malformed(questions[-1], chance)
    refused = answered = 0
    for _ in range(count):
        question, shared = next(bad)
        answer = said(node.answer(question, shared))
        if answer["kind"] == "refused":
            refused += 1
            assert _state(node) == before
        else:  # damage that left a question which can be asked: a state may follow, and here it is put aside
            answered += 1
            assert answer["kind"] in ("done", "here")
            before = _state(node)
    return refused, answered


@pytest.mark.filterwarnings("ignore")
def test_malformed_questions_are_refused_and_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused, answered = _bombarded(tmp_path, 400)
    assert refused > 250
    assert refused + answered == 400


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_ten_thousand_malformed_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused, answered = _bombarded(tmp_path, 10_000)
    with capsys.disabled():
        print(f"\na node: {refused} refused, {answered} could be answered, no crash")


def test_a_replayed_question_of_an_earlier_round_is_refused_and_one_of_this_round_gives_the_same(
    tmp_path: Path,
) -> None:
    node, questions = _recorded(tmp_path, algorithm="adabest")
    before = _state(node)
    *_, earlier, last = [each for each in questions if said(each[0])["kind"] == "round"]
    assert said(node.answer(*earlier))["why"] == "of an earlier round"
    assert _state(node) == before
    once, again = (node.answer(*last) for _ in range(2))
    assert once == again
