"""The clients of a round, simulated: who delivers, what they make of the cloud model, and what they keep of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.federated.algorithms import Round
from sordino.federated.conditions import Conditions
from sordino.federated.rounds import Chunk, Finished, State, Workplace, chunks, in_order_of_work, steps_of
from sordino.federated.store import ClientStore
from sordino.noise import Streams

Work = Callable[[Iterable[Chunk], Tensor, State, Round], Iterator[Finished]]  # in this process, or a pool


@dataclass(eq=False)
class Tally:
    """What is known of a round besides its mean. Under user-level privacy none of it may be shown."""

    clients: list[int] = field(default_factory=list)  # that delivered
    examples: list[float] = field(default_factory=list)  # of each
    rates: list[float] = field(default_factory=list)  # of each, if clients have their own
    left_out: dict[int, str] = field(default_factory=dict)  # client: why
    failed: bool = False  # somebody was left out that might not be the next time

    @property
    def all_raised(self) -> bool:
        """Nobody delivered, and each for an error of the program: nothing will come of it."""
        reasons = list(self.left_out.values())
        return bool(reasons) and all(why.startswith("raised") for why in reasons)


@dataclass(eq=False)
class Simulator:
    """Has clients work. What they keep is staged in the store, for ``end_round`` to commit."""

    workplace: Workplace
    work: Work
    store: ClientStore
    streams: Streams
    conditions: Conditions
    wanted: int | None  # at most so many of those that were asked
    chunk: int
    own_rates: bool
    tally: Tally = field(default_factory=Tally)

    def __call__(
        self, chosen: npt.NDArray[np.int64], theta: Tensor, server: State, now: Round
    ) -> Iterator[Finished]:
        """What the chosen clients make of the cloud model, chunk by chunk."""
        self.tally = tally = Tally()
        population, plan = self.workplace.population, self.workplace.plan
        there, tally.left_out = self.conditions.delivered(
            chosen, self.wanted, now.number, self.streams, lambda c: steps_of(c, population, plan), now.steps
        )
        order = in_order_of_work(there.tolist(), population, plan)
        given = chunks(order, self.chunk, now, self.store, self.streams, self.own_rates)
        for part in self.work(given, theta, server, now):
            tally.left_out |= part.failed
            tally.failed = tally.failed or bool(part.failed)
            if part.fine:
                self._stage(part, now, tally)
            yield part

    def end_round(self) -> None:
        self.store.commit()

    def _stage(self, part: Finished, now: Round, tally: Tally) -> None:
        fine: list[Any] = part.fine
        clients, rates = [part.clients[row] for row in fine], part.rates[fine].flatten()
        tally.clients += clients
        tally.examples += part.examples[fine].flatten().tolist()
        if self.own_rates:
            tally.rates += rates.tolist()
        if self.own_rates or self.workplace.algorithm.client_vectors:
            vectors = {name: value[fine] for name, value in part.states.items()}
            since = torch.full((len(fine),), float(now.number))
            self.store.write_many(clients, vectors, {"round": since, "rate": rates})
