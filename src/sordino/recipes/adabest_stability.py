"""AdaBest's stability claims: noise alone, softmax regression, deep networks that grow, Theorem 1, beta and mu."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from sordino.federated.algorithms import Round, algorithm_named
from sordino.recipes import show
from sordino.recipes.frame import Contestant, Job, Report, Result, Run, Study, Table, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import train_federated
from sordino.steps import Plan


def adabest(beta: float) -> Contestant:
    return Contestant(f"AdaBest, beta {beta:g}", "adabest", {"beta": beta})


FEDAVG, FEDDYN = Contestant("FedAvg", "fedavg"), Contestant("FedDyn", "feddyn")
SCAFFOLD = Contestant("SCAFFOLD", "scaffold")


@dataclass(frozen=True)
class Protocol:
    """How long each part runs."""

    walks: tuple[int, ...] = (1000, 10_000)
    softmax: int = 2000
    hundred: int = 3000  # rounds of the MLP at 100 clients, one local epoch
    thousand: int = 3000  # and at 1,000 clients, five local epochs
    sweep: int = 400
    betas: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
    mus: tuple[float, ...] = (0.02, 0.04, 0.08, 0.16)
    seeds: tuple[int, ...] = (1, 2)


SAID = Published(__name__)
FULL, QUICK = Protocol(), Protocol(**SAID["quick"])


def last_five(result: Result, what: str = "accuracy") -> float:
    return fmean(result[what][-5:])


def _norms(result: Result) -> dict[int, float]:
    return dict(zip(result["rounds"], result["norms"], strict=True))


# Noise alone ------------------------------------------------------------------------------------------------------

# Who, |P|, |S|
WALKS = (
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


def _walk_jobs(what: Protocol) -> Iterator[Job]:
    for rounds in what.walks:
        study = Study(walk, {"rounds": rounds, "width": max(10_000, 40_000_000 // rounds)}, "algorithm")
        for who, participants, clients in WALKS:
            name = f"noise {who.label} {participants}/{clients} rounds={rounds}"
            yield study.job(name, who, participants=participants, clients=clients)


def _walk_table(what: Protocol, results: Sequence[Result]) -> Table:
    rows = []
    for job, (who, participants, clients), result in zip(
        _walk_jobs(what), WALKS * len(what.walks), results, strict=True
    ):
        rounds, width = job.settings["rounds"], job.settings["width"]
        exact = walk_variance(who.method, rounds, who.settings.get("beta", 0.0), participants / clients)
        dealt = f", {participants} of {clients:,} clients" if who == FEDDYN else ""
        found, deviation = result["variance"], (2 / width) ** 0.5
        numbers = f"{exact:,.3f} | {found:,.0f} | {found / exact:.3f} | {deviation:.3f}"
        rows.append(f"{who.label}{dealt} | {rounds:,} | {numbers}")
    return SAID.table("walk", rows)


# Softmax regression -----------------------------------------------------------------------------------------------

MARKS = (50, 200, 500, 1000, 2000)
_BEFORE: dict[str, str] = SAID["before"]  # the norm at MARKS, in the specification's measurement
SOFTMAX = (FEDAVG, adabest(0.8), adabest(0.95), adabest(1.0), FEDDYN)
_FEDERATED = Study(train_federated, {"seed": 1}, "algorithm")
# Two local epochs of 3 batches: 6 local steps.
_CONVEX = _FEDERATED.but(
    data="classes", model="linear", partition="dirichlet:0.3", local_epochs=2, batch_size=15
)


def _softmax_jobs(what: Protocol) -> Iterator[Job]:
    study = _CONVEX.but(clients=100, rows=4500, per_round=5, rounds=what.softmax, evaluations=40, watch=True)
    yield from (study.job(f"softmax {who.label}", who) for who in SOFTMAX)


def _softmax_table(what: Protocol, results: Sequence[Result]) -> Table:
    marks = [mark for mark in MARKS if mark <= what.softmax]
    rows = [
        {
            "algorithm": who.label,
            **{f"round {mark}": f"{_norms(result)[mark]:.3g}" for mark in marks},
            "accuracy, last 5 evaluations, %": show.percent(last_five(result), 1),
            "measured before, rounds 50 / 200 / 500 / 1,000 / 2,000": _BEFORE[who.label],
        }
        for who, result in zip(SOFTMAX, results, strict=True)
    ]
    return SAID.table("softmax", rows)


# What beta and mu do ----------------------------------------------------------------------------------------------

SWEPT_CLIENTS = 200
SWEPT = (1, 10, 100)  # 0.5 %, 5 % and 50 %


def _swept(what: Protocol, who: Contestant, per_round: int, seed: int) -> Job:
    name = f"sweep {who.label} {who.settings} {per_round} of {SWEPT_CLIENTS} seed={seed}"
    study = _CONVEX.but(clients=SWEPT_CLIENTS, rows=45 * SWEPT_CLIENTS, rounds=what.sweep, evaluations=20)
    return study.job(name, who, per_round=per_round, chunk=min(per_round, 50), seed=seed)


def _beta_jobs(what: Protocol) -> Iterator[Job]:
    for per_round in SWEPT:
        for beta in what.betas:
            yield from (_swept(what, adabest(beta), per_round, seed) for seed in what.seeds)


def _mu_jobs(what: Protocol) -> Iterator[Job]:
    whose = [Contestant("AdaBest", "adabest", {"beta": 0.9, "mu": mu}) for mu in what.mus]
    whose += [Contestant("FedDyn", "feddyn", {"mu": mu}) for mu in what.mus]
    yield from (_swept(what, who, per_round, 1) for per_round in SWEPT for who in whose)


def scores_of_betas(what: Protocol, results: Sequence[Result]) -> dict[int, dict[float, float]]:
    """Accuracy at every beta, by participants; a mean over seeds."""
    found = iter(results)
    return {
        per_round: {beta: fmean(last_five(next(found)) for _ in what.seeds) for beta in what.betas}
        for per_round in SWEPT
    }


def _taking_part(per_round: int) -> str:
    return show.share(per_round / SWEPT_CLIENTS)


def _beta_table(scores: dict[int, dict[float, float]]) -> Table:
    rows = [
        {
            "participation": _taking_part(per_round),
            **{f"beta {beta:g}": show.percent(score, 1) for beta, score in of_beta.items()},
            "best": f"{show.best(of_beta):g}",
        }
        for per_round, of_beta in scores.items()
    ]
    return SAID.table("beta", rows)


def _mu_table(what: Protocol, results: Sequence[Result]) -> Table:
    found = iter(results)
    rows = [
        {
            "participation": _taking_part(per_round),
            "algorithm": label,
            **{
                f"mu {mu:g}": f"{show.percent(last_five(result), 1)} ({result['norms'][-1]:.3g})"
                for mu, result in zip(what.mus, found, strict=False)
            },
        }
        for per_round in SWEPT
        for label in ("AdaBest, beta 0.9", "FedDyn")
    ]
    return SAID.table("mu", rows)


# The MLP over many rounds -----------------------------------------------------------------------------------------

_HUNDRED, _THOUSAND = "10 of 100, IID", "5 of 1,000, Dirichlet 0.3"


def _mlp_jobs(what: Protocol) -> Iterator[Job]:
    study = _FEDERATED.but(data="mnist", model="mlp:100,100", watch=True, evaluations=30)
    # 200 rows a client: fewer local steps, so that there can be more rounds
    hundred = study.but(
        rows=22_000, clients=100, holdout=10, per_round=10, local_epochs=1, rounds=what.hundred
    )
    thousand = study.but(rows=48_000, clients=1000, holdout=100, per_round=5, rounds=what.thousand)
    thousand = thousand.but(partition="dirichlet:0.3")
    yield from (hundred.job(f"MLP {_HUNDRED} {who.label}", who) for who in (FEDDYN, adabest(0.95)))
    yield from (thousand.job(f"MLP {_THOUSAND} {who.label}", who) for who in (FEDDYN, SCAFFOLD, adabest(0.9)))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, without ties: 1 where both rise together."""
    one, other = (np.argsort(np.argsort(values)).astype(np.float64) for values in (first, second))
    return float(np.corrcoef(one, other)[0, 1])


def _half(result: Result) -> tuple[list[float], list[float]]:
    """Norm and test accuracy at the evaluations of the second half."""
    norms = _norms(result)
    pairs = [
        (norms[r], a)
        for r, a in zip(result["measured"], result["accuracy"], strict=True)
        if r in norms and r > result["rounds"][-1] / 2
    ]
    return [n for n, _ in pairs], [a for _, a in pairs]


def _mlp_table(found: dict[str, Result]) -> Table:
    rows = []
    for name, result in found.items():
        federation = _HUNDRED if name.startswith(_HUNDRED) else _THOUSAND
        of = result["norms"]
        norms = f"{of[0]:.3g} | {of[len(of) // 2]:.3g} | {of[-1]:.3g}"
        scores = (max(result["accuracy"]), last_five(result), last_five(result, "participants"))
        tested = f"{' | '.join(map(show.percent, scores))} | {rank_correlation(*_half(result)):+.2f}"
        label = name.removeprefix(federation).strip()
        rows.append(f"{federation} | {label} | {result['rounds'][-1]:,} | {norms} | {tested}")
    return SAID.table("mlp", rows)


def _condition_table(results: dict[str, Result]) -> Table:
    """Theorem 1."""
    rows = []
    for label, result in results.items():
        found = result["correction"]
        grew, foretold, agreed = (100 * found[n] / found["rounds"] for n in ("grew", "foretold", "agreed"))
        shares = f"{grew:.1f} | {foretold:.1f} | {agreed:.2f}"
        rows.append(f"{label} | {found['rounds']:,} | {shares} | {found['cosine']:+.3f}")
    return SAID.table("condition", rows)


# All of it --------------------------------------------------------------------------------------------------------


@recipe("adabest-stability", "a tenth to a quarter of the rounds, fewer betas and mus")
def stability(run: Run, quick: bool) -> Report:
    what = QUICK if quick else FULL
    # The longest first.
    parts = {part: list(part(what)) for part in (_mlp_jobs, _softmax_jobs, _beta_jobs, _mu_jobs, _walk_jobs)}
    mlp, softmax, beta, mu, walks = results_of(run, parts).values()
    scores = scores_of_betas(what, beta)
    grown = {job.name.removeprefix("MLP "): r for job, r in zip(parts[_mlp_jobs], mlp, strict=True)}
    dynamic = {
        f"MLP {name.removesuffix(' FedDyn')}": r for name, r in grown.items() if name.endswith(" FedDyn")
    }
    tables = [
        _walk_table(what, walks),
        _softmax_table(what, softmax),
        _mlp_table(grown),
        _condition_table({"softmax regression, 5 of 100": softmax[-1], **dynamic}),
        _beta_table(scores),
        _mu_table(what, mu),
    ]
    draw = partial(_draw, softmax=softmax, mlp=grown)
    return Report(tables, notes_of(what, scores), draw, size=(11.0, 6.5))


def notes_of(what: Protocol, scores: dict[int, dict[float, float]]) -> list[str]:
    best = [show.best(of) for of in scores.values()]
    rises = best == sorted(best) and best[0] < best[-1]
    at = [f"{beta:g} at {_taking_part(per_round)}" for per_round, beta in zip(SWEPT, best, strict=True)]
    return SAID.notes(
        what=what,
        rises="rises" if rises else "does not rise",
        best=", ".join(at),
        seeds=show.several(len(what.seeds), "seed"),
    )


def _draw(figure: Figure, softmax: Sequence[Result], mlp: dict[str, Result]) -> None:
    panels = figure.subplots(2, 3, sharex="col")
    named = {f"softmax regression, 5 of 100{who.label}": r for who, r in zip(SOFTMAX, softmax, strict=True)}
    found = named | {f"MLP, {name}": result for name, result in mlp.items()}
    titles = ("softmax regression, 5 of 100", f"MLP, {_HUNDRED}", f"MLP, {_THOUSAND}")
    for (above, below), title in zip(panels.T, titles, strict=True):
        for name, result in found.items():
            if not name.startswith(title):
                continue
            (line,) = above.plot(result["rounds"], result["norms"], label=name.removeprefix(title).strip())
            for what, style in (("accuracy", "-"), ("participants", "--")):
                if what == "accuracy" or title.startswith("MLP"):
                    scores = show.percents(result[what])
                    below.plot(result["measured"], scores, style, color=line.get_color())
        show.dressed(above, title, yscale="log", ylabel="norm of the cloud model", legend=7)
        show.dressed(below, xlabel="round", ylabel="accuracy, % (dashed: participants)")
