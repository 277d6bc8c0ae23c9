"""AdaBest's stability without a deep network: noise alone, softmax regression, and what beta and mu do there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import numpy as np

from sordino.recipes.adabest_runs import train_federated
from sordino.recipes.frame import Job, Result, Table

Contestant = tuple[str, str, dict[str, Any]]  # label, algorithm, settings


def adabest(beta: float) -> Contestant:
    return f"AdaBest, beta {beta:g}", "adabest", {"beta": beta}


FEDAVG: Contestant = ("FedAvg", "fedavg", {})
FEDDYN: Contestant = ("FedDyn", "feddyn", {})
SCAFFOLD: Contestant = ("SCAFFOLD", "scaffold", {})


@dataclass(frozen=True)
class Sizes:
    """How long each part runs."""

    walks: tuple[int, ...] = (1000, 10_000)
    softmax: int = 2000
    hundred: int = 3000  # rounds of the MLP at 100 clients, one local epoch
    thousand: int = 3000  # and at 1,000 clients, five local epochs
    sweep: int = 400
    betas: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
    mus: tuple[float, ...] = (0.02, 0.04, 0.08, 0.16)
    seeds: tuple[int, ...] = (1, 2)


FULL = Sizes()
QUICK = Sizes((1000,), 500, 150, 300, 150, (0.8, 0.95, 1.0), (0.02, 0.16), (1,))

# Noise alone ------------------------------------------------------------------------------------------------------

# Algorithm, settings, |P|, |S|
WALKS: tuple[tuple[Contestant, int, int], ...] = (
    (FEDAVG, 5, 1000),
    (adabest(0.8), 5, 1000),
    (adabest(0.95), 5, 1000),
    (adabest(1.0), 5, 1000),
    (FEDDYN, 5, 1000),
    (FEDDYN, 10, 100),
)


def walk_variance(algorithm: str, rounds: int, beta: float = 0.0, share: float = 0.0) -> float:
    """Var(theta) of a coordinate after ``rounds``, whose mean updates are independent of variance 1.

    An update of n rounds ago is in theta 1 + beta + ... + beta^n times under AdaBest, 1 + n |P|/|S| times under
    FedDyn (n from 1 for that of this round), and once under FedAvg.
    """
    age = np.arange(1, rounds + 1, dtype=np.float64)
    if algorithm == "adabest":
        times = 1 + age if beta == 1 else (1 - beta ** (age + 1)) / (1 - beta)
    elif algorithm == "feddyn":
        times = 1 + share * age
    else:
        times = np.ones(rounds)
    return float((times**2).sum())


def walk(
    *,
    algorithm: str,
    settings: dict[str, Any],
    participants: int,
    clients: int,
    rounds: int,
    width: int,
) -> Result:
    """The same by chance: ``width`` coordinates through the server's real update, their variance at the end."""
    import torch

    from sordino.federated.algorithms import Round, algorithm_named
    from sordino.steps import Plan

    torch.set_num_threads(1)
    chosen = algorithm_named(algorithm, {**settings, **({} if algorithm == "fedavg" else {"mu": 0.0})})
    generator = torch.Generator().manual_seed(10)
    theta = torch.zeros(width, dtype=torch.float64)
    server = chosen.start(theta, Plan(width, rounds, rounds, 1, participants, 0.0))
    now = Round(1, clients, float(participants), 0.1, 1.0)
    for number in range(1, rounds + 1):
        update = torch.randn(width, dtype=torch.float64, generator=generator)
        chosen.server_update(theta, {"update": update}, server, replace(now, number=number))
    return {"variance": float(theta.square().mean())}  # its mean is 0


def walk_jobs(sizes: Sizes) -> Iterator[Job]:
    for rounds in sizes.walks:
        for (label, algorithm, settings), participants, clients in WALKS:
            yield Job(
                f"noise {label} {participants}/{clients} rounds={rounds}",
                walk,
                {
                    "algorithm": algorithm,
                    "settings": settings,
                    "participants": participants,
                    "clients": clients,
                    "rounds": rounds,
                    "width": max(10_000, 40_000_000 // rounds),
                },
            )


def walk_table(jobs: Sequence[Job], results: Sequence[Result]) -> Table:
    rows = []
    for job, result in zip(jobs, results, strict=True):
        s = job.settings
        share = s["participants"] / s["clients"]
        exact = walk_variance(s["algorithm"], s["rounds"], s["settings"].get("beta", 0.0), share)
        label = job.name.removeprefix("noise ").split(" rounds=")[0].rsplit(" ", 1)[0]
        if s["algorithm"] == "feddyn":
            label += f", {s['participants']} of {s['clients']:,} clients"
        rows.append(
            (
                label,
                f"{s['rounds']:,}",
                f"{exact:,.3f}",
                f"{result['variance']:,.0f}",
                f"{result['variance'] / exact:.3f}",
                f"{(2 / s['width']) ** 0.5:.3f}",
            )
        )
    return Table(
        "Mean updates that are noise of variance 1, no client bias: variance of a cloud parameter (E10)",
        ("algorithm", "rounds", "closed form", "through the server's update", "ratio", "its deviation"),
        rows,
    )


# Softmax regression -----------------------------------------------------------------------------------------------

MARKS = (50, 200, 500, 1000, 2000)
# The specification's measurement on another draw of such data, with K = 5: the norm at MARKS.
_BEFORE = {
    "FedAvg": "4.0 5.3 5.8 6.0 6.05",
    "AdaBest, beta 0.8": "6.6 6.7 6.4 6.3 6.3",
    "AdaBest, beta 0.95": "15.7 7.9 7.2 6.7 6.4",
    "AdaBest, beta 1": "42 59 120 170 308",
    "FedDyn": "8.0 19.7 19.4 6.6 20.3",
}
SOFTMAX = (FEDAVG, adabest(0.8), adabest(0.95), adabest(1.0), FEDDYN)
_CONVEX: dict[str, Any] = {
    "data": "classes",
    "model": "linear",
    "partition": "dirichlet:0.3",
    "local_epochs": 2,  # of 3 batches: 6 local steps
    "batch_size": 15,
}


def softmax_jobs(sizes: Sizes) -> Iterator[Job]:
    for label, algorithm, settings in SOFTMAX:
        yield Job(
            f"softmax {label}",
            train_federated,
            {
                **_CONVEX,
                "algorithm": algorithm,
                "settings": settings,
                "clients": 100,
                "rows": 4500,
                "per_round": 5,
                "rounds": sizes.softmax,
                "evaluations": 40,
                "seed": 1,
                "watch": True,
            },
        )


def softmax_table(sizes: Sizes, results: Sequence[Result]) -> Table:
    marks = [mark for mark in MARKS if mark <= sizes.softmax]
    rows = []
    for (label, _, _), result in zip(SOFTMAX, results, strict=True):
        norms = dict(zip(result["rounds"], result["norms"], strict=True))
        rows.append(
            (
                label,
                *(f"{norms[mark]:.3g}" for mark in marks),
                f"{100 * last(result):.1f}",
                _BEFORE[label].replace(" ", " / "),
            )
        )
    columns = (
        "algorithm",
        *(f"round {mark}" for mark in marks),
        "accuracy, last 5 evaluations, %",
        "measured before, rounds 50 / 200 / 500 / 1,000 / 2,000",
    )
    return Table("Softmax regression, 5 of 100 clients: norm of the cloud model", columns, rows)


def last(result: Result, count: int = 5) -> float:
    return float(mean(result["accuracy"][-count:]))


# What beta and mu do ----------------------------------------------------------------------------------------------

SWEPT_CLIENTS = 200
SWEPT = (1, 10, 100)  # 0.5 %, 5 % and 50 %


def _sweep_job(sizes: Sizes, who: Contestant, per_round: int, seed: int) -> Job:
    label, algorithm, settings = who
    return Job(
        f"sweep {label} {settings} {per_round} of {SWEPT_CLIENTS} seed={seed}",
        train_federated,
        {
            **_CONVEX,
            "algorithm": algorithm,
            "settings": settings,
            "clients": SWEPT_CLIENTS,
            "rows": 45 * SWEPT_CLIENTS,
            "per_round": per_round,
            "rounds": sizes.sweep,
            "evaluations": 20,
            "chunk": min(per_round, 50),
            "seed": seed,
        },
    )


def beta_jobs(sizes: Sizes) -> Iterator[Job]:
    for per_round in SWEPT:
        for beta in sizes.betas:
            for seed in sizes.seeds:
                yield _sweep_job(sizes, adabest(beta), per_round, seed)


def _mu_contestants(sizes: Sizes) -> list[tuple[str, Contestant]]:
    return [
        *(("AdaBest, beta 0.9", ("AdaBest", "adabest", {"beta": 0.9, "mu": mu})) for mu in sizes.mus),
        *(("FedDyn", ("FedDyn", "feddyn", {"mu": mu})) for mu in sizes.mus),
    ]


def mu_jobs(sizes: Sizes) -> Iterator[Job]:
    for per_round in SWEPT:
        for _, who in _mu_contestants(sizes):
            yield _sweep_job(sizes, who, per_round, 1)


def scores_of_betas(sizes: Sizes, results: Sequence[Result]) -> dict[int, dict[float, float]]:
    """Accuracy at every beta, by participants; a mean over seeds."""
    found = iter(results)
    return {
        per_round: {beta: mean(last(next(found)) for _ in sizes.seeds) for beta in sizes.betas}
        for per_round in SWEPT
    }


def beta_table(sizes: Sizes, scores: dict[int, dict[float, float]]) -> Table:
    rows = []
    for per_round, of_beta in scores.items():
        best = max(of_beta, key=lambda beta: of_beta[beta])
        cells = (f"{100 * score:.1f}" for score in of_beta.values())
        rows.append((f"{100 * per_round / SWEPT_CLIENTS:g} %", *cells, f"{best:g}"))
    return Table(
        f"Softmax regression, {SWEPT_CLIENTS} clients: AdaBest's accuracy (%) by participation and beta",
        ("participation", *(f"beta {beta:g}" for beta in sizes.betas), "best"),
        rows,
    )


def mu_table(sizes: Sizes, results: Sequence[Result]) -> Table:
    found, rows = iter(results), []
    for per_round in SWEPT:
        cells: dict[str, list[str]] = {}
        for label, _ in _mu_contestants(sizes):
            result = next(found)
            cells.setdefault(label, []).append(f"{100 * last(result):.1f} ({result['norms'][-1]:.3g})")
        rows += [
            (f"{100 * per_round / SWEPT_CLIENTS:g} %", label, *of_label) for label, of_label in cells.items()
        ]
    return Table(
        f"Softmax regression, {SWEPT_CLIENTS} clients: accuracy (%) by participation and mu, in brackets the norm at "
        "the end",
        ("participation", "algorithm", *(f"mu {mu:g}" for mu in sizes.mus)),
        rows,
    )
