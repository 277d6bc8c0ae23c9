"""One round: who takes part, what they do locally, and what becomes of it. The maths is in `algorithms/` and `local.py`.

Clients are worked on in chunks of a fixed size, in the order of their numbers, and what they send is added up in that
order: the result is the same however many processes worked on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.federated.algorithms import Algorithm, Participants, Round
from sordino.federated.engines.gradients import Gradients
from sordino.federated.local import LocalRule
from sordino.federated.population import LocalPlan, Population, Work
from sordino.federated.store import ClientStore
from sordino.noise import Streams

State = dict[str, object]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some clients of a round and all that their local work depends on."""

    clients: tuple[int, ...]
    who: Participants
    rates: Tensor  # [P, 1]
    work: Work


@dataclass(frozen=True, eq=False)
class Finished:
    """What the clients of a chunk made of it."""

    clients: tuple[int, ...]
    sent: dict[str, Tensor]  # by name, [P, d]
    states: dict[str, Tensor]  # by name, [P, d]
    rates: Tensor  # [P, 1]
    failed: tuple[int, ...] = ()  # of the clients: nothing of them counts


@dataclass(frozen=True, eq=False)
class Workplace:
    """What every chunk shares: where it is worked on may be another process."""

    population: Population
    gradients: Gradients
    algorithm: Algorithm
    rule: LocalRule
    plan: LocalPlan

    def chunk(
        self, clients: Sequence[int], now: Round, store: ClientStore, streams: Streams, rate: float
    ) -> Chunk:
        parts = [self.population.rows(client) for client in clients]
        vectors, numbers, known = store.read(clients)
        since = torch.where(known, now.number - numbers["round"], float(now.number))
        rates = torch.where(known & (numbers["rate"] > 0), numbers["rate"], rate) if self.rule.keeps_rate else None
        examples = torch.tensor([[float(len(part))] for part in parts])
        steps = torch.tensor([[float(self.plan.steps(len(part)))] for part in parts])
        seeds = [streams.seed_for("local", (now.number << 32) + client) for client in clients]
        return Chunk(
            tuple(clients),
            Participants(vectors, since.float()[:, None], examples, steps),
            torch.full((len(parts), 1), rate) if rates is None else rates.float()[:, None],
            Work.of(self.plan, parts, seeds),
        )

    def worked(self, chunk: Chunk, theta: Tensor, server: State, now: Round) -> Finished:
        """The local steps of a chunk: the main loop of a client, for all of them at once."""
        x = theta.repeat(len(chunk.clients), 1)
        offset = self.algorithm.offset(chunk.who, server, now)
        pull = self.algorithm.pull(chunk.who, server, now)
        state = self.rule.start(x, chunk.rates)
        longest, uneven = int(chunk.work.steps.max()), bool((chunk.work.steps != chunk.work.steps[0]).any())
        batch = 0

        def field(at: Tensor) -> Tensor:
            nonlocal batch
            gradients = self.gradients(at, *chunk.work.batch(self.population.examples, batch))
            batch += 1
            if offset is not None:
                gradients += offset
            if pull is not None:
                gradients += pull * (at - theta)
            return gradients

        while batch + self.rule.batches_per_step <= longest:
            active = (chunk.work.steps[:, None] > batch).float() if uneven else None
            self.rule.step(field, x, active, state)
        update = theta - x
        new = self.algorithm.client_update(chunk.who, update, server, now)
        sent = self.algorithm.sends(chunk.who, new, update, server, now)
        fine = torch.stack([part.isfinite().all(1) for part in (*sent.values(), *new.values())]).all(0)
        failed = tuple(client for client, good in zip(chunk.clients, fine.tolist(), strict=True) if not good)
        return Finished(chunk.clients, sent, new, state["rates"], failed)


def add_up(
    finished: Sequence[Finished], weights: Callable[[int], float], size: int, names: Sequence[str]
) -> tuple[dict[str, Tensor], float]:
    """Weighted sums of what was sent, client after client, and the sum of the weights."""
    total, weight = {name: torch.zeros(size) for name in names}, 0.0
    for part in finished:
        for row, client in enumerate(part.clients):
            if client in part.failed:
                continue
            share = weights(client)
            weight += share
            for name in names:
                total[name].add_(part.sent[name][row], alpha=share)
    return total, weight
