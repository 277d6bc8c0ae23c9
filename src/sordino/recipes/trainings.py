"""The trainings recipes are made of: named data, model and method in, plain numbers out."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sordino.recipes.frame import Result

if TYPE_CHECKING:
    from torch import nn

    from sordino.data import Loaded

# torch is imported inside functions, so that a list of the recipes is quick.


def train_named(
    *,
    data: str,
    model: str,
    method: str,
    settings: dict[str, Any],
    epochs: float,
    batch_size: int,
    seed: int,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = 1e-5,
    sampling: str | None = None,
    evaluations: int = 10,
    test_rows: int | None = None,
    accountant: str = "auto",
    unit_pixels: bool = False,
    rows: int | None = None,
) -> Result:
    """One seeded training run; ``model`` is a spec, or the name of one of the papers' networks.

    ``unit_pixels`` leaves images in [0, 1], where the named sets are standardised. ``rows`` is how many training
    rows the data is to have: other data under the same name is an error, not another result.
    """
    import torch

    from sordino.methods import method_named
    from sordino.privacy import Budget
    from sordino.training import train

    loaded = load_for(data, unit_pixels)
    found = len(loaded.train[1])
    if rows is not None and rows != found:
        raise ValueError(
            f"{data} has {found:,} training rows and had {rows:,} when this experiment began: give another --out"
        )
    chosen = method_named(method, settings)
    network = network_for(model, loaded, seed)
    test = loaded.test
    if test is not None and test_rows is not None:
        test = test[0][:test_rows], test[1][:test_rows]
    run = train(
        network,
        torch.nn.CrossEntropyLoss(reduction="none"),
        loaded.train,
        method=chosen,
        epochs=epochs,
        batch_size=batch_size,
        budget=None if epsilon is None or delta is None or not chosen.private else Budget(epsilon, delta),
        noise_multiplier=noise_multiplier if chosen.private else None,
        delta=delta if epsilon is None and chosen.private else None,
        sampling=sampling,
        test=test,
        evaluations=evaluations,
        seed=seed,
        accountant=accountant,
        progress=False,
        data_name=data,
    )
    scores = [line["test_accuracy"] for line in run.history if "test_accuracy" in line]
    return {
        "n": run.summary["n"],
        "parameters": run.summary["parameters"],
        "accuracy": run.metrics["test_accuracy"],
        "best_accuracy": max(scores),  # over the evaluations: optimistic
        "test_loss": run.metrics["test_loss"],
        "epsilon": run.summary["epsilon"],
        "noise_multiplier": run.summary["noise_multiplier"],
        "steps": run.summary["steps"],
        "seconds": run.summary["seconds"],
        "history": run.history,
    }


def network_for(model: str, loaded: Loaded, seed: int) -> nn.Module:
    """A model by its spec, or one of the papers' networks by its name, with weights drawn from ``seed``."""
    import torch

    import sordino.models as models

    torch.manual_seed(seed)
    make = getattr(models, model, None)
    network: nn.Module = (
        make() if callable(make) else models.build_model(model, loaded.input_shape, loaded.classes)
    )
    return network


def count_rows(*, data: str) -> Result:
    """How many rows a named set has here: some are found in part only."""
    loaded = load_for(data)
    return {"train": len(loaded.train[1]), "test": 0 if loaded.test is None else len(loaded.test[1])}


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
