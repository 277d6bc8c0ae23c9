"""The clients of a federation: which rows each has, and the batches of a local round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data import Examples, as_examples, tree_map
from sordino.registry import is_whole, said

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Population:
    """Clients over one set of examples; nothing is kept of each, so a million cost what those who take part
    cost.

    Args:
        examples: What the clients' rows are taken from: a pair of tensors or a Dataset.
        count: How many clients there are.
        rows: ``rows(client)`` gives an array of row numbers, and is asked for those who take part alone.
        mean_examples: Of a client; public, as are the sizes of clients in training without user-level
            privacy.

    >>> data = torch.zeros(1000, 2), torch.zeros(1000)
    >>> several = Population(data, 10**6, lambda client: np.arange(5) + client % 996, mean_examples=5)
    >>> several.rows(999_999).tolist()
    [15, 16, 17, 18, 19]
    """

    examples: Examples
    count: int
    rows: Callable[[int], Rows]
    mean_examples: float

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("a federation needs at least one client")
        if not isinstance(self.examples, Examples):  # a pair of tensors, a Dataset
            object.__setattr__(self, "examples", as_examples(self.examples))

    @staticmethod
    def of(examples: Examples, parts: Sequence[Rows]) -> Population:
        """From a partition: the rows of each client.

        A client may have no rows, and then sends nothing: under privacy that must not be told from any other client.
        A row that a client has twice counts twice in its own training, and nowhere else.
        """
        if not any(len(part) for part in parts):
            raise ValueError("no client has a row: give at least one client something to train on")
        return Population(examples, len(parts), parts.__getitem__, sum(map(len, parts)) / len(parts))


def rows_or_none(population: Population, client: int) -> Rows:
    """The rows of a client, none if it cannot say. Without a sound: what it warns of, or exits with, is its own."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return population.rows(client)
    except (Exception, SystemExit):
        return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class LocalPlan:
    """How long clients train in a round."""

    epochs: int = 5
    batch_size: int = 45
    top_up: bool = True  # the last batch of an epoch is filled with rows drawn again; else it is a short one
    max_examples: int | None = None  # of a client in a round, drawn anew each time

    def __post_init__(self) -> None:
        for name, value in (("local_epochs", self.epochs), ("batch_size", self.batch_size)):
            if not is_whole(value) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {said(value)}")
        if self.max_examples is not None and self.max_examples < 1:
            raise ValueError(f"max_examples must be at least 1, not {self.max_examples}")

    def examples(self, rows: float) -> float:
        """How many of so many rows a client uses in a round."""
        return rows if self.max_examples is None else min(rows, self.max_examples)

    def steps(self, rows: float) -> int:
        """Batches of a round for a client with so many rows."""
        return self.epochs * math.ceil(self.examples(rows) / self.batch_size)


def local_batches(plan: LocalPlan, rows: Rows, seed: int) -> tuple[Rows, npt.NDArray[np.float32]]:
    """Row indices [K, b] of a client's local steps, and the weights of these rows in their batch's mean."""
    if len(rows) == 0:
        raise ValueError("it has no rows to train on")
    chance = np.random.default_rng(seed)
    if plan.max_examples is not None and len(rows) > plan.max_examples:
        rows = chance.choice(rows, plan.max_examples, replace=False)
    per_epoch = math.ceil(len(rows) / plan.batch_size)
    wanted = per_epoch * plan.batch_size
    indices = np.empty((plan.epochs, wanted), dtype=np.int64)
    weights = np.full((plan.epochs, wanted), 1 / plan.batch_size, dtype=np.float32)
    left = len(rows) - (per_epoch - 1) * plan.batch_size  # rows of the last batch
    for epoch in range(plan.epochs):
        indices[epoch, : len(rows)] = chance.permutation(rows)
        indices[epoch, len(rows) :] = chance.choice(rows, wanted - len(rows))
    if not plan.top_up and left < plan.batch_size:
        weights[:, len(rows) - left : len(rows)] = 1 / left
        weights[:, len(rows) :] = 0.0
    shape = (plan.epochs * per_epoch, plan.batch_size)
    return indices.reshape(shape), weights.reshape(shape)


@dataclass(frozen=True, eq=False)
class Work:
    """The local batches of some clients, as many steps as the longest of them takes."""

    indices: Tensor  # [P, K, b], row numbers
    weights: Tensor  # [P, K, b]; all 0 in steps a client does not take
    batches: Tensor  # [P, 1]: how many a client has

    @staticmethod
    def of(plan: LocalPlan, parts: Sequence[Rows], seeds: Sequence[int]) -> Work:
        found = [local_batches(plan, rows, seed) for rows, seed in zip(parts, seeds, strict=True)]
        longest = max(len(indices) for indices, _ in found)
        indices = np.empty((len(found), longest, plan.batch_size), dtype=np.int64)
        weights = np.zeros((len(found), longest, plan.batch_size), dtype=np.float32)
        for i, (of_client, share) in enumerate(found):
            indices[i, : len(of_client)], weights[i, : len(of_client)] = of_client, share
            indices[i, len(of_client) :] = of_client[0]  # rows of its own, that count nothing
        batches = torch.tensor([[len(of_client)] for of_client, _ in found])
        return Work(torch.from_numpy(indices), torch.from_numpy(weights), batches)

    def batch(self, examples: Examples, step: int) -> tuple[Any, Any, Tensor]:
        """Inputs and targets [P, b, ...] of a step, and their weights [P, b]."""
        clients, _, size = self.indices.shape
        inputs, targets = examples.take(self.indices[:, step].reshape(-1))

        def by_client(leaf: Tensor) -> Tensor:
            return leaf.view(clients, size, *leaf.shape[1:])

        return tree_map(by_client, inputs), tree_map(by_client, targets), self.weights[:, step]
