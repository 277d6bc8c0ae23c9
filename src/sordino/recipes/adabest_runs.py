"""The federated trainings of the AdaBest recipes: named data, model and algorithm in, plain numbers out."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sordino.recipes.frame import Result

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sordino.federated import SeenRound

# torch is imported inside functions, so that a list of the recipes is quick.

_POINTS = 400  # of a curve that is kept
Rows = tuple["Tensor", "Tensor"]


def train_federated(
    *,
    data: str,
    model: str,
    algorithm: str,
    settings: dict[str, Any],
    clients: int,
    per_round: int,
    rounds: int,
    seed: int,
    rows: int | None = None,
    test_rows: int | None = None,
    partition: str = "iid",
    holdout: int = 0,
    local_epochs: int = 5,
    batch_size: int = 45,
    rate: float = 0.1,
    decay: float = 0.998,
    evaluations: int = 10,
    chunk: int | None = None,
    watch: bool = False,
) -> Result:
    """One seeded federation. ``seed`` is that of the partition, the weights, and everything else.

    ``data`` is a named set, ``emnist-l``, or ``classes``, which is made up; ``rows`` and ``test_rows`` are how many of
    its rows to use. ``watch`` follows the server's h and, where the model is evaluated, its accuracy on the rows of the
    clients that just took part.
    """
    import torch

    from sordino.federated import federate
    from sordino.federated.algorithms import algorithm_named

    torch.set_num_threads(1)
    train, test = rows_of(data, rows)
    torch.manual_seed(seed)
    network = network_named(model, tuple(train[0].shape[1:]))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    watcher = Watcher(network, loss, rounds, evaluations) if watch else None
    run = federate(
        network,
        loss,
        train,
        clients=clients,
        partition=partition,
        holdout=holdout,
        algorithm=algorithm_named(algorithm, settings),
        rounds=rounds,
        per_round=per_round,
        local_epochs=local_epochs,
        batch_size=batch_size,
        rate=rate,
        decay=decay,
        test=(test[0][:test_rows], test[1][:test_rows]),
        evaluations=evaluations,
        observe=watcher,
        seed=seed,
        engine="looped" if model == "fed_cnn:augmented" else "auto",
        chunk=chunk,
        progress=False,
        data_name=data,
    )
    measured = [line for line in run.history if "test_accuracy" in line]
    every = next(k for k in (1, 2, 5, 10, 20, 50, 100, rounds) if rounds <= k * _POINTS)
    kept = [line for line in run.history if line["round"] % every == 0 or line["round"] in (1, rounds)]
    return {
        "parameters": run.summary["parameters"],
        "engine": run.summary["engine"],
        "seconds": run.summary["seconds"],
        "rounds": [line["round"] for line in kept],
        "norms": [line["cloud_norm"] for line in kept],
        "measured": [line["round"] for line in measured],
        "accuracy": [line["test_accuracy"] for line in measured],
        "holdout": [line["holdout_accuracy"] for line in measured if "holdout_accuracy" in line],
        "participants": [line["train_accuracy"] for line in measured if "train_accuracy" in line],
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

    def __call__(self, seen: SeenRound) -> dict[str, float]:
        if "h" in seen.server and "update" in seen.mean:
            self._follow(seen)
        return {"train_accuracy": self._of_participants(seen)} if seen.now.number in self._measured else {}

    def _follow(self, seen: SeenRound) -> None:
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

    def _of_participants(self, seen: SeenRound) -> float:
        """Accuracy of the new cloud model on the rows of those who took part, a mean over clients."""
        import torch

        from sordino.tasks import evaluate

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


# Data and networks ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def rows_of(data: str, rows: int | None) -> tuple[Rows, Rows]:
    """Training and test rows by name; ``rows`` of the training rows, where that is fewer."""
    from sordino.data import load

    if data == "classes":
        if rows is None:
            raise ValueError("made-up classes need a number of rows")
        return made_up_classes(rows)
    if data == "emnist-l":
        train, test = (_first_ten(part) for part in _parts(load("emnist-letters")))
    else:
        train, test = _parts(load(data))
    return (train[0][:rows], train[1][:rows]), test


def _parts(loaded: Any) -> tuple[Rows, Rows]:
    assert loaded.test is not None
    return loaded.train, loaded.test


def _first_ten(part: Rows) -> Rows:
    """Letters a to j."""
    kept = part[1] < 10
    return part[0][kept], part[1][kept]


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


def network_named(model: str, shape: tuple[int, ...]) -> nn.Module:
    """A spec of `build_model` for ten classes; or FedDyn's CNN, ``fed_cnn``, also with its augmentation."""
    from sordino.models import build_model

    if model.startswith("fed_cnn"):
        return fed_cnn(augmented=model == "fed_cnn:augmented")
    return build_model(model, shape, 10)


def fed_cnn(classes: int = 10, augmented: bool = False) -> nn.Sequential:
    """For 3x32x32: 797,962 parameters with 10 classes (Acar et al., FedDyn; Varno et al., AdaBest)."""
    from torch import nn

    layers: list[nn.Module] = [_augmentation()] if augmented else []
    layers += [nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, classes)]
    return nn.Sequential(*layers)


def _augmentation() -> nn.Module:
    """In training each image is flipped with probability 1/2, and with 1/2 shifted by up to 4 pixels, zeros around."""
    import torch
    from torch import nn
    from torch.nn import functional

    class FlipAndCrop(nn.Module):
        p = 0.5  # `federate` takes a module with such an attribute for one that draws randomness, as dropout has it
        pad = 4

        def forward(self, images: Tensor) -> Tensor:
            if not self.training:
                return images
            count, _, height, width = images.shape
            padded = functional.pad(images, [self.pad] * 4)
            shifts = torch.randint(0, 2 * self.pad + 1, (2, count))
            shifts[:, torch.rand(count) >= self.p] = self.pad  # in the middle: as it was
            rows, columns = (
                shifts[0, :, None] + torch.arange(height),
                shifts[1, :, None] + torch.arange(width),
            )
            flipped = torch.rand(count) < self.p
            columns[flipped] = columns[flipped].flip(1)
            each = torch.arange(count)[:, None, None]
            return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    return FlipAndCrop()
