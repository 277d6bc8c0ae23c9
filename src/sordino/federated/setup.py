"""What a federation is told, checked and made ready: who has which rows, who takes part, what may go together."""

from __future__ import annotations

import hashlib
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.clipping import ClippingPolicy
from sordino.data import Examples, Poisson, Sampling, Shuffled, WithoutReplacement, as_examples, tree_map
from sordino.data.partitions import Partition, partition_named
from sordino.described import described
from sordino.federated.algorithms import Algorithm
from sordino.federated.conditions import Conditions
from sordino.federated.engines.gradients import Gradients, choose, seconds_of, threads
from sordino.federated.local import LocalRule, OwnLoop
from sordino.federated.options import LocalTraining, Means
from sordino.federated.population import LocalPlan, Population, Rows, rows_or_none
from sordino.federated.rounds import made_up_batch, own_update
from sordino.federated.store import ClientStore
from sordino.gradients import Loss, Unsuitable
from sordino.gradients.calls import where_scores_are
from sordino.noise import Mechanism, Streams
from sordino.runs.resume import behaviour
from sordino.runs.writing import writing
from sordino.tasks import Task, evaluate
from sordino.vector import ParameterVector

_DEFAULT_CLIENTS = 100
_MOST_CLIENTS = 2000  # of a population, in tables; ten times as many in fingerprints


@dataclass(frozen=True, eq=False)
class Federation:
    """Who trains what, and how."""

    model: nn.Module
    task: Task
    vector: ParameterVector
    population: Population
    tuning: Sequence[Rows]  # of clients that never train
    algorithm: Algorithm
    training: LocalTraining
    means: Means
    typical: float  # rows of a client: under privacy what passes for it
    private: bool

    @property
    def public_examples(self) -> float | None:
        return self.typical if self.private else None

    @property
    def conditions(self) -> Conditions:
        return self.means.conditions or Conditions()

    def measure(self, test: Any) -> Callable[[], dict[str, float]] | None:
        """Metrics on test rows, and on those of clients that never train; None if there are neither."""
        if test is None and not self.tuning:
            return None

        def measured() -> dict[str, float]:
            found = evaluate(self.model, self.task, test) if test is not None else {}
            if self.tuning:
                rows = self.population.examples.take(torch.from_numpy(np.sort(np.concatenate(self.tuning))))
                found |= evaluate(self.model, self.task, rows, prefix="holdout_")
            return found

        return measured

    def pins(self, key: bytes) -> dict[str, Any]:
        """What a resumed run must have in common with it: digests, useless without the key."""
        examples = self.population.examples
        return {
            "rows of the data": examples.fingerprint(key),
            "rows of the clients": fingerprint(self.population, key),
            "model or loss": behaviour(self.model, self.vector.theta, self.task.per_example, examples),
            "patience": self.means.patience,
        }


def check_composition(algorithm: Algorithm, rule: LocalRule | OwnLoop) -> None:
    """Raise ValueError for an algorithm and a local rule that make no sense together."""
    if not isinstance(rule, LocalRule | OwnLoop):
        raise ValueError(
            f"local is sgd, adam, adadp, a rule such as LocalSgd(), or OwnLoop(function), not {rule!r}"
        )
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"algorithm is a name or an Algorithm such as AdaBest(), not {algorithm!r}")
    name, local = type(algorithm).__name__, type(rule).__name__
    if isinstance(rule, OwnLoop):
        if algorithm.corrects_gradients:
            raise ValueError(
                f"{name} corrects the gradients of local steps, which your own loop does not show: use fedavg or "
                "fedadam"
            )
        return
    if algorithm.needs_sums_of_gradients and not rule.sums_gradients:
        raise ValueError(
            f"{name} takes a client's update for a sum of gradients times rates, which {local} with momentum does not "
            "make: use sgd without momentum or adadp"
        )
    if algorithm.needs_planned_rates and not rule.keeps_to_plan:
        raise ValueError(
            f"{name}'s server counts on local steps of the planned rate: use sgd, or scaffold, whose clients say how "
            "far they went"
        )


def check_private(
    algorithm: Algorithm,
    own_rates: bool,
    how: Sampling,
    clip: ClippingPolicy,
    independent: bool,
) -> None:
    """Raise ValueError for what has no known price, or no meaning."""
    if clip.by_layer:
        raise ValueError(
            "what a client sends is clipped as one vector: use Fixed, Quantile, Online or Normalised"
        )
    if clip.needs_linear_steps and not algorithm.linear_server:
        raise ValueError(
            "Online follows the derivative of the server's step by the threshold, which for Adam is not known: use "
            "Quantile, or another server"
        )
    stateful = bool(algorithm.client_vectors) or own_rates
    if how.fixed_count is not None and stateful:
        raise ValueError(
            "clients that keep something between rounds have no known price when a fixed number is drawn: use Poisson "
            "sampling, or an algorithm without client state such as fedavg"
        )
    if how.fixed_count is not None and not independent:
        raise ValueError(
            "correlated noise needs clients that come in an order or by turns: use Shuffled, FixedOrder or Separated "
            "participation, or with Banded noise Poisson"
        )


def population_of(
    data: Any,
    partition: Partition | Sequence[Rows] | str,
    clients: int | None,
    holdout: int,
    streams: Streams,
) -> tuple[Population, list[Rows]]:
    """The clients that train, and the rows of those that are held out for tuning."""
    if isinstance(data, Population):
        if holdout or (clients is not None and clients != data.count):
            raise ValueError(
                "a Population says itself who its clients are: leave out clients, partition and holdout"
            )
        return data, []
    examples = as_examples(data)
    if holdout < 0:
        raise ValueError(f"holdout must be a number of clients, not {holdout}")
    chance = np.random.default_rng(streams.seed_for("partition", 0))
    if isinstance(partition, str):
        partition = partition_named(partition)
    if isinstance(partition, Partition):
        if clients is None:
            clients = _DEFAULT_CLIENTS if partition.clients is None else partition.clients - holdout
        if clients < 1:
            raise ValueError(f"a federation needs at least one client, not {clients}")
        parts = partition.deal(_labels(examples), clients + holdout, chance)
    else:
        parts = [_row_numbers(part) for part in partition]
        if clients is not None and clients + holdout != len(parts):
            raise ValueError(
                f"there are rows for {len(parts)} clients and not {clients + holdout}: give one list each"
            )
        if len(parts) <= holdout:
            raise ValueError(f"all of the {len(parts)} clients are held out: somebody has to train")
        inside = [len(part) == 0 or 0 <= part.min() <= part.max() < len(examples) for part in parts]
        if not all(inside):
            raise ValueError(f"a client has rows outside of the {len(examples)} there are: fix the partition")
    aside = set(chance.permutation(len(parts))[:holdout].tolist())
    training = [part for i, part in enumerate(parts) if i not in aside]
    return Population.of(examples, training), [parts[i] for i in sorted(aside)]


def _row_numbers(part: Any) -> Rows:
    rows = np.asarray(part)
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
        raise ValueError("a partition has a list of row numbers for each client: whole numbers")
    return rows.astype(np.int64)


def check_own_loop(rule: OwnLoop, theta: Tensor, population: Population) -> None:
    """Try it on made-up rows, before anybody's work, or privacy, is spent on it."""
    inputs, targets = population.examples.template(5)
    try:
        with torch.enable_grad():
            own_update(rule, theta, inputs, targets, 0)
    except Exception as error:
        raise ValueError(
            f"the loop given as OwnLoop fails on made-up rows: {type(error).__name__}: {error}"
        ) from error


def check_gradients(
    model: nn.Module,
    gradients: Gradients,
    theta: Tensor,
    population: Population,
    plan: LocalPlan,
    strictly: bool,
) -> None:
    """Try model and loss on made-up rows: where every client fails, privacy would be spent on noise alone.

    A model that cannot run on made-up values is refused if ``strictly``; else its clients will tell.
    """
    problems = []
    for ones in (False, True):
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings(action="ignore"):
                gradients(theta.repeat(1, 1), *made_up_batch(population, plan, 1, ones=ones))
            return
        except Unsuitable:
            raise
        except Exception as problem:
            problems.append(problem)
    if strictly or isinstance(problems[0], ValueError):
        kind = "" if isinstance(problems[0], ValueError) else f"{type(problems[0]).__name__}: "
        inputs = tree_map(lambda leaf: leaf.to(theta.device), population.examples.template(5)[0])
        raise Unsuitable(
            where_scores_are(model, inputs, problems[0])
            or f"clients of this model fail on made-up rows: {kind}{problems[0]} (mend it, so that it runs on zeros "
            "or on ones of the shape of the data)"
        ) from problems[0]


def check_disjoint(population: Population) -> None:
    """A row of two clients would count twice."""
    if population.count <= 10 * _MOST_CLIENTS:
        parts = [np.unique(rows_or_none(population, client)) for client in range(population.count)]
        rows = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        if len(np.unique(rows)) < len(rows):
            raise ValueError(
                "a row belongs to two clients, and then no guarantee holds for either: fix the partition"
            )


def fingerprint(population: Population, key: bytes) -> str:
    """Tells one dealing of the rows from another, by the rows of its first clients; useless without the key."""
    digest = hashlib.blake2b(key=key, digest_size=16)
    for client in range(min(population.count, 10 * _MOST_CLIENTS)):
        digest.update(rows_or_none(population, client).astype(np.int64).tobytes() + b";")
    return digest.hexdigest()


def _labels(examples: Examples) -> np.ndarray[Any, Any]:
    kept, _, targets = examples.take_readable(torch.arange(len(examples)))
    labels = np.zeros(len(examples), dtype=np.int64)  # nothing to be skewed by
    if isinstance(targets, Tensor) and targets.dim() == 1 and not targets.is_floating_point():
        labels[kept.numpy()] = targets.numpy().astype(np.int64)
    return labels


def participation_of(
    given: Sampling | None,
    per_round: int,
    clients: int,
    private: bool,
    noise: Mechanism,
    conditions: Conditions,
) -> tuple[Sampling, int | None]:
    """Who is asked: as told, or ``per_round`` clients in the way that fits the noise; and how many of them at most are
    then taken."""
    if private and conditions.over_selection > 1:
        raise ValueError(
            "over-selection takes those who are done first, so one client's speed decides about another: there is no "
            "price for that; use over_selection=1"
        )
    if given is not None and not isinstance(given, Sampling):
        raise ValueError(f"participation is a Sampling such as Poisson(0.1) or FixedOrder(10), not {given!r}")
    if given is None:
        if not 1 <= per_round <= clients:
            raise ValueError(f"per_round must be from 1 to the {clients} clients there are, not {per_round}")
        if not private:
            given = WithoutReplacement(per_round)
        elif noise.sampling == "shuffled":
            given = Shuffled(per_round, every=None)
        else:
            given = Poisson(per_round / clients)
    if conditions.over_selection > 1:
        if given.fixed_count is None:
            raise ValueError(
                "over-selection is for a fixed number of clients a round: leave out participation"
            )
        return WithoutReplacement(conditions.asked(given.fixed_count, clients)), given.fixed_count
    return given, None


def client_store(
    kind: str, algorithm: Algorithm, size: int, folder: Path | None, stack: ExitStack
) -> ClientStore:
    if kind not in ("memory", "file"):
        raise ValueError(f"what clients keep lies in memory or in a file, not in {kind!r}")
    path = None
    if kind == "file" and algorithm.client_vectors:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sordino-")))
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "clients.f32"
    return ClientStore(algorithm.client_vectors, size, ("round", "rate"), path)


def measured_engine(
    model: nn.Module, loss: Loss, vector: ParameterVector, population: Population, plan: LocalPlan, chunk: int
) -> tuple[str, Gradients]:
    """The fastest way to the gradients of a chunk, found out on made-up rows."""
    with threads(
        1
    ):  # what workers have, and what a busy machine does not disturb: there threads wait for each other
        return choose(model, loss, vector, *made_up_batch(population, plan, chunk), reuse=True)


_WORTH_A_POOL = 0.03  # seconds of local work in a round: handing chunks out takes a few thousandths


def worthwhile_workers(
    gradients: Gradients, theta: Tensor, call: tuple[Any, Any, Tensor], batches: int, chunks: int
) -> int:
    """As many processes as torch may use threads, if a round is long enough; else one. Measured on made-up rows."""
    most = min(torch.get_num_threads(), chunks)
    if (
        most < 2
        or "fork" not in multiprocessing.get_all_start_methods()
        or multiprocessing.current_process().daemon
    ):
        return 1
    with torch.random.fork_rng(devices=[]), threads(1):
        seconds = seconds_of(gradients, (theta.repeat(len(call[2]), 1), *call))
    return most if seconds * batches > _WORTH_A_POOL else 1


def draws_randomness(model: nn.Module) -> bool:
    """Whether a training pass may use torch's generator: dropout in some form."""
    return any(
        isinstance(p := getattr(module, name, 0.0), float) and p > 0
        for module in model.modules()
        for name in ("p", "dropout")
    )


def described_partition(partition: Partition | Sequence[Rows] | str | None) -> Any:
    """How the rows were dealt, never which: row numbers tell who has how many, and which."""
    if partition is None:
        return "rows are where they were: nobody dealt them"
    if isinstance(partition, str):
        partition = partition_named(partition)
    if isinstance(partition, Partition):
        return described(partition)
    return f"given as lists, {len(partition)} clients"


def about_clients(population: Population, rates: dict[int, float]) -> dict[str, Any]:
    """Sizes, labels and rates of clients, for figures. None of it is covered by a guarantee."""
    shown = range(min(population.count, _MOST_CLIENTS))
    parts = [rows_or_none(population, client) for client in shown]
    found: dict[str, Any] = {"clients": population.count, "sizes": [len(part) for part in parts]}
    labels = _labels(population.examples)
    if labels.any():
        classes = int(labels.max()) + 1
        if labels.min() >= 0 and classes <= 100:
            found["labels"] = [np.bincount(labels[part], minlength=classes).tolist() for part in parts]
    if rates:
        found["rates"] = {str(client): rate for client, rate in sorted(rates.items())[:_MOST_CLIENTS]}
    return found
