"""Who has which rows: ways to deal a data set out to the clients of a federation.

A partition is a list of row indices for each client, disjoint. Everything is drawn from one NumPy generator, so a seed
names a partition.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]


class Partition(ABC):
    """A rule that deals rows out; settings are the fields of a frozen dataclass."""

    @abstractmethod
    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        """Row indices of each client, sorted."""


def client_sizes(rows: int, clients: int, spread: float, chance: np.random.Generator) -> npt.NDArray[np.int64]:
    """How many rows each client gets, all of them handed out: equal, or lognormal with this ``spread``."""
    if not 1 <= clients <= rows:
        raise ValueError(f"{rows} rows cannot be dealt to {clients} clients: at least one each, so at most {rows}")
    shares = np.ones(clients) if spread == 0 else chance.lognormal(0.0, spread, clients)
    # One row each, and of the rest whole numbers nearest to the shares: those that lose most by rounding get one more.
    wanted = shares / shares.sum() * (rows - clients)
    sizes = np.floor(wanted).astype(np.int64)
    missing = rows - clients - int(sizes.sum())
    sizes[np.argsort(sizes - wanted, kind="stable")[:missing]] += 1
    return sizes + 1


@dataclass(frozen=True)
class Random(Partition):
    """Independent and identically distributed: every client gets random rows."""

    spread: float = 0.0  # of the sizes, lognormal; 0 is equal sizes

    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        sizes = client_sizes(len(labels), clients, self.spread, chance)
        return _cut(chance.permutation(len(labels)), sizes)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each client has a prior over the labels, drawn from Dirichlet(alpha): the smaller alpha, the fewer labels.

    A random client that still has room draws a label from its prior, among the labels that are left, and gets one of
    its rows, until all are dealt. That ends: a label is never drawn that has run out.
    """

    alpha: float = 0.3
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be positive, not {self.alpha:g}")

    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        room = client_sizes(len(labels), clients, self.spread, chance)
        names, codes = np.unique(labels, return_inverse=True)
        piles = [list(chance.permutation(np.flatnonzero(codes == k))) for k in range(len(names))]
        # A Dirichlet of tiny alpha can be 0 everywhere but at one label; the logarithm of its gammas cannot.
        logs = np.log(chance.gamma(self.alpha + 1, size=(clients, len(names)))) + (
            np.log(chance.random((clients, len(names)))) / self.alpha
        )
        priors = np.exp(logs - logs.max(1, keepdims=True))
        turns = chance.permutation(np.repeat(np.arange(clients), room))
        left = np.array([len(pile) for pile in piles])
        dealt: list[list[int]] = [[] for _ in range(clients)]
        for client, luck in zip(turns.tolist(), chance.random(len(turns)).tolist(), strict=True):
            weights = np.where(left > 0, priors[client], 0.0)
            total = weights.sum()
            if total == 0:  # none of the client's labels is left, not even as a rounding error
                weights, total = np.where(left > 0, np.exp(logs[client] - logs[client][left > 0].max()), 0.0), 0.0
                total = weights.sum()
            label = min(int(np.searchsorted(np.cumsum(weights), luck * total, side="right")), len(left) - 1)
            while left[label] == 0:  # the very end of the last interval, by rounding
                label -= 1
            dealt[client].append(piles[label].pop())
            left[label] -= 1
        return [np.sort(np.array(rows, dtype=np.int64)) for rows in dealt]


@dataclass(frozen=True)
class Pathological(Partition):
    """Clients by groups of labels, with a share of the rows dealt at random: 0 is by label only, 1 is random.

    Without ``groups`` the labels, sorted, are split evenly among the clients.
    """

    groups: tuple[tuple[int, ...], ...] | None = None
    random: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.random <= 1:
            raise ValueError(f"random is a share of the rows and must be in [0, 1], not {self.random:g}")

    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        groups = self._groups(labels, clients)
        mixed = chance.random(len(labels)) < self.random
        dealt: list[list[Rows]] = [[] for _ in range(clients)]
        of_label: dict[int, list[int]] = {}
        for client, group in enumerate(groups):
            for label in group:
                of_label.setdefault(label, []).append(client)
        for label, owners in of_label.items():  # clients that share a label share its rows
            rows = chance.permutation(np.flatnonzero((labels == label) & ~mixed))
            for owner, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
                dealt[owner].append(part)
        # What is dealt at random goes where it is missing, so that sizes stay what the groups made them.
        whole = [sum(int((labels == label).sum()) / len(of_label[label]) for label in group) for group in groups]
        missing = np.array([max(0.0, w - sum(map(len, d))) for w, d in zip(whole, dealt, strict=True)])
        rest = chance.permutation(np.flatnonzero(mixed))
        shares = missing / missing.sum() * len(rest) if missing.sum() > 0 else np.full(clients, len(rest) / clients)
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
            raise ValueError(f"the labels {sorted(missing)} are in no group: every row must go somewhere")
        return self.groups


@dataclass(frozen=True, eq=False)
class Natural(Partition):
    """The clients there are: an id for each row."""

    users: npt.NDArray[np.int64]

    def deal(self, labels: Labels, clients: int, chance: np.random.Generator) -> list[Rows]:
        if self.users.shape != (len(labels),):
            raise ValueError(f"give one user for each of the {len(labels)} rows")
        _, codes = np.unique(self.users, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        found = np.split(order, np.cumsum(np.bincount(codes))[:-1])
        if clients > len(found):
            raise ValueError(f"there are {len(found)} users and not {clients}: use at most {len(found)} clients")
        if clients == len(found):
            return found
        return [found[i] for i in np.sort(chance.permutation(len(found))[:clients])]


def _cut(order: Rows, sizes: npt.NDArray[np.int64]) -> list[Rows]:
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]
