"""The trainings recipes are made of: one way to a central one, one to a federated one, plain numbers out of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sordino.recipes.frame import Result

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sordino.data import Loaded
    from sordino.federated import SeenRound

# torch is imported inside functions, so that a list of the recipes is quick.

Rows = tuple["Tensor", "Tensor"]
_POINTS = 400  # of a curve that is kept


def central(
    network: nn.Module,
    loss: Any,
    train: Any,
    test: Any,
    *,
    data: str,
    method: str,
    settings: dict[str, Any],
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = 1e-5,
    judge: Callable[[nn.Module], None] | None = None,
    **how: Any,
) -> Result:
    """One seeded training by a named method; the rest is as `sordino.train` has it.

    ``judge`` is shown the model that comes out, which need not be ``network`` itself.
    """
    from sordino.methods import method_named
    from sordino.privacy import Budget
    from sordino.training import train as train_it

    chosen = method_named(method, settings)
    run = train_it(
        network,
        loss,
        train,
        test=test,
        method=chosen,
        budget=None if epsilon is None or delta is None or not chosen.private else Budget(epsilon, delta),
        noise_multiplier=noise_multiplier if chosen.private else None,
        delta=delta if epsilon is None and chosen.private else None,
        progress=False,
        data_name=data,
        **how,
    )
    if judge is not None:
        judge(run.model)
    kept = ("n", "parameters", "epsilon", "noise_multiplier", "steps", "seconds")
    scores = [line["test_accuracy"] for line in run.history if "test_accuracy" in line]
    return {
        **{name: run.summary[name] for name in kept},
        "accuracy": run.metrics.get("test_accuracy"),
        "best_accuracy": max(scores, default=None),  # over the evaluations: optimistic
        "test_loss": run.metrics["test_loss"],
        "history": run.history,
    }


def train_named(
    *,
    data: str,
    model: str,
    seed: int,
    test_rows: int | None = None,
    unit_pixels: bool = False,
    rows: int | None = None,
    standardise: str | None = "none",
    **how: Any,
) -> Result:
    """A central training; ``model`` is a spec, or the name of one of the papers' networks.

    ``unit_pixels`` leaves images in [0, 1], where the named sets are standardised. ``rows`` is how many training
    rows the data is to have: other data under the same name is an error, not another result. Inputs are left as they
    are, as in the papers, unless ``standardise`` says otherwise; None is as the method has it.
    """
    loaded = load_for(data, unit_pixels)
    found = len(loaded.train[1])
    if rows is not None and rows != found:
        raise ValueError(
            f"{data} has {found:,} training rows and had {rows:,} when this experiment began: give another --out"
        )
    network = network_for(model, loaded.input_shape, loaded.classes, seed)
    test = None if loaded.test is None else (loaded.test[0][:test_rows], loaded.test[1][:test_rows])
    return central(
        network, cross_entropy(), loaded.train, test, data=data, seed=seed, standardise=standardise, **how
    )


def federated(
    network: nn.Module,
    loss: Any,
    train: Any,
    *,
    data: str,
    seed: int,
    measure: str = "test_accuracy",
    **how: Any,
) -> Result:
    """One seeded federation, its history and its score by round; the rest is as `sordino.federate` has it."""
    import torch

    from sordino.federated import federate

    torch.set_num_threads(1)
    run = federate(network, loss, train, seed=seed, progress=False, data_name=data, **how)
    return {
        **{name: run.summary.get(name) for name in ("parameters", "engine", "rows", "seconds")},
        "epsilon": run.epsilon,
        "scores": [[line["round"], line[measure]] for line in run.history if measure in line],
        "history": run.history,
    }


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
    """A federation for ten classes. ``seed`` is that of the partition, the weights, and everything else.

    ``data`` is a named set, ``emnist-l``, or ``classes``, which is made up; ``rows`` and ``test_rows`` are how many of
    its rows to use. ``watch`` follows the server's h and, where the model is evaluated, its accuracy on the rows of the
    clients that just took part.
    """
    from sordino.federated.algorithms import algorithm_named

    train, test = rows_of(data, rows)
    network, loss = network_for(model, tuple(train[0].shape[1:]), 10, seed), cross_entropy()
    watcher = Watcher(network, loss, rounds, evaluations) if watch else None
    plan: dict[str, Any] = {"rounds": rounds, "evaluations": evaluations, "observe": watcher, **how}
    plan.setdefault("engine", "looped" if model == "fed_cnn:augmented" else "auto")
    plan |= {
        "algorithm": algorithm_named(algorithm, settings),
        "test": (test[0][:test_rows], test[1][:test_rows]),
    }
    found = federated(network, loss, train, data=data, seed=seed, **plan)
    history = found["history"]
    every = next(k for k in (1, 2, 5, 10, 20, 50, 100, rounds) if rounds <= k * _POINTS)
    kept = [line for line in history if line["round"] % every == 0 or line["round"] in (1, rounds)]
    return {
        **{name: found[name] for name in ("parameters", "engine", "rows", "seconds")},
        "rounds": [line["round"] for line in kept],
        "norms": [line["cloud_norm"] for line in kept],
        "measured": [number for number, _ in found["scores"]],
        "accuracy": [score for _, score in found["scores"]],
        "holdout": [line["holdout_accuracy"] for line in history if "holdout_accuracy" in line],
        "participants": [line["train_accuracy"] for line in history if "train_accuracy" in line],
        "correction": None if watcher is None else watcher.found(),
        # Least, median and largest of the clients, by round; nothing where they have no rate of their own.
        "rates": [line["client_rates"] for line in history if "client_rates" in line],
        # Clients whose numbers overflowed, over all rounds.
        "left_out": sum(len(line.get("left_out", ())) for line in history),
    }


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


def cross_entropy() -> nn.Module:
    from torch.nn import CrossEntropyLoss

    return CrossEntropyLoss(reduction="none")


# Data -------------------------------------------------------------------------------------------------------------


def count_rows(*, data: str) -> Result:
    """How many rows a named set has here: some are found in part only."""
    loaded = load_for(data)
    return {"train": len(loaded.train[1]), "test": 0 if loaded.test is None else len(loaded.test[1])}


def missing(data: str) -> str:
    """Why a named set cannot be had here; nothing where it can."""
    from sordino.data import load

    try:
        load(data)
    except ValueError as error:
        return str(error)
    return ""


@lru_cache(maxsize=2)
def load_for(name: str, unit_pixels: bool = False) -> Loaded:
    """A named set, with images in [0, 1] if asked for; read once in a process."""
    import torch

    from sordino.data import load

    loaded = load(name)
    if not unit_pixels:
        return loaded
    shape = (1, -1, *[1] * (len(loaded.input_shape) - 1))
    mean, std = torch.tensor(loaded.mean).view(shape), torch.tensor(loaded.std).view(shape)
    train, test = loaded.train, loaded.test
    return replace(
        loaded,
        train=(train[0] * std + mean, train[1]),
        test=None if test is None else (test[0] * std + mean, test[1]),
        mean=(0.0,),
        std=(1.0,),
    )


def rows_of(data: str, rows: int | None) -> tuple[Rows, Rows]:
    """Training and test rows by name; ``rows`` of the training rows, where that is fewer."""
    if data == "classes":
        if rows is None:
            raise ValueError("made-up classes need a number of rows")
        return made_up_classes(rows)
    loaded = load_for("emnist-letters" if data == "emnist-l" else data)
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


# Networks ---------------------------------------------------------------------------------------------------------


def network_for(model: str, shape: Sequence[int], classes: int, seed: int) -> nn.Module:
    """A model by its spec, or one of the papers' networks by its name, with weights drawn from ``seed``."""
    import torch

    import sordino.models as models
    from sordino.named import MODELS

    torch.manual_seed(seed)
    name, _, variant = model.partition(":")
    if name in MODELS:
        return models.build_model(model, shape, classes)
    network: nn.Module = getattr(models, name)(**{variant: True} if variant else {})
    return network
