"""The clients of a round, simulated: who delivers, what they make of the cloud model, and what they keep of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sordino.federated.algorithms import Algorithm
from sordino.federated.conditions import Conditions
from sordino.federated.rounds import (
    Broadcast,
    Chunk,
    Finished,
    Workplace,
    chunks,
    in_order_of_work,
    steps_of,
)
from sordino.federated.store import ClientStore
from sordino.noise import Streams

Clients = npt.NDArray[np.int64]
Work = Callable[[Iterable[Chunk], Broadcast], Iterator[Finished]]  # in this process, or a pool


@dataclass(frozen=True, eq=False)
class Simulator:
    """Has clients work. What they keep is staged in the store, for the end of the round to commit."""

    workplace: Workplace
    work: Work
    store: ClientStore
    streams: Streams
    conditions: Conditions
    wanted: int | None  # at most so many of those that were asked
    chunk: int
    own_rates: bool

    @property
    def algorithm(self) -> Algorithm:
        return self.workplace.algorithm

    def __call__(self, chosen: Clients, sent: Broadcast) -> Iterator[Finished]:
        """What the chosen clients make of the cloud model, chunk by chunk."""
        there, _ = self.delivering(chosen, sent)
        return self.finished(there, sent)

    def delivering(self, chosen: Clients, sent: Broadcast) -> tuple[Clients, dict[int, str]]:
        """Who of the chosen delivers, and why the others do not."""
        population, plan, now = self.workplace.population, self.workplace.plan, sent.now
        return self.conditions.delivered(
            chosen, self.wanted, now.number, self.streams, lambda c: steps_of(c, population, plan), now.steps
        )

    def finished(self, there: Clients, sent: Broadcast) -> Iterator[Finished]:
        order = in_order_of_work(there.tolist(), self.workplace.population, self.workplace.plan)
        given = chunks(order, self.chunk, sent.now, self.store, self.streams, self.own_rates)
        for part in self.work(given, sent):
            if part.fine and (self.own_rates or self.workplace.algorithm.client_vectors):
                self._stage(part, sent.now.number)
            yield part

    def _stage(self, part: Finished, number: int) -> None:
        fine: list[Any] = part.fine
        vectors = {name: value[fine] for name, value in part.states.items()}
        numbers = {"round": torch.full((len(fine),), float(number)), "rate": part.rates[fine].flatten()}
        self.store.write_many([part.clients[row] for row in fine], vectors, numbers)
