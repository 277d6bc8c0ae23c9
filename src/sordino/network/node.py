"""A node of a federation: rows of its own, the clients they belong to, and answers to what the server asks.

Nothing that is asked is believed before it was checked, and nothing of a row is said but what was asked for: under
privacy clipped updates, and zeros of a client that failed.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.data.inputs import Inputs
from sordino.data.sources import Examples
from sordino.data.table import Table
from sordino.features.featured import names_of_features
from sordino.federated.algorithms import Round
from sordino.federated.machinery import workplace_for
from sordino.federated.options import Means
from sordino.federated.population import Population, Rows
from sordino.federated.rounds import Broadcast, Chunk, Finished, Workplace, in_order_of_work
from sordino.federated.setup import Federation
from sordino.federated.user_level import clipped
from sordino.network.crowd import MOST_CLIENTS
from sordino.network.keeping import Kept, forget, pinned
from sordino.network.orders import Orders
from sordino.network.wire import (
    HEADER,
    PER_CLIENT,
    Refused,
    check_shapes,
    numbers_of,
    packed,
    table_of,
    text_of,
    unpacked,
    whole_of,
    wholes_of,
)
from sordino.vector import ParameterVector

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FEDERATION = re.compile(r"[0-9a-f]{16}")
_HARMLESS = ("none", "scattering")
_BLOCK = 1 << 14  # rows that are looked at together
_LARGEST_QUESTION = HEADER + PER_CLIENT * MOST_CLIENTS


@dataclass(frozen=True)
class NodeSettings:
    """What the owner of a node says: words and numbers, as in ``--node-config``.

    ``clients`` deals the rows to so many clients of the node, in order, where no column or array says whose they are.
    """

    name: str
    data: str
    state: str = ""
    user_column: str = ""
    clients: int = 1
    only_private: bool = False
    trust_code: bool = False

    @staticmethod
    def of(config: Mapping[str, Any]) -> NodeSettings:
        """From a node's configuration; raises ValueError that says what is missing or not known."""
        given = {name.replace("-", "_"): value for name, value in config.items()}
        known = {each.name: each for each in fields(NodeSettings)}
        for name, value in given.items():
            if name in known and type(value).__name__ != str(known[name].type):
                raise ValueError(
                    f"the node's {name.replace('_', '-')} must be a {known[name].type}: mend --node-config"
                )
        missing = [name for name in ("name", "data") if not given.get(name)]
        if missing:
            raise ValueError(
                f'the node has no {" and no ".join(missing)}: start it with --node-config \'name="clinic" '
                'data="/path/to/rows.csv"\''
            )
        found = NodeSettings(**{name: value for name, value in given.items() if name in known})
        if not _NAME.fullmatch(found.name):
            raise ValueError(
                "a node's name has letters, digits, dots and dashes, 64 at most: choose another one"
            )
        if found.clients < 1:
            raise ValueError("a node has at least one client: mend its clients")
        return found

    @property
    def folder(self) -> Path:
        """Where its clients' states lie, on this machine."""
        home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return Path(self.state or f"{home}/sordino/nodes/{self.name}").expanduser()


def answer_of(config: Mapping[str, Any], question: bytes, shared: bytes) -> bytes:
    """The answer of a node that is configured so, also if it is configured wrongly: that is its owner's to read."""
    try:
        node = Node(NodeSettings.of(config))
    except ValueError as error:
        print(error, file=sys.stderr)
        return packed(
            {"kind": "refused", "why": "the node is not set up (its own log says why)", "nonce": ""}, {}
        )
    return node.answer(question, shared)


class Node:
    """Answers messages, one at a time. What it has read of its rows stays, for the next one."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self._told: dict[str, Any] | None = None
        self._desk: _Desk | None = None

    def answer(self, question: bytes, shared: bytes = b"") -> bytes:
        """What goes back, whatever came: a question for this node, and what all nodes of the round are told."""
        nonce = ""
        try:
            header, _ = unpacked(question, _LARGEST_QUESTION)
            vectors = unpacked(shared, len(shared))[1] if shared else {}
            nonce = text_of(header, "nonce")
            body, results = self._answered(header, vectors)
        except Refused as why:
            body, results = {"kind": "refused", "why": str(why)}, {}
        except Exception:
            # For the owner of the rows, on the node's own screen: an error may quote them, so no word of it is sent.
            traceback.print_exc()
            body, results = {"kind": "refused", "why": "the node failed (its own log says why)"}, {}
        return packed({**body, "nonce": nonce}, results)

    def _answered(
        self, header: dict[str, Any], vectors: dict[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        kind = text_of(header, "kind")
        if kind == "goodbye":
            forget(self._folder_of(header))
            return {"kind": "goodbye"}, {}
        desk = self._desk_for(table_of(header, "orders"))
        if kind == "hello":
            return {
                "kind": "here",
                "name": self.settings.name,
                "clients": desk.population.count,
                "rows": desk.rows,
            }, {}
        if kind == "round":
            if self.settings.only_private and header.get("noised") is not True:
                raise Refused(
                    "without noise, and so without a promise, which the owner of this node asks for"
                )
            return _round_at(desk, self._folder_of(header), header, vectors)
        raise Refused("of an unknown kind")

    def _folder_of(self, header: Mapping[str, Any]) -> Path:
        federation = text_of(header, "federation")
        if not _FEDERATION.fullmatch(federation):
            raise Refused("malformed")
        return self.settings.folder / "federations" / federation

    def _desk_for(self, told: dict[str, Any]) -> _Desk:
        if self._desk is None or told != self._told:
            self._check_features(told)
            self._desk, self._told = self._prepared(Orders.from_json(told)), told
        return self._desk

    def _check_features(self, told: dict[str, Any]) -> None:
        """Before anything is made of them: features that are code are code, and those that are models are files."""
        if any(name not in _HARMLESS for name in names_of_features(told)) and not self.settings.trust_code:
            raise Refused(
                "features that have to be loaded, which the owner of this node does not trust (trust-code)"
            )

    def _prepared(self, orders: Orders) -> _Desk:
        if orders.clip is None and self.settings.only_private:
            raise Refused("without a promise of privacy, which the owner of this node asks for")
        if orders.runs_code and not self.settings.trust_code:
            raise Refused("a model that is code, which the owner of this node does not trust (trust-code)")
        try:
            model = orders.built()
        except ValueError:
            raise Refused("a model that cannot be built here") from None
        examples, parts = rows_of_clients(orders.inputs, self.settings)
        if len(parts) > MOST_CLIENTS:
            raise ValueError(f"a node has at most {MOST_CLIENTS:,} clients: split its rows over several")
        # All rows that are there: how many of them can be read depends on what is in them.
        return _Desk(orders, model, Population.of(examples, parts), len(examples))


@dataclass(frozen=True, eq=False)
class _Desk:
    """Where the clients of one node work under one set of orders."""

    orders: Orders
    model: torch.nn.Module
    population: Population
    rows: int
    _digests: dict[bytes, str] = field(default_factory=dict)  # by key

    @cached_property
    def vector(self) -> ParameterVector:
        return ParameterVector(self.model)

    @cached_property
    def _made(self) -> tuple[str, int, Workplace]:
        orders, private = self.orders, self.orders.clip is not None
        typical = float(round(self.population.mean_examples))
        federation = Federation(
            self.model, orders.task, self.vector, self.population, (), orders.algorithm, orders.training, Means(),
            typical, private,
        )  # fmt: skip
        return workplace_for(federation, "auto", self.population.count)

    @property
    def chunk(self) -> int:
        return self._made[1]

    def digest(self, key: bytes) -> str:
        """Of the rows, and of whose they are; useless without the key. Made once: what every round asks is whether a
        node that was started again has read the same."""
        if key in self._digests:
            return self._digests[key]
        digest = hashlib.blake2b(
            (self.population.examples.fingerprint(key) or "").encode(), key=key, digest_size=16
        )
        for client in range(self.population.count):
            digest.update(self.population.rows(client).tobytes() + b";")
        return self._digests.setdefault(key, digest.hexdigest())

    def workplace(self, public_examples: float | None) -> Workplace:
        return replace(self._made[2], public_examples=public_examples)


def rows_of_clients(inputs: Inputs, settings: NodeSettings) -> tuple[Examples, list[Rows]]:
    """The rows of a node as the model sees them, and which of them each client has: those that can be read."""
    source = os.fspath(Path(settings.data).expanduser())
    if settings.user_column:
        if not isinstance(inputs, Table):
            raise ValueError("only a table has a user-column: in an .npz file give an array called users")
        columns = [each for each in inputs.schema.columns if each.kind != "ignore"]
        if settings.user_column in [each.name for each in columns]:
            raise ValueError("the user-column is one of the inputs: whose a row is must not be learnt from")
        table = Table(replace(inputs.schema, columns=tuple(columns), user=settings.user_column))
        found = table.examples(source, users=True)
        owners = found.owners()
        return found, _by_owner(found, owners, owners != 0)
    examples = inputs.examples(source)
    named = _users_in(source, len(examples))
    if named is not None:
        return examples, _by_owner(examples, named, np.ones(len(named), dtype=bool))
    there = np.zeros(len(examples), dtype=bool)
    there[_readable(examples)] = True
    parts = np.array_split(np.arange(len(examples)), settings.clients)
    return examples, [part[there[part]] for part in parts]


def _users_in(source: str, rows: int) -> np.ndarray[Any, Any] | None:
    """The array ``users`` of an .npz file, if it has one: a number or a word for each row."""
    if not source.lower().endswith(".npz"):
        return None
    with np.load(source, allow_pickle=False) as file:
        if "users" not in file:
            return None
        users = file["users"]
    if users.shape != (rows,) or users.dtype.kind not in "iuUS":
        raise ValueError("users has a whole number or a word for each row: mend the .npz file")
    return np.unique(users, return_inverse=True)[1]


def _by_owner(examples: Examples, owners: np.ndarray[Any, Any], owned: np.ndarray[Any, Any]) -> list[Rows]:
    """Rows of each owner, in the order of the owners; those that cannot be read are nobody's."""
    known, places = np.unique(owners[owned], return_inverse=True)
    whose = np.full(len(owners), -1)
    whose[owned] = places
    readable = _readable(examples)
    return [readable[whose[readable] == each] for each in range(len(known))]


def _readable(examples: Examples) -> Rows:
    found = []
    for start in range(0, len(examples), _BLOCK):
        block = torch.arange(start, min(start + _BLOCK, len(examples)))
        found.append(start + examples.take_readable(block)[0].numpy())
    return np.concatenate(found).astype(np.int64)


def _round_at(
    desk: _Desk, folder: Path, header: Mapping[str, Any], vectors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The work of a round for the clients that were asked."""
    asked = _Asked.of(desk, header, vectors)
    algorithm, training, private = desk.orders.algorithm, desk.orders.training, desk.orders.clip is not None
    if not asked.clients:
        raise Refused("malformed")
    number = asked.sent.now.number
    with Kept.opened(folder, algorithm.client_vectors, len(desk.vector)) as kept:
        pinned(folder, desk.digest, number)
        if algorithm.client_vectors or training.own_rates:
            had = kept.read(asked.clients, asked.counted, number)
            part, fine = _worked(desk, asked, *had)
            _keep(kept, asked, part, fine, had, private)
        else:
            nothing = torch.zeros(len(asked.clients))
            part, _ = _worked(desk, asked, {}, nothing, nothing.bool())
    about: dict[str, Any] = {"kind": "done", "round": asked.sent.now.number, "clients": asked.clients}
    results = {name: part.sent[name] for name in algorithm.sent_vectors}
    if private:
        assert part.answers is not None
        return about, {**results, "answers": part.answers}
    about |= {
        "failed": {str(client): why for client, why in part.failed.items()},
        "examples": part.examples.flatten().tolist(),
        "rates": part.rates.flatten().tolist(),
    }
    return about, results


def _keep(
    kept: Kept,
    asked: _Asked,
    part: Finished,
    fine: list[int],
    had: tuple[dict[str, Tensor], Tensor, Tensor],
    private: bool,
) -> None:
    """What clients have after the round; under privacy, where a client that failed counts as one that sent zeros, what
    it had before."""
    before, rates, known = had
    failed = [row for row in range(len(asked.clients)) if row not in set(fine) and bool(known[row])]
    rows = [*fine, *(failed if private else [])]
    if not rows:
        return
    states = {name: torch.cat([part.states[name][fine], before[name][rows[len(fine) :]]]) for name in before}
    clients, counted = ([some[row] for row in rows] for some in (asked.clients, asked.counted))
    new = torch.cat([part.rates[fine].flatten().double(), rates[rows[len(fine) :]].double()])
    kept.write(clients, counted, asked.sent.now.number, states, new)


@dataclass(frozen=True, eq=False)
class _Asked:
    """A round as a node is asked for it, checked."""

    clients: list[int]
    counted: list[int]  # of each: the last round that counted, 0 for none
    seeds: list[int]
    public_examples: float | None
    sent: Broadcast

    @staticmethod
    def of(desk: _Desk, header: Mapping[str, Any], vectors: dict[str, Tensor]) -> _Asked:
        size, orders = len(desk.vector), desk.orders
        now = table_of(header, "now")
        number = whole_of(now, "number", least=1)
        clients = wholes_of(header, "asked", most=desk.population.count)
        if len(clients) > MOST_CLIENTS or len(set(clients)) < len(clients):
            raise Refused("malformed")
        counted = wholes_of(header, "counted", len(clients), most=number)
        seeds = wholes_of(header, "seeds", len(clients))
        told = table_of(header, "told")
        numbers = {name: numbers_of({name: [told[name]]}, name, 1, 0.0, 1e15)[0] for name in sorted(told)}
        if not set(numbers) <= set(orders.algorithm.told):
            raise Refused("malformed")
        server = {name: value for name, value in vectors.items() if name != "theta"}
        if not set(server) <= set(orders.algorithm.told) - set(numbers):
            raise Refused("of another shape")
        check_shapes(vectors, dict.fromkeys(("theta", *server), (size,)))
        if not all(bool(value.isfinite().all()) for value in vectors.values()):
            raise Refused("numbers that are not finite")
        real = [(name, 1e15) for name in ("participants", "rate", "steps", "mean_examples")]
        of_round = {name: numbers_of({name: [now.get(name)]}, name, 1, 0.0, most)[0] for name, most in real}
        private = orders.clip is not None
        clip = None
        public = None
        if private:
            state = table_of(header, "clip")
            clip = {"threshold": numbers_of({"c": [state.get("threshold")]}, "c", 1, 1e-12, 1e12)[0]}
            public = numbers_of(header, "public_examples", 1, 1.0, 1e15)[0]
        sent = Broadcast(
            vectors["theta"],
            {**server, **numbers},
            Round(number, whole_of(now, "clients", least=1), **of_round),
            clip,
            header.get("noised") is not False,
        )
        return _Asked(clients, counted, seeds, public, sent)


def _worked(
    desk: _Desk, asked: _Asked, states: dict[str, Tensor], rates: Tensor, known: Tensor
) -> tuple[Finished, list[int]]:
    """What the clients made of it, in the order in which they were asked, and the rows of those that did not fail."""
    now, training = asked.sent.now, desk.orders.training
    counted = torch.tensor(asked.counted, dtype=torch.float64)
    since = torch.where(known, now.number - counted, float(now.number))
    start = torch.full((len(asked.clients),), now.rate, dtype=torch.float64)
    if training.own_rates:
        start = torch.where(known & (rates > 0), rates.double(), start)
    whole = Chunk(
        tuple(asked.clients), states, since.float()[:, None], start.float()[:, None], tuple(asked.seeds)
    )
    workplace = desk.workplace(asked.public_examples)
    # As in a simulation: clients with as many steps side by side.
    rows = {client: row for row, client in enumerate(asked.clients)}
    order = [rows[client] for client in in_order_of_work(asked.clients, desk.population, training.plan)]
    chunks = [whole.some(order[start : start + desk.chunk]) for start in range(0, len(order), desk.chunk)]
    parts = _filled([workplace.finished(chunk, asked.sent) for chunk in chunks], desk)
    if desk.orders.clip is not None:
        assert asked.sent.clip is not None
        names = desk.orders.algorithm.sent_vectors
        parts = [clipped(part, names, desk.orders.clip, asked.sent.clip, asked.sent.noised) for part in parts]
    return _in_order(parts, asked.clients)


def _filled(parts: list[Finished], desk: _Desk) -> list[Finished]:
    """With zeros for chunks of which nothing came, so that all have the same names."""
    size = len(desk.vector)

    def whole(part: Finished) -> Finished:
        if part.fine:
            return part
        zeros = torch.zeros(len(part.clients), size)
        algorithm = desk.orders.algorithm
        return replace(
            part,
            sent=dict.fromkeys(algorithm.sent_vectors, zeros),
            states=dict.fromkeys(algorithm.client_vectors, zeros),
        )

    return [whole(part) for part in parts]


def _in_order(parts: list[Finished], clients: list[int]) -> tuple[Finished, list[int]]:
    together = _joined(parts)
    place = {client: row for row, client in enumerate(together.clients)}
    rows = [place[client] for client in clients]
    part = Finished(
        tuple(clients),
        {name: value[rows] for name, value in together.sent.items()},
        {name: value[rows] for name, value in together.states.items()},
        together.rates[rows],
        together.examples[rows],
        together.failed,
        None if together.answers is None else together.answers[:, rows],
    )
    return part, part.fine


def _joined(parts: list[Finished]) -> Finished:
    first = parts[0]
    return Finished(
        tuple(client for part in parts for client in part.clients),
        {name: torch.cat([part.sent[name] for part in parts]) for name in first.sent},
        {name: torch.cat([part.states[name] for part in parts]) for name in first.states},
        torch.cat([part.rates for part in parts]),
        torch.cat([part.examples for part in parts]),
        {client: why for part in parts for client, why in part.failed.items()},
        None if first.answers is None else torch.cat([_answers(part) for part in parts], dim=1),
    )


def _answers(part: Finished) -> Tensor:
    assert part.answers is not None
    return part.answers
