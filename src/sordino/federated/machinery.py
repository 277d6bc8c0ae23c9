"""With what a federation is run; for a simulation the engine of gradients, clients side by side, processes: measured,
not told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sordino.federated.aggregate import Crowd
from sordino.federated.engines.gradients import Gradients, engine_named
from sordino.federated.local import OwnLoop
from sordino.federated.options import Means
from sordino.federated.pool import Pool
from sordino.federated.ray_pool import Cluster
from sordino.federated.rounds import Workplace, made_up_batch
from sordino.federated.setup import (
    Federation,
    check_gradients,
    check_own_loop,
    client_store,
    draws_randomness,
    measured_engine,
    worthwhile_workers,
)
from sordino.federated.simulator import Simulator
from sordino.federated.store import ClientStore
from sordino.noise import Streams
from sordino.runs.recording import Recording
from sordino.vector import ParameterVector

_CHUNK = 5  # clients that are stepped together: their vectors stay in the cache


class Machinery(Protocol):
    """Where clients are and work."""

    @property
    def engine(self) -> str: ...
    @property
    def chunk(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a reader of the guarantee must believe because of it."""

    @property
    def repeats(self) -> bool:
        """Whether a round that is repeated is the same."""

    @property
    def sees_rows(self) -> bool:
        """Whether rows of clients are here to be counted."""

    @property
    def rows(self) -> int:
        """Of all clients together."""

    @property
    def kept(self) -> Mapping[str, Any]:
        """For checkpoints: what a resumed run has to choose too."""

    def store(self, federation: Federation, recording: Recording, stack: ExitStack) -> ClientStore:
        """For what is kept of clients here; ``stack`` closes it."""

    def crowd(
        self,
        federation: Federation,
        store: ClientStore,
        streams: Streams,
        wanted: int | None,
        stack: ExitStack,
    ) -> Crowd:
        """Ready to work; ``stack`` ends what was begun. ``wanted``: no more clients of a round than so many."""


MachineryFor = Callable[[Federation, Recording, float], Machinery]


@dataclass(frozen=True, eq=False)
class Simulation:
    """Clients are worked on here: how many of them side by side, and in how many processes, or actors of Ray."""

    workplace: Workplace
    gradients: str  # how they are computed
    chunk: int
    workers: int
    private: bool
    cluster: Cluster | None = None
    repeats = True
    sees_rows = True

    @property
    def rows(self) -> int:
        return len(self.workplace.population.examples)

    @property
    def engine(self) -> str:
        return self.gradients if self.cluster is None else f"{self.gradients} on Ray"

    @property
    def assumptions(self) -> tuple[str, ...]:
        where = "one machine" if self.cluster is None else "the machines of one Ray cluster"
        return (f"this is a simulation: the data of all clients lies on {where}",)

    @property
    def kept(self) -> Mapping[str, Any]:
        return {"engine": self.gradients, **({"workers": self.workers} if self.private else {})}

    def store(self, federation: Federation, recording: Recording, stack: ExitStack) -> ClientStore:
        kind, size = federation.means.store, len(federation.vector)
        return client_store(kind, federation.algorithm, size, recording.checkpoint_folder, stack)

    def crowd(
        self,
        federation: Federation,
        store: ClientStore,
        streams: Streams,
        wanted: int | None,
        stack: ExitStack,
    ) -> Simulator:
        work, patience = self.workplace.in_turn, federation.means.patience
        if self.cluster is not None:
            model, loss = federation.model, federation.task.per_example
            crew = self.cluster.actors(self.workplace, self.gradients, model, loss)
            work = stack.enter_context(Pool(self.workplace, self.workers, patience, crew))
        elif self.workers > 1 or patience is not None:
            work = stack.enter_context(Pool(self.workplace, self.workers, patience))
        own_rates, conditions = federation.training.own_rates, federation.conditions
        return Simulator(self.workplace, work, store, streams, conditions, wanted, self.chunk, own_rates)


def machinery_for(
    federation: Federation, recording: Recording, expected: float, cluster: Cluster | None = None
) -> Simulation:
    """What was left open, chosen by measurement on made-up rows, or as the interrupted run had chosen.

    ``expected`` is how many clients a round has.
    """
    means, vector = federation.means, federation.vector
    if vector.theta.device.type != "cpu":
        if cluster is not None:
            raise ValueError("workers of Ray compute on processors: leave out the device, or the engine ray")
        if means.patience is not None or (means.workers or 1) > 1:
            raise ValueError("worker processes cannot share a device: use workers=1 without patience")
        means = replace(means, workers=1)
    engine = recording.chosen("engine", means.engine if cluster is None else "auto")
    engine, chunk, workplace = workplace_for(federation, engine, expected)
    workers = means.workers or recording.chosen("workers", None)
    if workers is None and cluster is not None:
        workers = min(cluster.processors, math.ceil(expected / chunk))
    elif workers is None:
        workers = _workers(workplace, workplace.gradients, vector, chunk, expected)
    return Simulation(workplace, engine, chunk, workers, federation.private, cluster)


def workplace_for(federation: Federation, engine: str, expected: float) -> tuple[str, int, Workplace]:
    """Where clients of a round of so many are worked on: the engine (measured, if it is ``auto``), how many clients are
    stepped together, and the place itself, tried on made-up rows."""
    means, vector, population = federation.means, federation.vector, federation.population
    model, loss = federation.model, federation.task.per_example
    rule, plan, public = federation.training.rule, federation.training.plan, federation.public_examples
    draws = population.examples.may_draw_randomness or draws_randomness(model)
    chunk = _chunk(means, draws, federation.private, expected)
    if isinstance(rule, OwnLoop):
        check_own_loop(rule, vector.theta, population)
        engine = "looped"
    gradients = engine_named("looped" if engine == "auto" else engine, model, loss, vector, reuse=True)
    if not isinstance(rule, OwnLoop):
        strictly = federation.private or engine == "auto"
        check_gradients(model, gradients, vector.theta, population, plan, strictly)
    if engine == "auto":
        engine, gradients = measured_engine(model, loss, vector, population, plan, chunk)
    return engine, chunk, Workplace(population, gradients, federation.algorithm, rule, plan, public, draws)


def _chunk(means: Means, draws: bool, private: bool, expected: float) -> int:
    # Under privacy no client may decide about another, so nobody waits for the others of a chunk.
    alone = means.engine == "debug" or draws or (private and means.patience is not None)
    return 1 if alone else means.chunk or max(1, min(_CHUNK, round(expected)))


def _workers(
    workplace: Workplace, gradients: Gradients, vector: ParameterVector, chunk: int, expected: float
) -> int:
    if isinstance(workplace.rule, OwnLoop):
        return 1
    public, population = workplace.public_examples, workplace.population
    chunks = math.ceil(expected / chunk)
    batches = workplace.plan.steps(population.mean_examples if public is None else public) * chunks
    call = made_up_batch(population, workplace.plan, chunk)
    return worthwhile_workers(gradients, vector.theta, call, batches, chunks)
