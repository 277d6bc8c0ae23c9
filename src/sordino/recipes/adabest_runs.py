"""The federated trainings of the AdaBest recipes: named data, model and algorithm in, plain numbers out."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sordino.recipes.frame import Result
from sordino.recipes.trainings import cross_entropy, federated, network_for

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sordino.federated import Seen

# torch is imported inside functions, so that a list of the recipes is quick.

_POINTS = 400  # of a curve that is kept
Rows = tuple["Tensor", "Tensor"]


def train_federated(
    *,
    data: str,
    model: str,
    algorithm: str,
    settings: dict[str, Any],
    rounds: int,
    seed: int,
    rows: int | None = None,
    test_rows: int | None = None,
    evaluations: int = 10,
    watch: bool = False,
    **how: Any,
) -> Result:
    """One seeded federation. ``seed`` is that of the partition, the weights, and everything else.

    ``data`` is a named set, ``emnist-l``, or ``classes``, which is made up; ``rows`` and ``test_rows`` are how many of
    its rows to use. ``watch`` follows the server's h and, where the model is evaluated, its accuracy on the rows of the
    clients that just took part.
    """
    from sordino.federated.algorithms import algorithm_named

    train, test = rows_of(data, rows)
    network, loss = network_for(model, tuple(train[0].shape[1:]), 10, seed), cross_entropy()
    watcher = Watcher(network, loss, rounds, evaluations) if watch else None
    found = federated(
        network,
        loss,
        train,
        data=data,
        seed=seed,
        algorithm=algorithm_named(algorithm, settings),
        rounds=rounds,
        test=(test[0][:test_rows], test[1][:test_rows]),
        evaluations=evaluations,
        observe=watcher,
        engine="looped" if model == "fed_cnn:augmented" else "auto",
        **how,
    )
    history = found["history"]
    every = next(k for k in (1, 2, 5, 10, 20, 50, 100, rounds) if rounds <= k * _POINTS)
    kept = [line for line in history if line["round"] % every == 0 or line["round"] in (1, rounds)]
    return {
        **{name: found[name] for name in ("parameters", "engine", "seconds")},
        "rounds": [line["round"] for line in kept],
        "norms": [line["cloud_norm"] for line in kept],
        "measured": [number for number, _ in found["scores"]],
        "accuracy": [score for _, score in found["scores"]],
        "holdout": [line["holdout_accuracy"] for line in history if "holdout_accuracy" in line],
        "participants": [line["train_accuracy"] for line in history if "train_accuracy" in line],
        "correction": None if watcher is None else watcher.found(),
    }


# What is seen of a federation -------------------------------------------------------------------------------------


class Watcher:
    """Follows the server's h round by round, and holds FedDyn's against Theorem 1.

    Theorem 1: the norm of h does not grow if and only if
    cos(h, mean update) <= -|P| / (2 |S|) * |mean update| / |h|, h being that before the round.
    """

    def __init__(self, network: nn.Module, loss: Any, rounds: int, evaluations: int) -> None:
        from sordino.runs.resume import marks

        self._network, self._loss = network, loss
        self._measured = marks(rounds, evaluations)
        self._h: Tensor | None = None  # before the round
        self._cosines: list[float] = []
        self._grew = self._foretold = self._agreed = 0

    def __call__(self, seen: Seen) -> dict[str, float]:
        if "h" in seen.server and "update" in seen.mean:
            self._follow(seen)
        return {"train_accuracy": self._of_participants(seen)} if seen.now.number in self._measured else {}

    def _follow(self, seen: Seen) -> None:
        h, update = seen.server["h"].double(), seen.mean["update"].double()
        before, self._h = self._h, h
        if before is None or not (float(before.norm()) > 0 and float(update.norm()) > 0):
            return  # no angle
        cosine = float(before @ update / (before.norm() * update.norm()))
        share = seen.now.participants / seen.now.clients
        grows = cosine > -share / 2 * float(update.norm() / before.norm())
        grew = float(h.norm()) > float(before.norm())
        self._cosines.append(cosine)
        self._grew += grew
        self._foretold += grows
        self._agreed += grows == grew

    def _of_participants(self, seen: Seen) -> float:
        """Accuracy of the new cloud model on the rows of those who took part, a mean over clients."""
        import torch

        from sordino.training import evaluate

        population = seen.population
        assert population is not None  # it is there where there is no privacy
        scores = []
        for client in seen.participants:
            own = population.examples.take(torch.from_numpy(population.rows(client)))
            scores.append(evaluate(self._network, self._loss, own)["test_accuracy"])
        return sum(scores) / len(scores) if scores else math.nan

    def found(self) -> Result:
        count = len(self._cosines)
        return {
            "rounds": count,
            "grew": self._grew,
            "foretold": self._foretold,
            "agreed": self._agreed,
            "cosine": sum(self._cosines) / count if count else None,
            "last_norm": None if self._h is None else float(self._h.norm()),
        }


# Data -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def rows_of(data: str, rows: int | None) -> tuple[Rows, Rows]:
    """Training and test rows by name; ``rows`` of the training rows, where that is fewer."""
    from sordino.data import load

    if data == "classes":
        if rows is None:
            raise ValueError("made-up classes need a number of rows")
        return made_up_classes(rows)
    loaded = load("emnist-letters" if data == "emnist-l" else data)
    assert loaded.test is not None
    train, test = loaded.train, loaded.test
    if data == "emnist-l":
        train, test = ((x[y < 10], y[y < 10]) for x, y in (train, test))  # letters a to j
    return (train[0][:rows], train[1][:rows]), test


def made_up_classes(
    rows: int, features: int = 20, classes: int = 10, test_rows: int = 2000
) -> tuple[Rows, Rows]:
    """Gaussian classes that overlap: points are standard normal around centres of deviation 1/2. Always the same."""
    import torch

    generator = torch.Generator().manual_seed(57)
    centres = 0.5 * torch.randn(classes, features, generator=generator)

    def part(count: int) -> Rows:
        labels = torch.arange(count) % classes
        return centres[labels] + torch.randn(count, features, generator=generator), labels

    test = part(test_rows)
    return part(rows), test
