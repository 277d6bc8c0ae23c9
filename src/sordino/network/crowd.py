"""The clients of a federation that are elsewhere, as its rounds see them.

A `Link` carries bytes to nodes and back, and nothing else is asked of it: who is behind an answer, whether it is what
was asked for, and what becomes of those who do not answer is decided here.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.federated.algorithms import Algorithm
from sordino.federated.rounds import Broadcast, Finished
from sordino.federated.setup import Federation
from sordino.federated.store import ClientStore
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
from sordino.noise import Streams

Numbers = npt.NDArray[np.int64]

PATIENCE = 600.0  # seconds that a round waits for nodes, if nobody says otherwise
_AHEAD = 1 << 26  # numbers that wait for their turn, 256 MB: more are added up as they come
MOST_CLIENTS = 1 << 20  # of a node
_POLL = 0.5  # seconds between looks for nodes
_ROWS = 1 << 50  # of a node, at most
_LARGEST = 1e12  # number that a client may send: sums of larger ones overflow


class Link(Protocol):
    """Carries questions to nodes, and their answers back."""

    def nodes(self) -> Sequence[int]:
        """The numbers of the nodes that are connected now."""

    def ask(
        self, questions: Mapping[int, bytes], shared: bytes, most: Mapping[int, int], patience: float
    ) -> Iterator[tuple[int, bytes | None]]:
        """Answers as they come, None of a node that has none; ends when all are there, or patience is. ``shared`` goes
        to all. An answer has at most so many bytes, or it will be refused."""


@dataclass(frozen=True)
class Place:
    """A node that takes part."""

    name: str
    node: int  # its number on the link
    clients: int
    rows: int


@dataclass(eq=False)
class Roll:
    """Which clients are where: nodes in the order of their names, and their clients one after the other."""

    places: list[Place]
    bound: bool  # a name belongs to the node that had it first: nodes prove who they are

    def __post_init__(self) -> None:
        self.places.sort(key=lambda place: place.name)
        self._ends = np.cumsum([place.clients for place in self.places])

    @property
    def clients(self) -> int:
        return int(self._ends[-1])

    @property
    def rows(self) -> int:
        return sum(place.rows for place in self.places)

    def by_place(self, clients: Sequence[int]) -> dict[int, list[int]]:
        """The clients of each place, by its position in the roll."""
        found: dict[int, list[int]] = {}
        for client in clients:
            found.setdefault(int(np.searchsorted(self._ends, client, side="right")), []).append(client)
        return found

    def first(self, place: int) -> int:
        """The number of the first client of a place."""
        return int(self._ends[place]) - self.places[place].clients

    def to_state(self) -> list[list[Any]]:
        return [[place.name, place.node, place.clients, place.rows] for place in self.places]

    @staticmethod
    def from_state(state: list[list[Any]], bound: bool) -> Roll:
        return Roll([Place(*each) for each in state], bound)

    def returned(self, place: Place, there: Collection[int] = ()) -> None:
        """A node that was away is back, perhaps under another number; raises `Refused` for somebody else. ``there`` are
        the numbers that are connected: whoever is among them is not away."""
        for position, known in enumerate(self.places):
            if known.name == place.name:
                if known.node in there:
                    raise Refused("by the name of a node that is there")
                if self.bound and known.node != place.node:
                    raise Refused("by a name that belongs to another node")
                if (known.clients, known.rows) != (place.clients, place.rows):
                    raise Refused("with other clients or rows than it began with")
                self.places[position] = place
                return
        raise Refused("by a name that was not there when the federation began")


def called(
    link: Link, orders: Mapping[str, Any], nodes: Sequence[int], patience: float
) -> tuple[list[Place], dict[int, str]]:
    """Who these nodes say they are, and why the others were not taken."""
    nonces = {node: secrets.token_hex(16) for node in nodes}
    questions = {
        node: packed({"kind": "hello", "orders": orders, "nonce": nonce}, {})
        for node, nonce in nonces.items()
    }
    found: dict[str, Place] = {}
    refused: dict[int, str] = {}
    for node, answer in link.ask(questions, b"", dict.fromkeys(nodes, HEADER), patience):
        if node not in nonces:  # or twice
            continue
        try:
            header, _ = _answered(answer, nonces.pop(node), "here", HEADER)
            place = Place(
                text_of(header, "name", 64),
                node,
                whole_of(header, "clients", 1, MOST_CLIENTS),
                whole_of(header, "rows", 0, _ROWS),
            )
            if place.name in found:
                raise Refused(f"two nodes are called {place.name!r}")
            found[place.name] = place
        except Refused as why:
            refused[node] = str(why)
        except Exception as error:
            refused[node] = f"malformed ({type(error).__name__})"
    return list(found.values()), refused


def _answered(
    answer: bytes | None, nonce: str, kind: str, most: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if answer is None:
        raise Refused("no answer")
    header, vectors = unpacked(answer, most)
    if header.get("nonce") != nonce:
        raise Refused("an answer to something else")
    if header.get("kind") == "refused":
        raise Refused(f"the node refused: {text_of(header, 'why')}")
    if header.get("kind") != kind:
        raise Refused("of an unknown kind")
    return header, vectors


@dataclass(eq=False)
class Distant:
    """Has clients work where they are. Which of their rounds counted is staged in the store, for the end of the round
    to commit."""

    link: Link
    roll: Roll
    orders: Orders
    size: int
    federation: str  # its name on nodes
    store: ClientStore
    streams: Streams
    wanted: int | None  # at most so many of those that were asked
    patience: float
    public_examples: float | None
    refused: dict[str, int] = field(default_factory=dict)  # reason: how many clients, over all rounds

    def __post_init__(self) -> None:
        self._told = self.orders.to_json()

    @property
    def algorithm(self) -> Algorithm:
        return self.orders.algorithm

    def __call__(self, chosen: Numbers, sent: Broadcast) -> Iterator[Finished]:
        return self.finished(chosen, sent)

    def delivering(self, chosen: Numbers, sent: Broadcast) -> tuple[Numbers, dict[int, str]]:
        """All, as far as anybody knows before they were asked."""
        return chosen, {}

    def finished(self, there: Numbers, sent: Broadcast) -> Iterator[Finished]:
        """What clients send, node by node in the order of the roll whoever was first, as far as memory allows."""
        parts = self.roll.by_place(sorted(there.tolist()))
        self._look_for_the_absent(parts)
        if self.wanted is not None:
            taken = self._first_ones(self._asked(parts, sent), parts)
            yield from (self._staged(taken[place], sent) for place in sorted(taken))
            return
        early: dict[int, Finished] = {}
        due = sorted(parts)
        for place, part in self._asked(parts, sent):
            early[place] = part
            while early and (due[0] in early or _numbers_in(early) > _AHEAD):
                following = due[0] if due[0] in early else min(early)
                due.remove(following)
                yield self._staged(early.pop(following), sent)
        assert not due

    def _first_ones(
        self, parts: Iterator[tuple[int, Finished]], asked: Mapping[int, list[int]]
    ) -> dict[int, Finished]:
        """As many as are wanted of those that are done first; the others were not needed."""
        assert self.wanted is not None
        found: dict[int, Finished] = {}
        left = self.wanted
        for place, part in parts:
            over = [part.clients[row] for row in part.fine[left:]]
            left -= len(part.fine) - len(over)
            found[place] = Finished(
                part.clients, part.sent, {}, part.rates, part.examples,
                {**part.failed, **dict.fromkeys(over, "was not needed")},
            )  # fmt: skip
            if left == 0:
                break
        for place in set(asked) - set(found):
            found[place] = Finished.none(asked[place], "was not needed")
        return found

    def _asked(self, parts: Mapping[int, list[int]], sent: Broadcast) -> Iterator[tuple[int, Finished]]:
        """Of each place once: what it sent, or why nothing came."""
        nonces, questions, most, places = {}, {}, {}, {}
        for place, clients in parts.items():
            node = self.roll.places[place].node
            nonces[place] = secrets.token_hex(16)
            questions[node] = self._question(place, clients, sent, nonces[place])
            most[node] = HEADER + (PER_CLIENT + 4 * self._width) * len(clients)
            places[node] = place
        for node, answer in self.link.ask(questions, _shared(sent), most, self.patience):
            if node in places:  # and not twice
                place = places.pop(node)
                yield place, self._checked(place, parts[place], answer, nonces[place], most[node], sent)
        for place in places.values():
            yield place, self._none(parts[place], "no answer in time")

    @property
    def _width(self) -> int:
        """Numbers of a client in an answer."""
        return self.size * len(self.algorithm.sent_vectors) + self._probes

    @property
    def _probes(self) -> int:
        clip = self.orders.clip
        return 0 if clip is None else sum(not probe.vector for probe in clip.probes(1.0, 1.0))

    def _question(self, place: int, clients: Sequence[int], sent: Broadcast, nonce: str) -> bytes:
        now, first = sent.now, self.roll.first(place)
        _, numbers, known = self.store.read(clients)
        counted = torch.where(known, numbers["round"], 0.0).long().tolist()
        told = {name: float(value) for name, value in sent.server.items() if not isinstance(value, Tensor)}
        header = {
            "kind": "round",
            "federation": self.federation,
            "nonce": nonce,
            "orders": self._told,
            "asked": [client - first for client in clients],
            "counted": counted,
            "seeds": [self.streams.seed_for("local", (now.number << 32) + client) for client in clients],
            "now": {
                "number": now.number,
                "clients": now.clients,
                **{
                    name: float(getattr(now, name))
                    for name in ("participants", "rate", "steps", "mean_examples")
                },
            },
            "told": told,
            "clip": sent.clip,
            "noised": sent.noised,
            "public_examples": None if self.public_examples is None else [self.public_examples],
        }
        return packed(header, {})

    def _checked(
        self, place: int, clients: Sequence[int], answer: bytes | None, nonce: str, most: int, sent: Broadcast
    ) -> Finished:
        """What a node sent of its clients, if it is what it was asked for; else nothing of any of them."""
        try:
            header, vectors = _answered(answer, nonce, "done", most)
            return self._believed(place, clients, header, vectors, sent)
        except Refused as why:
            return self._none(clients, str(why))
        except Exception as error:  # nobody but the sender is to blame, and it stops no round
            return self._none(clients, f"malformed ({type(error).__name__})")

    def _believed(
        self,
        place: int,
        clients: Sequence[int],
        header: Mapping[str, Any],
        vectors: Mapping[str, Tensor],
        sent: Broadcast,
    ) -> Finished:
        first, count, private = self.roll.first(place), len(clients), self.orders.clip is not None
        if whole_of(header, "round") != sent.now.number or wholes_of(header, "clients", count) != [
            client - first for client in clients
        ]:
            raise Refused("an answer to something else")
        names = self.algorithm.sent_vectors
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, (count, self.size))
        check_shapes(vectors, {**shapes, "answers": (self._probes, count)} if private else shapes)
        largest = torch.stack([torch.linalg.vector_norm(vectors[name], math.inf, dim=1) for name in names])
        fine = (largest <= _LARGEST).all(0).tolist()  # and not of a NaN
        failed = {
            client: "numbers that are not finite, or out of all proportion"
            for client, good in zip(clients, fine, strict=True)
            if not good
        }
        results = {name: vectors[name] for name in names}
        if private:
            ones = torch.ones(count, 1)
            self._count(failed)
            return Finished(
                tuple(clients), results, {}, ones, ones, dict.fromkeys(failed, ""), vectors["answers"]
            )
        said = table_of(header, "failed")
        known = {str(client - first): client for client in clients}
        if not set(said) <= set(known):
            raise Refused("malformed")
        failed |= {known[name]: text_of(said, name, 1000) for name in said}
        self._count(failed)
        examples = numbers_of(header, "examples", count, 0.0, 1e12)
        rates = numbers_of(header, "rates", count, 0.0, 1e30)
        columns = [torch.tensor(column)[:, None] for column in (rates, examples)]
        return Finished(tuple(clients), results, {}, columns[0], columns[1], failed)

    def _none(self, clients: Sequence[int], why: str) -> Finished:
        self._count(dict.fromkeys(clients, why))
        return Finished.none(clients, why if self.orders.clip is None else "")

    def _count(self, failed: Mapping[int, str]) -> None:
        for why in failed.values():
            self.refused[why] = self.refused.get(why, 0) + 1

    def _staged(self, part: Finished, sent: Broadcast) -> Finished:
        fine = part.fine
        if fine:
            rounds = torch.full((len(fine),), float(sent.now.number))
            numbers = {"round": rounds, "rate": part.rates[fine].flatten()}
            self.store.write_many([part.clients[row] for row in fine], {}, numbers)
        return part

    def _look_for_the_absent(self, parts: Mapping[int, Any]) -> None:
        """Nodes that came back under another number are found by their names; where there is none at all, a round waits
        for one, or for nothing but noise privacy would be spent."""
        end = time.monotonic() + self.patience
        while True:
            there = set(self.link.nodes())
            self._find_again(parts, there)
            if there & {place.node for place in self.roll.places}:
                return
            if time.monotonic() > end:
                raise ValueError("no node is there any more: start them again, and resume the run")
            time.sleep(_POLL)

    def _find_again(self, parts: Mapping[int, Any], there: set[int]) -> None:
        gone = [place for place in parts if self.roll.places[place].node not in there]
        strangers = sorted(there - {place.node for place in self.roll.places})
        if not gone or not strangers or self.roll.bound:
            return
        places, _ = called(self.link, self._told, strangers, min(self.patience, 30.0))
        for place in places:
            try:
                self.roll.returned(place, there)
            except Refused as why:
                self.refused[str(why)] = self.refused.get(str(why), 0) + 1


def goodbye(link: Link, roll: Roll, federation: str, patience: float) -> None:
    """The federation is over: nodes that can be reached keep nothing of it."""
    nodes = {place.node for place in roll.places} & set(link.nodes())
    farewell = {"kind": "goodbye", "federation": federation}
    questions = {node: packed({**farewell, "nonce": secrets.token_hex(16)}, {}) for node in nodes}
    for _ in link.ask(questions, b"", dict.fromkeys(nodes, HEADER), patience):
        pass


def _numbers_in(parts: Mapping[int, Finished]) -> int:
    return sum(vector.numel() for part in parts.values() for vector in part.sent.values())


def _shared(sent: Broadcast) -> bytes:
    """What all nodes of a round are told: the cloud model, and vectors of the algorithm."""
    vectors = {name: value.cpu() for name, value in sent.server.items() if isinstance(value, Tensor)}
    return packed({}, {"theta": sent.theta.cpu(), **vectors})


@dataclass(frozen=True, eq=False)
class Network:
    """Machinery whose clients work elsewhere."""

    link: Link
    roll: Roll
    orders: Orders
    patience: float
    engine: str
    assumptions: tuple[str, ...]
    chunk = 1
    workers = 1
    repeats = False  # who answers in time is not ours to repeat
    sees_rows = False

    @property
    def rows(self) -> int:
        return self.roll.rows

    @property
    def kept(self) -> Mapping[str, Any]:
        return {"engine": self.engine, "roll": self.roll.to_state()}

    def store(self, federation: Federation, recording: Any, stack: ExitStack) -> ClientStore:
        return ClientStore((), len(federation.vector), ("round", "rate"))

    def crowd(
        self,
        federation: Federation,
        store: ClientStore,
        streams: Streams,
        wanted: int | None,
        stack: ExitStack,
    ) -> Distant:
        return Distant(
            link=self.link,
            roll=self.roll,
            orders=self.orders,
            size=len(federation.vector),
            federation=streams.identity,
            store=store,
            streams=streams,
            wanted=wanted,
            patience=self.patience,
            public_examples=federation.public_examples,
        )
