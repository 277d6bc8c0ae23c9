"""The local work of clients on Ray, for more cores or machines; the result is that of one process, bit for bit.

An actor is a worker of a `Pool`. It gets model and loss once, the cloud model once a round, and with each chunk the
rows of its clients. These are objects of Ray: a machine fetches those of a client when it first works on it, and keeps
them while its store has room. Which clients share a chunk decides about last digits, so chunks are those of one
process, and no actor is dealt a share of the data once and for all. For the same reason, and because nobody but the
door clips, what comes back is what each client sends and not the sum of a chunk.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions
from types import ModuleType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sordino.data import as_examples, tree_map
from sordino.data.tree import Tree, tree_leaves
from sordino.federated.engines.gradients import engine_named
from sordino.federated.pool import packed, unpacked
from sordino.federated.population import Population, Rows
from sordino.federated.rounds import Broadcast, Chunk, Finished, Workplace
from sordino.gradients import Loss
from sordino.vector import ParameterVector

_SILENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told that we run
    # What Ray prints on stdout, and may be a client's doing.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died|Raylet is terminated|marked dead|memory pressure|low on memory",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a warning about GPUs, which we do not use
}

_UNTIL_NEXT = (1, 2, 4, 8, 16)  # seconds between attempts to start a worker


@dataclass(frozen=True, eq=False)
class Cluster:
    """Ray, wherever it runs."""

    ray: Any

    @property
    def processors(self) -> int:
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def actors(self, workplace: Workplace, engine: str, model: nn.Module, loss: Loss) -> Actors:
        return Actors(self.ray, workplace, engine, model, loss)


@contextmanager
def joined() -> Iterator[Cluster]:
    """Ray as the program has initialised it; else that of RAY_ADDRESS or of this machine, or one that ends with us."""
    ray = _imported()
    if ray.is_initialized():
        yield Cluster(ray)
        return
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"Ray cannot be started or reached: {_first_line(error)}") from error
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def _imported() -> Any:
    for name, value in _SILENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ValueError(
            "Ray is not installed: pip install 'sordino[ray]', or leave out engine ray"
        ) from None
    return ray


class Actors:
    """Starts actors, of one thread each: how many there are, and where, then changes nothing."""

    threads = 1

    def __init__(self, ray: Any, workplace: Workplace, engine: str, model: nn.Module, loss: Loss) -> None:
        population = workplace.population
        self._ray, self._kind, self._shares = ray, ray.remote(Place), None
        # Rows that code of the user's makes when asked, perhaps by chance, are made where they are used.
        if not population.examples.may_draw_randomness:
            self._shares = Shares(ray, population)
            population = Population(population.examples.template(1), 1, _nobodys, 1.0)  # type: ignore[arg-type]
        # Gradients are made anew: those that are made here may hold views of parameters.
        shared = replace(workplace, population=population, gradients=cast(Any, None))
        self._place = ray.put(_portable(ray, (engine, model, loss, shared)))

    def packed(self, sent: Broadcast) -> Any:
        return self._ray.put(packed(sent))

    def started(self, count: int) -> list[Actor]:
        """Ready to work: the time that it takes to start is no client's."""
        found: list[Actor] = []
        for seconds in _UNTIL_NEXT:
            found += self._that_live(count - len(found))
            if len(found) == count:
                return found
            time.sleep(seconds)
        raise ValueError("Ray cannot keep workers alive: look at its logs")

    def _that_live(self, count: int) -> list[Actor]:
        # A processor each, so that they spread over machines; if there are too few, rather slowly than never.
        enough = count <= self._ray.available_resources().get("CPU", 0)
        begun = [self._begun(1 if enough else 0) for _ in range(count)]
        found = []
        for actor, answer in [(actor, actor.ready.remote(self._place)) for actor in begun]:
            try:
                reason = self._ray.get(answer)
            except self._ray.exceptions.RayError:  # begun on a machine that is gone, which Ray will notice
                continue
            if reason:
                raise ValueError(f"Ray's workers cannot load what they are sent: {reason}")
            found.append(Actor(self._ray, actor, self._shares))
        return found

    def _begun(self, processors: int) -> Any:
        return self._kind.options(num_cpus=processors, scheduling_strategy="SPREAD").remote()

    def ready(self, busy: list[Actor], timeout: float | None) -> list[Actor]:
        ready, _ = self._ray.wait([actor.result for actor in busy], timeout=timeout)
        return [actor for actor in busy if actor.result in ready]


@dataclass(eq=False)
class Actor:
    """A worker, seen from here."""

    ray: Any
    actor: Any
    shares: Shares | None
    result: Any = None

    def tell(self, news: Any) -> None:
        self.actor.tell.remote(news)

    def give(self, chunk: Chunk) -> None:
        rows = [] if self.shares is None else [self.shares.of(client) for client in chunk.clients]
        self.result = self.actor.work.remote(packed(chunk), *rows)

    def finished(self) -> Finished | None:
        try:
            found = self.ray.get(self.result)
        except self.ray.exceptions.RayError:
            return None
        return None if found is None else unpacked(found)

    def end(self) -> None:
        self.ray.kill(self.actor)


class Shares:
    """The rows of clients as objects of Ray, each once. Those that were not asked for in a long time are let go before
    the store is full: Ray would write them to a disk."""

    def __init__(self, ray: Any, population: Population) -> None:
        stores = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["Alive"]]
        self._ray, self._population, self._room = ray, population, min(stores) / 2
        self._held: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def of(self, client: int) -> Any:
        if client not in self._held:
            rows = self._rows(client)
            size = 0 if isinstance(rows, Raised) else sum(leaf.nbytes for leaf in tree_leaves(rows))
            self._held[client] = self._ray.put(rows), size
            self._bytes += size
        self._held.move_to_end(client)
        while len(self._held) > 1 and self._bytes > self._room:
            _, (_, size) = self._held.popitem(last=False)
            self._bytes -= size
        return self._held[client][0]

    def _rows(self, client: int) -> Tree | Raised:
        try:
            with warnings.catch_warnings(action="ignore"):  # as in `rows_or_none`
                rows = self._population.examples.take(torch.from_numpy(self._population.rows(client)))
                return tree_map(_readable_in_place, rows)
        except (Exception, SystemExit) as error:
            return Raised(type(error).__name__, str(error))


@dataclass(frozen=True)
class Raised:
    """Instead of rows: what a client raised when it was asked for them, for where it counts as its failure."""

    kind: str
    text: str

    def again(self) -> Exception:
        error: Exception = type(self.kind, (Exception,), {})(self.text)
        return error


class Place:
    """Where an actor works. Nothing is raised here: Ray would write it down, and it may quote a row."""

    def ready(self, portable: bytes) -> str:
        """Why it cannot work; nothing if it can."""
        torch.set_num_threads(Actors.threads)
        try:
            engine, model, loss, shared = torch.load(io.BytesIO(portable), weights_only=False)
            gradients = engine_named(engine, model, loss, ParameterVector(model), reuse=True)
        except Exception as error:
            return f"{type(error).__name__}: {_first_line(error)}"
        self._workplace: Workplace = replace(shared, gradients=gradients)
        return ""

    def tell(self, news: bytes) -> None:
        self._news: Broadcast = unpacked(news)

    def work(self, packed_chunk: bytes, *rows: Any) -> bytes | None:
        """What became of the chunk; None if that cannot be said."""
        try:
            chunk, workplace = unpacked(packed_chunk), self._workplace
            if rows:
                workplace = replace(
                    workplace, population=_of_chunk(workplace.population, chunk.clients, rows)
                )
            return packed(workplace.finished(chunk, self._news))
        except Exception:
            return None


def _of_chunk(nobody: Population, clients: Sequence[int], rows: Sequence[Any]) -> Population:
    """The clients of a chunk with their rows, one after the other behind a made-up row that is nobody's."""
    there = [each for each in rows if not isinstance(each, Raised)]
    with warnings.catch_warnings(action="ignore"):  # that they cannot be written to
        whole = tree_map(
            lambda *leaves: torch.cat([torch.as_tensor(leaf) for leaf in leaves]),
            nobody.examples.template(1),
            *there,
        )
    held: dict[int, Rows | Raised] = {}
    following = 1
    for client, each in zip(clients, rows, strict=True):
        if isinstance(each, Raised):
            held[client] = each
            continue
        count = len(tree_leaves(each)[0])
        held[client] = np.arange(following, following + count)
        following += count

    def rows_of(client: int) -> Rows:
        found = held[client]
        if isinstance(found, Raised):
            raise found.again()
        return found

    return Population(as_examples(whole), len(clients), rows_of, 1.0)


def _readable_in_place(leaf: Tensor) -> Tensor | npt.NDArray[Any]:
    """An array, which workers read where Ray has it: tensors they would unpickle, chunk after chunk."""
    return leaf if leaf.dtype is torch.bfloat16 else leaf.numpy()  # numpy has no such numbers


def _nobodys(client: int) -> Rows:
    raise AssertionError("rows come with their chunk")


def _portable(ray: Any, value: Any) -> bytes:
    """Tensors that share memory still do afterwards, and code of the user's own goes along."""
    buffer, own = io.BytesIO(), _own_modules()
    for module in own:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        torch.save(value, buffer, pickle_module=ray.cloudpickle)
    except Exception as error:
        raise ValueError(
            f"model, loss, local loop or data cannot be sent to Ray's workers: {_first_line(error)}; use another engine"
        ) from error
    finally:
        for module in own:
            ray.cloudpickle.unregister_pickle_by_value(module)
    return buffer.getvalue()


def _own_modules() -> list[ModuleType]:
    """Those of no installed package, which workers could not import."""
    installed = {"sordino", *sys.stdlib_module_names, *packages_distributions()}
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and name == module.__name__
        and name.partition(".")[0] not in installed
    ]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
