"""Who has which rows: ways to deal a data set out to the clients of a federation.

A partition is a list of row indices for each client, disjoint. Everything is drawn from one NumPy generator, so a seed
names a partition.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.data.groups import units_of
from sordino.named import PARTITIONS

Rows = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]


class Partition(ABC):
    """A rule that deals rows out; settings are the fields of a frozen dataclass."""

    @property
    def clients(self) -> int | None:
        """How many clients there are, if the partition knows."""
        return None

    @abstractmethod
    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        """Row indices of each client, sorted."""


def client_sizes(
    rows: int, clients: int, spread: float, chance: np.random.Generator
) -> npt.NDArray[np.int64]:
    """How many rows each client gets, at least one and together all: equal, or lognormal with this ``spread``."""
    if not 1 <= clients <= rows:
        raise ValueError(
            f"{rows} rows cannot be dealt to {clients} clients: at least one each, so at most {rows}"
        )
    shares = np.ones(clients) if spread == 0 else chance.lognormal(0.0, spread, clients)
    wanted = shares / shares.sum() * rows
    sizes: npt.NDArray[np.int64] = np.maximum(np.floor(wanted).astype(np.int64), 1)
    missing = rows - int(sizes.sum())
    if missing > 0:  # those that lost most by rounding get one more
        sizes[np.argsort(sizes - wanted, kind="stable")[:missing]] += 1
    while missing < 0:  # those that are there for a single row take it from the largest
        largest = np.argsort(-sizes, kind="stable")[: min(-missing, int((sizes > 1).sum()))]
        sizes[largest] -= 1
        missing += len(largest)
    return sizes


def _check_spread(spread: float) -> None:
    if not 0 <= spread < math.inf:
        raise ValueError(f"spread must be a number of at least 0, not {spread:g}")


@dataclass(frozen=True)
class Random(Partition):
    """Independent and identically distributed: every client gets random rows.

    Args:
        spread: Of the clients' sizes, lognormal; 0 is equal sizes.

    >>> dealt = Random().deal(np.arange(10) % 2, clients=5, chance=np.random.default_rng(0))
    >>> [len(rows) for rows in dealt]
    [2, 2, 2, 2, 2]
    """

    spread: float = 0.0  # of the sizes, lognormal; 0 is equal sizes

    def __post_init__(self) -> None:
        _check_spread(self.spread)

    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        sizes = client_sizes(len(labels), clients, self.spread, chance)
        return _cut(chance.permutation(len(labels)), sizes)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each client has a prior over the labels, drawn from Dirichlet(alpha): the smaller alpha, the fewer
    labels.

    A random client that still has room draws a label from its prior, among the labels that are left, and
    gets one of its rows, until all are dealt. That ends: a label is never drawn that has run out.

    Args:
        alpha: Above 0; 0.3 and 0.03 are usual.
        spread: Of the clients' sizes, lognormal; 0 is equal sizes.

    Reference: the way of dealing is that of Acar et al., "Federated learning based on dynamic
    regularization", ICLR 2021.

    >>> labels = np.arange(1000) % 10
    >>> dealt = Dirichlet(alpha=0.03).deal(labels, clients=10, chance=np.random.default_rng(0))
    >>> np.bincount(labels[dealt[0]], minlength=10).tolist()
    [0, 89, 9, 0, 0, 0, 0, 0, 2, 0]
    """

    alpha: float = 0.3
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 1e-100 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be a positive number, not {self.alpha:g}")
        _check_spread(self.spread)

    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        room = client_sizes(len(labels), clients, self.spread, chance).tolist()
        names, codes = np.unique(labels, return_inverse=True)
        piles = [chance.permutation(np.flatnonzero(codes == k)).tolist() for k in range(len(names))]
        logs = self._log_priors(clients, len(names), chance)
        left = np.arange(len(names))  # labels that have not run out
        # What a client draws from: the running sums of its prior over `left`, made anew when a label ran out since.
        sums: list[list[float]] = [[]] * clients
        made_for = [0] * clients
        waiting = list(range(clients))  # clients with room
        dealt: list[list[int]] = [[] for _ in range(clients)]
        luck = chance.random((len(labels), 2)).tolist()
        for who, what in luck:
            place = int(who * len(waiting))
            client = waiting[place]
            if made_for[client] != len(left):
                known = logs[client, left]
                sums[client] = np.cumsum(np.exp(known - known.max())).tolist()
                made_for[client] = len(left)
            of_client = sums[client]
            drawn = min(bisect_right(of_client, what * of_client[-1]), len(of_client) - 1)
            pile = piles[left[drawn]]
            dealt[client].append(pile.pop())
            if not pile:
                left = np.delete(left, drawn)
            room[client] -= 1
            if room[client] == 0:
                waiting[place] = waiting[-1]
                waiting.pop()
        return [np.sort(np.array(rows, dtype=np.int64)) for rows in dealt]

    def _log_priors(self, clients: int, labels: int, chance: np.random.Generator) -> npt.NDArray[np.float64]:
        """Up to a constant for each client. The priors of a tiny alpha are 0 at all labels but one, these are not."""
        # Gamma(alpha) is Gamma(alpha + 1) U^(1/alpha), and a Dirichlet is gammas over their sum.
        gammas = chance.standard_gamma(self.alpha + 1, size=(clients, labels))
        found: npt.NDArray[np.float64] = np.log(gammas) - chance.exponential(size=gammas.shape) / self.alpha
        return found


# Koskela and Honkela's clients: automobile and truck, airplane and ship, cat and dog, bird and frog, deer and horse.
CIFAR_PAIRS = ((1, 9), (0, 8), (3, 5), (2, 6), (4, 7))


@dataclass(frozen=True)
class Pathological(Partition):
    """Clients by groups of labels, with a share of the rows dealt at random.

    Args:
        groups: The labels of each client. None splits the labels, sorted, evenly among the clients, or
            with fewer labels than clients, the clients among the labels. Clients that share a label share its
            rows.
        random: The share of rows dealt at random: 0 is by label only, 1 is random.

    Reference: McMahan et al., 2017, and with a random share Koskela and Honkela, 2020.

    >>> labels = np.arange(12) % 4
    >>> dealt = Pathological().deal(labels, clients=2, chance=np.random.default_rng(0))
    >>> [sorted(set(labels[rows].tolist())) for rows in dealt]
    [[0, 1], [2, 3]]
    """

    groups: tuple[tuple[int, ...], ...] | None = None
    random: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.random <= 1:
            raise ValueError(f"random is a share of the rows and must be in [0, 1], not {self.random:g}")

    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        groups = self._groups(labels, clients)
        mixed = np.zeros(len(labels), dtype=bool)
        mixed[chance.permutation(len(labels))[: round(self.random * len(labels))]] = True
        dealt: list[list[Rows]] = [[] for _ in range(clients)]
        of_label: dict[int, list[int]] = {}
        for client, group in enumerate(groups):
            for label in group:
                of_label.setdefault(label, []).append(client)
        for label, owners in of_label.items():
            rows = chance.permutation(np.flatnonzero((labels == label) & ~mixed))
            for owner, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
                dealt[owner].append(part)
        # What is dealt at random goes where it is missing, so that sizes stay what the groups made them.
        whole = [
            sum(int((labels == label).sum()) / len(of_label[label]) for label in group) for group in groups
        ]
        missing = np.array([max(0.0, w - sum(map(len, d))) for w, d in zip(whole, dealt, strict=True)])
        rest = chance.permutation(np.flatnonzero(mixed))
        shares = (
            missing / missing.sum() * len(rest)
            if missing.sum() > 0
            else np.full(clients, len(rest) / clients)
        )
        cuts = np.round(np.cumsum(shares))[:-1].astype(int)
        for client, part in enumerate(np.split(rest, cuts)):
            dealt[client].append(part)
        found = [np.sort(np.concatenate(parts)) for parts in dealt]
        if min(map(len, found)) == 0:
            raise ValueError("a client got no rows: use fewer clients, or groups of labels that exist")
        return found

    def _groups(self, labels: Labels, clients: int) -> Sequence[Sequence[int]]:
        names = np.unique(labels)
        if self.groups is None:
            if clients > len(names):
                return [[int(names[c % len(names)])] for c in range(clients)]
            return [[int(name) for name in part] for part in np.array_split(names, clients)]
        if len(self.groups) != clients:
            raise ValueError(f"there are {len(self.groups)} groups of labels for {clients} clients: one each")
        missing = set(names.tolist()) - {label for group in self.groups for label in group}
        if missing:
            raise ValueError(
                "a label is in no group: every row must go somewhere, so name all the labels there are"
            )
        return self.groups


@dataclass(frozen=True, eq=False)
class Natural(Partition):
    """The clients there are. With fewer clients than there are, they are random ones.

    Args:
        users: An id for each row.

    >>> dealt = Natural(np.array(["ann", "bo", "ann"])).deal(np.zeros(3), clients=2, chance=np.random.default_rng(0))
    >>> [rows.tolist() for rows in dealt]
    [[0, 2], [1]]
    """

    users: npt.NDArray[Any]

    def __post_init__(self) -> None:
        units_of(self.users, len(self.users))  # or refuse, before anything is counted by it

    @property
    def clients(self) -> int:
        return len(np.unique(self.users))

    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        if self.users.shape != (len(labels),):
            raise ValueError(f"give one user for each of the {len(labels)} rows")
        codes = units_of(self.users, len(labels)).numpy()
        order = np.argsort(codes, kind="stable")
        found = np.split(order, np.cumsum(np.bincount(codes))[:-1])
        if clients > len(found):
            raise ValueError(
                f"there are {len(found)} users and not {clients}: use at most {len(found)} clients"
            )
        if clients == len(found):
            return found
        return [found[i] for i in np.sort(chance.permutation(len(found))[:clients])]


def _cut(order: Rows, sizes: npt.NDArray[np.int64]) -> list[Rows]:
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def partition_named(text: str) -> Partition:
    """What the command line calls a partition.

    >>> partition_named("iid"), partition_named("dirichlet:0.3,spread=0.3"), partition_named("pathological:0.25")
    (Random(spread=0.0), Dirichlet(alpha=0.3, spread=0.3), Pathological(groups=None, random=0.25))
    """
    found: Partition = PARTITIONS.parsed(text)
    return found
