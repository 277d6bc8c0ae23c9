"""`sordino train` with nothing set, on images, beside the best that was published without pre-training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sordino.recipes import show
from sordino.recipes.frame import Job, Report, Result, Run, Table, check_spent, recipe, results_of
from sordino.recipes.one_run_tasks import not_there, prepared, task_rows
from sordino.recipes.paper import Published
from sordino.recipes.trainings import central

SAID = Published(__name__)
DELTA = 1e-5
DATA = ("mnist", "fashion-mnist", "cifar10")
EPSILONS, AS_PUBLISHED = (1.0, 3.0, 8.0), 3.0
WAYS: dict[str, str] = SAID["ways"]  # by what is set: the features that are named
PARTS = (*DATA, *(f"eps={epsilon:g}" for epsilon in EPSILONS))


def train_as_told(*, data: str, features: str, epsilon: float, seed: int) -> Result:
    """What `sordino train DATA --epsilon E --delta 1e-5 --seed S` does, with `--features` where any are named."""
    import torch

    from sordino.models import default_features, default_model, drawn_model
    from sordino.tasks import classification

    front = features or default_features(data)
    loaded = task_rows(data, front)
    model = default_model(data, loaded.input_shape, front)
    network = drawn_model(model, loaded.input_shape, loaded.classes, seed)
    begun = time.monotonic()
    found = central(
        network, classification(), loaded.train, loaded.test, data=data, method="auto", settings={}, epsilon=epsilon,
        delta=DELTA, seed=seed, evaluations=1,
    )  # fmt: skip
    names = ("n", "parameters", "epsilon", "noise_multiplier", "steps", "accuracy")
    said: dict[str, Any] = {"features": front, "model": model, "threads": torch.get_num_threads()}
    return {**{name: found[name] for name in names}, **said, "minutes": (time.monotonic() - begun) / 60}


class Known(NamedTuple):
    """An accuracy that was published, in percent."""

    source: str
    data: str
    how: str
    epsilon: float
    accuracy: float


PUBLISHED = tuple(Known(**each) for each in SAID["published"])


class Cell(NamedTuple):
    data: str
    way: str
    epsilon: float


Found = dict[Cell, list[Result]]


@recipe("records", SAID["cut"], PARTS)
def records(run: Run, quick: bool, only: Sequence[str] = ()) -> Report:
    names = [name for name in DATA if name in only or not set(only) & set(DATA)]
    epsilons = [each for each in EPSILONS if f"eps={each:g}" in only or not set(only) - set(DATA)]
    lacking = {name: why for name in names if (why := not_there(name))}
    there = [name for name in names if name not in lacking]
    if not there:
        raise ValueError(f"none of the data is here: {'; '.join(lacking.values())}")
    # Alone, so that no training is slowed by them, and no features are made twice.
    timed = {
        (name, kind): [Job(f"{name} {kind}", prepared, {"data": name, "features": kind})]
        for name in there
        for kind in dict.fromkeys(_front(name, WAYS[way]) for way in ways(name))
        if kind is not None
    }
    computed = {key: result for key, (result,) in results_of(run, timed).items()}
    seeds = range(1, (3 if quick else 5) + 1)
    # Epsilon 3 first: it is the one that was published.
    order = sorted(epsilons, key=lambda epsilon: (epsilon != AS_PUBLISHED, epsilon))
    jobs = {
        Cell(name, way, epsilon): [_job(name, way, epsilon, seed) for seed in seeds]
        for ours in order
        for name in there
        for way in ways(name)
        for epsilon in ((ours,) if ours != AS_PUBLISHED else (ours, *others_published(name)))
    }
    found = results_of(run, jobs)
    for cell, results in found.items():
        for result in results:
            check_spent(" ".join(map(str, cell)), result, cell.epsilon)
    claims, unreached = _claims(found)
    threads = sorted({int(result["threads"]) for results in found.values() for result in results})
    notes = SAID.notes(
        workers=f"each run had {' or '.join(map(str, threads))} of its threads",
        unreached=", ".join(unreached),
        left_out=", ".join(lacking),
        only=", ".join(only),
        quick=quick,
        cut=SAID["cut"],
    )
    settings = {"delta": DELTA, "seeds": len(seeds), "cells": [_plain(*each) for each in found.items()]}
    return Report([claims, _runs(found, computed, len(seeds))], notes, settings=settings)


def others_published(data: str) -> list[float]:
    """Epsilons a little below 3."""
    return sorted({each.epsilon for each in PUBLISHED if each.data == data} - set(EPSILONS))


def ways(data: str) -> list[str]:
    """What can be set; naming what stands there anyway is no other way."""
    default = (_front(data, "") or "").partition(",")[0]
    return [way for way, features in WAYS.items() if not features or features != default]


def _front(data: str, features: str) -> str | None:
    from sordino.models import default_features

    return features or default_features(data)


def _job(data: str, way: str, epsilon: float, seed: int) -> Job:
    settings = {"data": data, "features": WAYS[way], "epsilon": epsilon, "seed": seed}
    return Job(f"{data} {way} eps={epsilon:g} seed={seed}", train_as_told, settings)


def reached(found: Found, known: Known) -> tuple[Cell, float] | None:
    """Our better way at the largest epsilon that is not above the published one, and its accuracy in percent."""
    epsilons = [cell.epsilon for cell in found if cell.data == known.data and cell.epsilon <= known.epsilon]
    ours = {
        cell: 100 * show.mean_accuracy(results)
        for cell, results in found.items()
        if epsilons and (cell.data, cell.epsilon) == (known.data, max(epsilons))
    }
    return max(ours.items(), key=lambda each: each[1]) if ours else None


def _claims(found: Found) -> tuple[Table, list[str]]:
    rows, unreached = [], []
    for known in PUBLISHED:
        best = reached(found, known)
        text = SAID.text("claims.above", **known._asdict())
        if best is not None:
            cell, accuracy = best
            ours = f"{show.accuracy(found[cell])} ({cell.way}, epsilon {cell.epsilon:g})"
            held = show.verdict([accuracy >= known.accuracy])
            rows.append((text, held, ours, f"{accuracy - known.accuracy:+.2f}"))
        elif any(cell.data == known.data for cell in found):
            unreached.append(text)
    return SAID.table("claims", rows), unreached


def _runs(found: Found, computed: dict[tuple[str, str], Result], seeds: int) -> Table:
    rows = []
    for cell in sorted(found, key=lambda each: (DATA.index(each.data), each.way, each.epsilon)):
        results = found[cell]
        first = results[0]
        features = first["features"]
        known = [each for each in PUBLISHED if (each.data, each.epsilon) == (cell.data, cell.epsilon)]
        timed = computed.get((cell.data, features))
        rows.append(
            (
                cell.data,
                cell.way,
                features or "none",
                f"{first['model']} ({first['parameters']:,} parameters)",
                f"{cell.epsilon:g}",
                show.accuracy(results),
                ", ".join(f"{each.accuracy:g}" for each in known) or "-",
                "-" if timed is None else f"{timed['seconds'] / 60:.1f}",
                show.spread([float(result["minutes"]) for result in results], 1),
                first["threads"],
            )
        )
    return SAID.table("runs", rows, seeds=show.seeds(seeds))


def _plain(cell: Cell, results: Sequence[Result]) -> dict[str, Any]:
    return {**cell._asdict(), "accuracy": [100 * float(result["accuracy"]) for result in results]}
