"""Our own studies of what tunes itself: the numbers behind docs/results.md. Nothing of this was published before."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure

from sordino.defaults import default_batch_size, default_epochs
from sordino.models import default_model
from sordino.rates.tolerance import TRAVEL
from sordino.recipes import show
from sordino.recipes.frame import Contestant, Report, Result, Run, Study, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import count_rows, train_named

SAID = Published(__name__)
ADAM_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
ADAM = [Contestant(f"dp-adam {rate:g}", "dp-adam", {"learning_rate": rate}) for rate in ADAM_RATES]
_STUDY = Study(train_named, {"epsilon": 3.0, "seed": 1})


@recipe("default", "digits and Adult")
def default(run: Run, quick: bool) -> Report:
    """The default against DP-Adam."""
    jobs = {}
    for data in ("digits", "adult") if quick else ("digits", "adult", "fashion-mnist", "mnist"):
        n = count_rows(data=data)["train"]
        study = _STUDY.but(data=data, model=default_model(data, ()), epochs=default_epochs(n))
        study = study.but(batch_size=default_batch_size(n), standardise=None)
        for epsilon in (1.0, 3.0, 8.0):
            jobs[data, epsilon] = [
                study.job(f"{data} eps={epsilon:g} {who.label}", who, epsilon=epsilon)
                for who in (Contestant("auto", "auto"), *ADAM)
            ]
    rows = []
    for (data, epsilon), (ours, *adam) in results_of(run, jobs).items():
        scores = {rate: r["accuracy"] for rate, r in zip(ADAM_RATES, adam, strict=True)}
        best = show.best(scores)
        gap = f"{100 * (ours['accuracy'] - scores[best]):+.2f}"
        shown = [show.percent(score) for score in (ours["accuracy"], scores[best])]
        every = " ".join(map(show.percent, scores.values()))
        rows.append((data, f"{epsilon:g}", *shown, f"{best:g}", gap, every))
    notes = SAID.notes("notes.default", rates=", ".join(f"{rate:g}" for rate in ADAM_RATES))
    return Report([SAID.table("default", rows)], notes)


# ADADP on the paper's MNIST network ---------------------------------------------------------------------------

_MNIST = _STUDY.but(data="mnist", model="mnist_mlp", epochs=20, batch_size=256)


@recipe("adadp-rates", "one seed instead of three")
def rates(run: Run, quick: bool) -> Report:
    seeds = (1,) if quick else (1, 2, 3)
    starts = [Contestant(f"adadp {rate:g}", "adadp", {"learning_rate": rate}) for rate in (0.001, 0.1, 10.0)]
    jobs = {
        (who.method, f"{who.settings['learning_rate']:g}"): [
            _MNIST.job(f"{who.label} seed={seed}", who, seed=seed) for seed in seeds
        ]
        for who in (*starts, *ADAM)
    }
    found = results_of(run, jobs)
    rows = [
        (*of, show.accuracy(results), f"{results[0]['history'][-1]['rate']:.3g}")
        for of, results in found.items()
    ]
    curves = {f"{method} from {rate}": found[method, rate][0] for method, rate in list(found)[:3]}
    draw = partial(_paths, curves=curves, what="rate", label="learning rate")
    return Report([SAID.table("rates", rows)], SAID.notes("notes.rates"), draw)


@recipe("adadp-thresholds", "the same")
def thresholds(run: Run, quick: bool) -> Report:
    starts = (0.01, 0.1, 1.0, 10.0)
    study = _MNIST.but(method="adadp")
    jobs = {
        policy: [study.job(f"{policy} from {c:g}", settings={**settings, "threshold": c}) for c in starts]
        for policy, settings in SAID["following"].items()
    }
    found = results_of(run, {**jobs, "normalised": [study.job("normalised", settings={})]})
    (normalised,) = found.pop("normalised")
    rows, curves = [], {}
    for policy, results in found.items():
        scores = [100 * result["accuracy"] for result in results]
        ends = ", ".join(f"{r['history'][-1]['threshold']:.3g}" for r in results)
        rows.append((policy, *(f"{score:.2f}" for score in scores), f"{max(scores) - min(scores):.2f}", ends))
        curves.update({f"{policy} from {c:g}": result for c, result in zip(starts, results, strict=True)})
    rows.append(("normalised (our default)", show.percent(normalised["accuracy"]), "", "", "", "-", "none"))
    columns = ("threshold", *(f"from {c:g}" for c in starts), "spread", "thresholds at the end")
    moving = {name: result for name, result in curves.items() if not name.startswith("fixed")}
    return Report(
        [SAID.table("thresholds", rows, columns)],
        SAID.notes("notes.thresholds"),
        partial(_paths, curves=moving, what="threshold", label="threshold"),
    )


@recipe("adadp-tolerance", "without MNIST")
def tolerance(run: Run, quick: bool) -> Report:
    tasks = [("digits", 64, 40), ("digits", 256, 40), ("adult", 256, 10), ("adult", 2048, 20)]
    tasks += [] if quick else [("mnist", 256, 20), ("mnist", 1024, 20)]
    scales = (0.5, 1.0, 1.4, 2.0, 4.0)  # c in c size sqrt(d / T); the rule of the plan has 1.4
    studies = {
        f"{data} B={batch}": _STUDY.but(
            data=data,
            model="mnist_mlp" if data == "mnist" else "mlp:64",
            method="adadp",
            epochs=epochs,
            batch_size=batch,
        )
        for data, batch, epochs in tasks
    }
    plans = {name: [study.job(f"{name} tol=plan", settings={})] for name, study in studies.items()}
    planned = {name: plan for name, (plan,) in results_of(run, plans).items()}
    tolerances = {name: float(plan["history"][-1]["tolerance"]) for name, plan in planned.items()}
    scaled = {
        name: [
            study.job(f"{name} tol={tol:.3g}", settings={"tol": tol})
            for tol in (round(tolerances[name] * c / TRAVEL, 4) for c in scales if c != TRAVEL)
        ]
        for name, study in studies.items()
    }
    rows = []
    for (name, others), (data, batch, _) in zip(results_of(run, scaled).items(), tasks, strict=True):
        plan, rest = planned[name], iter(others)
        scores = [100 * (plan if c == TRAVEL else next(rest))["accuracy"] for c in scales]
        known = (data, f"{plan['parameters']:,}", batch, plan["steps"], f"{tolerances[name]:.3g}")
        gap = f"{100 * plan['accuracy'] - max(scores):+.2f}"
        rows.append((*known, *(f"{score:.2f}" for score in scores), gap))
    columns = ("data", "d", "batch", "T", "tol of the plan", *(f"c = {c:g}" for c in scales), "plan - best")
    return Report([SAID.table("tolerance", rows, columns)], SAID.notes("notes.tolerance"))


def _paths(figure: Figure, curves: dict[str, Result], what: str, label: str) -> None:
    left, right = figure.subplots(1, 2)
    for name, result in curves.items():
        history = result["history"]
        left.plot([line["epoch"] for line in history], [line[what] for line in history], label=name)
        right.plot(*show.curve(history))
    show.dressed(left, xlabel="epoch", ylabel=label, yscale="log", grid=True, legend=7, boxed=False)
    show.dressed(right, xlabel="epoch", ylabel="test accuracy, %", grid=True)
