"""AdaBest's stability claims: cloud models that grow, Theorem 1, and all of `adabest_convex`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.recipes.adabest_convex import (
    FEDDYN,
    FULL,
    QUICK,
    SCAFFOLD,
    SOFTMAX,
    SWEPT,
    SWEPT_CLIENTS,
    Contestant,
    Sizes,
    adabest,
    beta_jobs,
    beta_table,
    last,
    mu_jobs,
    mu_table,
    scores_of_betas,
    softmax_jobs,
    softmax_table,
    walk_jobs,
    walk_table,
)
from sordino.recipes.adabest_runs import train_federated
from sordino.recipes.frame import Job, Recipe, Report, Result, Run, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The MLP over many rounds -----------------------------------------------------------------------------------------


def _federations(sizes: Sizes) -> list[tuple[str, dict[str, Any], tuple[Contestant, ...]]]:
    common = {"data": "mnist", "model": "mlp:100,100", "seed": 1, "watch": True}
    return [
        (
            "10 of 100, IID",
            {
                **common,
                "rows": 22_000,  # 200 a client: fewer local steps, so that there can be more rounds
                "clients": 100,
                "holdout": 10,
                "per_round": 10,
                "local_epochs": 1,
                "rounds": sizes.hundred,
                "evaluations": 30,
            },
            (FEDDYN, adabest(0.95)),
        ),
        (
            "5 of 1,000, Dirichlet 0.3",
            {
                **common,
                "rows": 48_000,
                "clients": 1000,
                "holdout": 100,
                "per_round": 5,
                "partition": "dirichlet:0.3",
                "rounds": sizes.thousand,
                "evaluations": 30,
            },
            (FEDDYN, SCAFFOLD, adabest(0.9)),
        ),
    ]


def _mlp_jobs(sizes: Sizes) -> Iterator[Job]:
    for federation, settings, contestants in _federations(sizes):
        for label, algorithm, own in contestants:
            yield Job(
                f"MLP {federation} {label}",
                train_federated,
                {**settings, "algorithm": algorithm, "settings": own},
            )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, without ties: 1 where both rise together."""
    one, other = (np.argsort(np.argsort(values)).astype(np.float64) for values in (first, second))
    return float(np.corrcoef(one, other)[0, 1])


def _half(result: Result) -> tuple[list[float], list[float]]:
    """Norm and test accuracy at the evaluations of the second half."""
    norms = dict(zip(result["rounds"], result["norms"], strict=True))
    pairs = [
        (norms[r], a)
        for r, a in zip(result["measured"], result["accuracy"], strict=True)
        if r in norms and r > result["rounds"][-1] / 2
    ]
    return [n for n, _ in pairs], [a for _, a in pairs]


def _mlp_table(sizes: Sizes, results: Sequence[Result]) -> Table:
    rows, found = [], iter(results)
    for federation, settings, contestants in _federations(sizes):
        for label, _, _ in contestants:
            result = next(found)
            best = max(result["accuracy"])
            rows.append(
                (
                    federation,
                    label,
                    f"{settings['rounds']:,}",
                    f"{result['norms'][0]:.3g}",
                    f"{result['norms'][len(result['norms']) // 2]:.3g}",
                    f"{result['norms'][-1]:.3g}",
                    f"{100 * best:.2f}",
                    f"{100 * last(result):.2f}",
                    f"{100 * mean(result['participants'][-5:]):.2f}",
                    f"{rank_correlation(*_half(result)):+.2f}",
                )
            )
    return Table(
        "MLP 784-100-100-10 on MNIST: norm of the cloud model, and accuracy (%) on test rows and on participants' rows",
        (
            "clients",
            "algorithm",
            "rounds",
            "norm, round 1",
            "halfway",
            "at the end",
            "best test",
            "test, last 5",
            "participants, last 5",
            "rank correlation of norm and test, second half",
        ),
        rows,
    )


# Theorem 1 --------------------------------------------------------------------------------------------------------


def _condition_table(results: Sequence[tuple[str, Result]]) -> Table:
    rows = []
    for label, result in results:
        found = result["correction"]
        count = found["rounds"]
        rows.append(
            (
                label,
                f"{count:,}",
                f"{100 * found['grew'] / count:.1f}",
                f"{100 * found['foretold'] / count:.1f}",
                f"{100 * found['agreed'] / count:.2f}",
                f"{found['cosine']:+.3f}",
            )
        )
    return Table(
        "FedDyn's h against Theorem 1: it does not grow where cos(h, update) <= -|P|/(2|S|) |update|/|h|",
        (
            "federation",
            "rounds",
            "h grew in, %",
            "the condition says, %",
            "they agree in, %",
            "mean cosine",
        ),
        rows,
    )


# All of it --------------------------------------------------------------------------------------------------------


def _stability(run: Run, quick: bool) -> Report:
    sizes = QUICK if quick else FULL
    # All at once, the longest first: no worker waits for another part to end.
    parts = [list(part(sizes)) for part in (_mlp_jobs, softmax_jobs, beta_jobs, mu_jobs, walk_jobs)]
    found = iter(run([job for part in parts for job in part]))
    mlp, softmax, beta, mu, walks = ([next(found) for _ in part] for part in parts)
    scores = scores_of_betas(sizes, beta)
    dynamic = [
        ("softmax regression, 5 of 100", softmax[-1]),
        *(
            (job.name.removesuffix(" FedDyn"), r)
            for job, r in zip(parts[0], mlp, strict=True)
            if job.settings["algorithm"] == "feddyn"
        ),
    ]
    names = [job.name.removeprefix("MLP ") for job in parts[0]]
    return Report(
        [
            walk_table(parts[4], walks),
            softmax_table(sizes, softmax),
            _mlp_table(sizes, mlp),
            _condition_table(dynamic),
            beta_table(sizes, scores),
            mu_table(sizes, mu),
        ],
        notes_of(sizes, scores),
        lambda figure: _draw(figure, softmax, dict(zip(names, mlp, strict=True))),
        size=(11.0, 6.5),
    )


def notes_of(sizes: Sizes, scores: dict[int, dict[float, float]]) -> list[str]:
    best = [max(of, key=lambda beta: of[beta]) for of in scores.values()]
    rises = best == sorted(best) and best[0] < best[-1]
    return [
        "the paper has figures and no numbers here. It claims: FedDyn's cloud model grows without end and its accuracy "
        "falls, on participants' rows as well as on test rows (figures 1, 4, 5), AdaBest's does not; FedDyn depends on "
        "mu and AdaBest hardly does (figure 6); the best beta is in [0.8, 0.95] at 0.5 % participation and in "
        "[0.95, 1] at larger ones (figure 7)",
        "softmax regression: 20 features, 10 classes, 45 rows a client, made up anew; 2 local epochs of 3 batches of "
        "15, so 6 local steps where the measurement before had 5; rate 0.1 x 0.998 a round, Dirichlet 0.3",
        f"MLP: MNIST for EMNIST-L (figure 4: {sizes.hundred:,} rounds of one local epoch, 200 rows a client) and for "
        f"CIFAR-100 (figures 1 and 5: {sizes.thousand:,} rounds of five, 44 rows a client); 10 and 100 further clients "
        "are held out as in the paper. Participants' accuracy is that of the new cloud model on their rows. SCAFFOLD "
        "is the original",
        "the best beta "
        + ("rises" if rises else "does not rise")
        + " with participation here: "
        + ", ".join(f"{b:g} at {100 * p / SWEPT_CLIENTS:g} %" for p, b in zip(SWEPT, best, strict=True))
        + f" ({sizes.sweep} rounds, {len(sizes.seeds)} seed"
        + "s" * (len(sizes.seeds) > 1)
        + ", test rows)",
        "one seed, 1, where nothing else is said; mu is 0.02 unless swept",
    ]


def _draw(figure: Figure, softmax: Sequence[Result], mlp: dict[str, Result]) -> None:
    panels = figure.subplots(2, 3, sharex="col")
    (above, below), *pairs = panels.T
    for (label, _, _), result in zip(SOFTMAX, softmax, strict=True):
        above.plot(result["rounds"], result["norms"], label=label)
        below.plot(result["measured"], [100 * a for a in result["accuracy"]])
    above.set_title("softmax regression, 5 of 100")
    for (above_, below_), start in zip(pairs, ("10 of 100, IID", "5 of 1,000, Dirichlet 0.3"), strict=True):
        for name, result in mlp.items():
            if not name.startswith(start):
                continue
            line = above_.plot(result["rounds"], result["norms"], label=name.removeprefix(start).strip())[0]
            below_.plot(result["measured"], [100 * a for a in result["accuracy"]], color=line.get_color())
            below_.plot(
                result["measured"], [100 * a for a in result["participants"]], "--", color=line.get_color()
            )
        above_.set_title(f"MLP, {start}")
    for top, bottom in panels.T:
        top.set_yscale("log")
        top.set_ylabel("norm of the cloud model")
        top.legend(fontsize=7)
        bottom.set_xlabel("round")
        bottom.set_ylabel("accuracy, % (dashed: participants)")


RECIPES = {
    "adabest-stability": Recipe(
        "adabest-stability",
        "AdaBest: growing cloud models, Theorem 1, beta and mu (figures 1 and 4 to 7)",
        _stability,
        "a tenth to a quarter of the rounds, fewer betas and mus",
    )
}
