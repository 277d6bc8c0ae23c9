"""The local work of a round. The maths is in `algorithms/` and `local.py`.

Clients are worked on in chunks of a fixed size, and what they send is added up client after client: the result is the
same however many processes worked on it, and memory does not grow with the number of participants.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sordino.data import tree_map
from sordino.data.chance import seeded
from sordino.federated.algorithms import Algorithm, Participants, Round
from sordino.federated.engines.gradients import Gradients
from sordino.federated.local import LocalRule, OwnLoop
from sordino.federated.population import LocalPlan, Population, Rows, Work, rows_or_none
from sordino.federated.store import ClientStore
from sordino.noise import Streams

State = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server hands out in a round."""

    theta: Tensor  # the cloud model
    server: State  # what the algorithm tells its clients
    now: Round
    clip: State | None = None  # under privacy: where the clipping policy stands
    noised: bool = False  # and whether noise hides a client, for which rounding needs room


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some clients of a round, what they kept, and their randomness: all that their local work depends on."""

    clients: tuple[int, ...]
    states: dict[str, Tensor]  # by name, [P, d]
    rounds_since: Tensor  # [P, 1]
    rates: Tensor  # [P, 1]
    seeds: tuple[int, ...]

    def on(self, device: torch.device) -> Chunk:
        """With its vectors where the model is."""
        states = {name: state.to(device) for name, state in self.states.items()}
        return replace(
            self, states=states, rounds_since=self.rounds_since.to(device), rates=self.rates.to(device)
        )

    def one(self, row: int) -> Chunk:
        return self.some([row])

    def some(self, rows: list[int]) -> Chunk:
        return Chunk(
            tuple(self.clients[row] for row in rows),
            {name: state[rows] for name, state in self.states.items()},
            self.rounds_since[rows],
            self.rates[rows],
            tuple(self.seeds[row] for row in rows),
        )


@dataclass(frozen=True, eq=False)
class Finished:
    """What the clients of a chunk made of it."""

    clients: tuple[int, ...]
    sent: dict[str, Tensor]  # by name, [P, d]
    states: dict[str, Tensor]  # by name, [P, d]
    rates: Tensor  # [P, 1]
    examples: Tensor  # [P, 1]
    failed: dict[int, str] = field(
        default_factory=dict
    )  # client: why (not under privacy). Nothing of these counts
    # Under privacy, where what is sent was clipped before it got here: what clients say to the policy's scalar probes.
    answers: Tensor | None = None  # [M, P]

    def on(self, device: torch.device) -> Finished:
        sent, states = (
            {name: value.to(device) for name, value in part.items()} for part in (self.sent, self.states)
        )
        return replace(self, sent=sent, states=states, rates=self.rates.to(device))

    @staticmethod
    def none(clients: Sequence[int], why: str) -> Finished:
        """Clients of which nothing came back."""
        nothing = torch.zeros(len(clients), 1)
        return Finished(tuple(clients), {}, {}, nothing, nothing, dict.fromkeys(clients, why))

    @property
    def fine(self) -> list[int]:
        """The rows that count."""
        return [row for row, client in enumerate(self.clients) if client not in self.failed]


def chunks(
    clients: Sequence[int],
    size: int,
    now: Round,
    store: ClientStore,
    streams: Streams,
    own_rates: bool,
) -> Iterator[Chunk]:
    """The clients of a round in chunks, with what they kept. ``own_rates``: a client's rate is what it last had."""
    for start in range(0, len(clients), size):
        part = tuple(clients[start : start + size])
        vectors, numbers, known = store.read(part)
        since = torch.where(known, now.number - numbers["round"], float(now.number))
        rates = torch.full((len(part),), now.rate, dtype=torch.float64)
        if own_rates:
            rates = torch.where(known & (numbers["rate"] > 0), numbers["rate"], rates)
        seeds = tuple(streams.seed_for("local", (now.number << 32) + client) for client in part)
        yield Chunk(part, vectors, since.float()[:, None], rates.float()[:, None], seeds)


@dataclass(frozen=True, eq=False)
class Workplace:
    """What every chunk shares; where it is worked on may be another process."""

    population: Population
    gradients: Gradients
    algorithm: Algorithm
    rule: LocalRule | OwnLoop
    plan: LocalPlan
    public_examples: float | None = None  # under privacy clients count as having so many
    draws_randomness: bool = False  # dropout and the like: chunks are of one client then

    def in_turn(self, chunks: Iterable[Chunk], sent: Broadcast) -> Iterator[Finished]:
        """What becomes of the chunks, one after the other, in this process."""
        for chunk in chunks:
            yield self.finished(chunk, sent)

    def finished(self, chunk: Chunk, sent: Broadcast) -> Finished:
        """The local work of a chunk. Where a client fails, another of the chunk stands in for it."""
        chance = seeded(chunk.seeds[0]) if self.draws_randomness else nullcontext()
        try:
            with torch.no_grad(), self._unseen(), chance:
                return self._finished(chunk, sent)
        except (Exception, SystemExit) as error:  # a client's own code may even exit
            if len(chunk.clients) == 1:
                return Finished.none(chunk.clients, self.why(f"raised {type(error).__name__}: {error}"))
        alone = [self.finished(chunk.one(row), sent) for row in range(len(chunk.clients))]
        return self.stood_in(chunk, alone, sent)

    def stood_in(self, chunk: Chunk, alone: Sequence[Finished], sent: Broadcast) -> Finished:
        """The chunk once more, with another client in the place of those that failed when each was ``alone``."""
        fine = [row for row, part in enumerate(alone) if not part.failed]
        if not fine or len(fine) == len(alone):
            return joined(alone)
        # Once more as many at a time as before: fewer may come to other last digits (batched convolutions do), and
        # that somebody failed would be in what the others send.
        rows = [row if row in fine else fine[0] for row in range(len(alone))]
        together = self.finished(chunk.some(rows), sent)
        failed = {client: why for part in alone for client, why in part.failed.items()}
        return replace(together, clients=chunk.clients, failed=together.failed | failed)

    def why(self, reason: str) -> str:
        """A reason to leave a client out, which under privacy nobody may know, not even a later log line."""
        return reason if self.public_examples is None else ""

    def _unseen(self) -> AbstractContextManager[Any]:
        """Under privacy without warnings: what a client's rows make a library warn of is the client's."""
        return nullcontext() if self.public_examples is None else warnings.catch_warnings(action="ignore")

    def _finished(self, chunk: Chunk, sent: Broadcast) -> Finished:
        device = sent.theta.device
        if device.type != "cpu":  # what clients keep and send lies in memory
            return self._made_by(chunk.on(device), sent).on(torch.device("cpu"))
        return self._made_by(chunk, sent)

    def _made_by(self, chunk: Chunk, sent: Broadcast) -> Finished:
        parts = [self.population.rows(client) for client in chunk.clients]
        sizes = torch.tensor([[self.plan.examples(len(part))] for part in parts], dtype=torch.float32)
        who = self._participants(chunk, parts, sizes.to(sent.theta.device))
        if isinstance(self.rule, OwnLoop):
            x, rates = self._own_loop(self.rule, chunk, sent.theta), chunk.rates
        else:
            x, state = self._stepped(self.rule, chunk, parts, who, sent)
            rates = state["rates"]
            who = replace(who, length=self.rule.length(state))
        update = sent.theta - x
        new = self.algorithm.client_update(who, update, sent.server, sent.now)
        vectors = self.algorithm.sends(who, new, update, sent.server, sent.now)
        failed = dict.fromkeys(
            _not_finite(chunk.clients, *vectors.values(), *new.values()),
            self.why("returned numbers that are not finite"),
        )
        return Finished(chunk.clients, vectors, new, rates, sizes, failed)

    def _participants(self, chunk: Chunk, parts: Sequence[Rows], sizes: Tensor) -> Participants:
        counted = sizes if self.public_examples is None else torch.full_like(sizes, self.public_examples)
        steps = sizes.new_tensor([[float(self.plan.steps(len(part)))] for part in parts])
        return Participants(chunk.states, chunk.rounds_since, counted, steps)

    def _stepped(
        self, rule: LocalRule, chunk: Chunk, parts: Sequence[Rows], who: Participants, sent: Broadcast
    ) -> tuple[Tensor, State]:
        """The main loop of a client, for all of a chunk at once."""
        work = Work.of(self.plan, parts, chunk.seeds)
        x = sent.theta.repeat(len(chunk.clients), 1)
        offset = self.algorithm.offset(who, sent.server, sent.now)
        pull = self.algorithm.pull(who, sent.server, sent.now)
        state = rule.start(x, chunk.rates)
        batch = 0

        def field(at: Tensor) -> Tensor:
            nonlocal batch
            gradients = self.gradients(at, *work.batch(self.population.examples, batch))
            batch += 1
            if offset is not None:
                gradients += offset
            if pull is not None:
                gradients.addcmul_(pull, at - sent.theta)
            return gradients

        while batch + rule.batches_per_step <= int(work.batches.max()):
            active = work.batches >= batch + rule.batches_per_step
            rule.step(field, x, None if bool(active.all()) else active.to(x), state)
        return x, state

    def _own_loop(self, rule: OwnLoop, chunk: Chunk, theta: Tensor) -> Tensor:
        rows = []
        for client, seed in zip(chunk.clients, chunk.seeds, strict=True):
            batch = self.population.examples.take(torch.from_numpy(self.population.rows(client)))
            inputs, targets = tree_map(lambda leaf: leaf.to(theta.device), batch)
            with torch.enable_grad():
                rows.append(own_update(rule, theta, inputs, targets, seed))
        return torch.stack(rows)


def _not_finite(clients: Sequence[int], *vectors: Tensor) -> list[int]:
    """The clients that have a number that is not finite in one of their vectors [P, d]."""
    largest = [torch.linalg.vector_norm(part, math.inf, dim=1) for part in vectors]
    fine = torch.stack(largest).isfinite().all(0)
    return [client for client, good in zip(clients, fine.tolist(), strict=True) if not good]


def own_update(rule: OwnLoop, theta: Tensor, inputs: Any, targets: Any, seed: int) -> Tensor:
    """What a loop of the user's own makes of the cloud model."""
    x = rule.function(theta.clone(), inputs, targets, torch.Generator().manual_seed(seed))
    if not isinstance(x, Tensor) or x.shape != theta.shape:
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"a client has to return a vector of shape {tuple(theta.shape)}, not {got}")
    return x.detach().to(theta.dtype)


def joined(parts: Sequence[Finished]) -> Finished:
    """Chunks of one client each, some of which failed, as one again: rows of those are zero."""
    fine = next((part for part in parts if not part.failed), None)
    if fine is None:
        gone = Finished.none([client for part in parts for client in part.clients], "")
        return replace(gone, failed={c: why for part in parts for c, why in part.failed.items()})

    def stacked(name: str, key: str) -> Tensor:
        like = getattr(fine, name)[key]
        return torch.cat([getattr(part, name).get(key, torch.zeros_like(like)) for part in parts])

    return Finished(
        tuple(client for part in parts for client in part.clients),
        {key: stacked("sent", key) for key in fine.sent},
        {key: stacked("states", key) for key in fine.states},
        torch.cat([part.rates for part in parts]),
        torch.cat([part.examples for part in parts]),
        {client: why for part in parts for client, why in part.failed.items()},
    )


def made_up_batch(
    population: Population, plan: LocalPlan, clients: int, *, ones: bool = False
) -> tuple[Any, Any, Tensor]:
    """Made-up rows of the right shapes [P, b, ...], to measure engines with."""
    inputs, targets = population.examples.template(clients * plan.batch_size, ones=ones)

    def by_client(leaf: Tensor) -> Tensor:
        return leaf.view(clients, plan.batch_size, *leaf.shape[1:])

    weights = torch.full((clients, plan.batch_size), 1 / plan.batch_size)
    return tree_map(by_client, inputs), tree_map(by_client, targets), weights


def in_order_of_work(clients: Sequence[int], population: Population, plan: LocalPlan) -> list[int]:
    """Clients with as many steps side by side, so that few of a chunk wait for the longest."""
    return sorted(clients, key=lambda client: (-steps_of(client, population, plan), client))


def steps_of(client: int, population: Population, plan: LocalPlan) -> int:
    """Local steps of a client; 0 if it cannot even say what it has, which will be seen when it has to work."""
    return plan.steps(len(rows_or_none(population, client)))


def mean_of(
    finished: Iterable[Finished], names: Sequence[str], size: int, weighted: bool
) -> tuple[dict[str, Tensor] | None, int]:
    """The mean of what was sent, client after client, and how many sent something; None if nobody did."""
    total, weight, count = {name: torch.zeros(size) for name in names}, 0.0, 0
    for part in finished:
        for row in part.fine:
            share = float(part.examples[row]) if weighted else 1.0
            weight, count = weight + share, count + 1
            for name in names:
                total[name].add_(part.sent[name][row], alpha=share)
    if not count:
        return None, 0
    assert math.isfinite(weight)
    return {name: value.div_(weight) for name, value in total.items()}, count
