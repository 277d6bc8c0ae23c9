"""OSO's comparison (Galli et al., 2024): whole grids of five methods, each grid under one budget.

What a method needs to have tuned decides how many runs share the budget: k for Online and AdamWOSM, 5 k for
FixedQuantile, k^2 for FixedThreshold. One composition over runs x steps gives the noise of each run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from statistics import fmean, stdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sordino.privacy import Budget, noise_for, release, repeat
from sordino.recipes import show
from sordino.recipes.frame import Job, Report, Result, Run, Study, Table, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import count_rows, train_named

SAID = Published(__name__)
BATCH, EPOCHS, SEEDS = 512, 10, 5
DELTA = 1e-5  # the paper prints none
EPSILONS = (3, 5, 7, 9)
GRANULARITIES = (5, 7, 9)
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
INITIAL_THRESHOLD = 0.1
LOOK_EVERY = 50  # iterations, at the whole test set
METHODS: dict[str, str] = SAID["methods"]  # as the paper's tables name them, and what they are here
PRIVATE = tuple(METHODS)[:4]

Settings = dict[str, float]


# Grids and budgets --------------------------------------------------------------------------------------


def learning_rates(k: int) -> tuple[float, ...]:
    return show.spaced(-2.5, 1.5, k)


def thresholds(k: int) -> tuple[float, ...]:
    """
    >>> thresholds(5)
    (0.01, 0.1, 1.0, 10.0, 100.0)
    """
    return show.spaced(-2.0, 2.0, k)


def grid(method: str, k: int) -> list[Settings]:
    """All the settings a method is tried with at granularity k.

    >>> [len(grid(method, 7)) for method in ("Online", "FixedThreshold", "FixedQuantile", "AdamWOSM", "NoDP")]
    [7, 49, 35, 7, 7]
    """
    if method == "FixedThreshold":
        return [{"learning_rate": r, "threshold": c} for r, c in product(learning_rates(k), thresholds(k))]
    if method == "FixedQuantile":
        return [{"learning_rate": r, "target_quantile": q} for r, q in product(learning_rates(k), QUANTILES)]
    if method == "AdamWOSM":
        return [{"threshold": c} for c in thresholds(k)]
    return [{"learning_rate": r} for r in learning_rates(k)]


@cache
def grid_noise(epsilon: float, runs: int, steps: int, rows: int) -> float:
    """The noise multiplier of each run, when ``runs`` runs of ``steps`` steps together may spend ``epsilon``.

    Poisson batches of 512 of ``rows`` expected, delta 1e-5, the RDP accountant; rounded up.

    >>> grid_noise(3, runs=7, steps=1170, rows=60000)
    1.3575
    """
    noise = noise_for(
        Budget(epsilon, DELTA), lambda z: repeat(release(z, BATCH / rows), runs * steps), accountant="rdp"
    )
    return math.ceil(noise * 1e4) / 1e4


# What the paper prints ----------------------------------------------------------------------------------


class Printed(NamedTuple):
    """The best of a grid: its settings (a rate; a rate and C or gamma; a C), test accuracy in percent, std."""

    settings: tuple[float, ...]
    accuracy: float
    std: float


class PrintedTable(NamedTuple):
    name: str
    rows: dict[int, dict[str, Printed]]  # by epsilon and method


def _printed(name: str, **rows: tuple[tuple[float, ...], ...]) -> PrintedTable:
    cells = {int(epsilon): [Printed(cell[:-2], *cell[-2:]) for cell in of] for epsilon, of in rows.items()}
    return PrintedTable(name, {epsilon: dict(zip(PRIVATE, of, strict=True)) for epsilon, of in cells.items()})


PUBLISHED = {
    (data, int(k)): _printed(**of) for data, tables in SAID["printed"].items() for k, of in tables.items()
}


# What is run --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """How much of the protocol is run. ``tried`` thins the grids; the budget is that of the whole ones."""

    granularities: tuple[int, ...] = GRANULARITIES
    epsilons: tuple[int, ...] = EPSILONS
    seeds: int = SEEDS
    epochs: int = EPOCHS
    test_rows: int | None = None
    tried: Mapping[str, Sequence[tuple[float, ...]]] | None = None

    def candidates(self, method: str, k: int) -> list[Settings]:
        whole = grid(method, k)
        if self.tried is None or method not in self.tried:
            return whole
        wanted = self.tried[method]
        kept = [settings for settings in whole if any(_same(settings, one) for one in wanted)]
        assert len(kept) == len(wanted), f"{wanted} are not all on the grid of {method}"
        return kept


def _same(settings: Settings, wanted: tuple[float, ...]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-2) for a, b in zip(settings.values(), wanted, strict=True))


@dataclass(frozen=True)
class Experiment:
    data: str  # a named set
    title: str
    model: str
    published_rows: int
    quick: Protocol
    unit_pixels: bool = False

    @property
    def published_steps(self) -> int:
        return EPOCHS * round(self.published_rows / BATCH)


MNIST = Experiment("mnist", "MNIST", "oso_cnn", 60_000, Protocol(**SAID["mnist_quick"]), unit_pixels=True)
AG_NEWS = Experiment("ag-news", "AG News", "bag_of_words_fc", 120_000, Protocol((5,), (3,), seeds=1))


class Best(NamedTuple):
    """The best of a grid by the mean over seeds."""

    settings: Settings
    mean: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ({self.std:.2f})")


@dataclass(frozen=True)
class Cell:
    """A grid: one method at one granularity and epsilon."""

    k: int
    epsilon: int
    method: str
    noise_multiplier: float | None

    @property
    def charged(self) -> int:
        return len(grid(self.method, self.k))

    def printed(self, what: Experiment) -> Printed | None:
        known = PUBLISHED[what.data, self.k].rows if (what.data, self.k) in PUBLISHED else {}
        return known.get(self.epsilon, {}).get(self.method)

    def jobs(self, study: Study, settings: Settings, seeds: int) -> list[Job]:
        """One set of settings with each seed."""
        start = {"threshold": INITIAL_THRESHOLD} if self.method in ("Online", "FixedQuantile") else {}
        chosen = {"method": METHODS[self.method], "settings": {**settings, **start}}
        budget = "" if self.noise_multiplier is None else f" k={self.k} eps={self.epsilon}"
        name = f"{self.method}{budget} {_spoken(settings)}"
        study = study.but(**chosen, noise_multiplier=self.noise_multiplier)
        return [study.job(f"{name} seed={seed}", seed=seed) for seed in range(1, seeds + 1)]


class Row(NamedTuple):
    cell: Cell
    last: Best  # by the last iterate
    optimistic: Best  # by the best checkpoint on the test set


def study_of(what: Experiment, protocol: Protocol, rows: int, steps: int) -> Study:
    looks = {"evaluations": max(1, steps // LOOK_EVERY), "test_rows": protocol.test_rows}
    data = {"data": what.data, "model": what.model, "unit_pixels": what.unit_pixels, "rows": rows}
    plan = {"epochs": protocol.epochs, "batch_size": BATCH, "delta": DELTA, "accountant": "rdp"}
    return Study(train_named, {**data, **plan, **looks})


def compare(run: Run, what: Experiment, protocol: Protocol) -> tuple[list[Row], dict[str, Any]]:
    """Run the grids of ``protocol`` and pick the best of each; with the numbers all of them share."""
    (counted,) = run([Job(f"rows of {what.data}", count_rows, {"data": what.data})])
    rows = int(counted["train"])
    steps = protocol.epochs * round(rows / BATCH)
    cells = [
        Cell(k, epsilon, method, _noise(method, k, epsilon, steps, rows))
        for k, epsilon, method in product(protocol.granularities, protocol.epsilons, METHODS)
    ]
    study = study_of(what, protocol, rows, steps)
    jobs = {
        (cell, i): cell.jobs(study, settings, protocol.seeds)
        for cell in cells
        for i, settings in enumerate(protocol.candidates(cell.method, cell.k))
    }
    found: dict[Cell, list[list[Result]]] = {}
    for (cell, _), results in results_of(run, jobs).items():
        found.setdefault(cell, []).append(results)
    candidates = {cell: protocol.candidates(cell.method, cell.k) for cell in cells}
    compared = [
        Row(cell, *(_best(candidates[cell], of, measure) for measure in ("accuracy", "best_accuracy")))
        for cell, of in found.items()
    ]
    looked = {"test_rows": protocol.test_rows or int(counted["test"]), "seeds": protocol.seeds}
    plan = {"epochs": protocol.epochs, "batch_size": BATCH, "delta": DELTA, "accountant": "rdp"}
    tried = {f"{m} k={k}": len(protocol.candidates(m, k)) for k in protocol.granularities for m in METHODS}
    return compared, {"n": rows, "steps": steps, **looked, **plan, "tried": tried}


def _noise(method: str, k: int, epsilon: int, steps: int, rows: int) -> float | None:
    return None if method == "NoDP" else grid_noise(epsilon, len(grid(method, k)), steps, rows)


def _best(candidates: list[Settings], found: list[list[Result]], measure: str) -> Best:
    def scored(settings: Settings, results: list[Result]) -> Best:
        scores = [100 * result[measure] for result in results]
        return Best(settings, fmean(scores), stdev(scores) if len(scores) > 1 else None)

    return max(map(scored, candidates, found), key=lambda best: best.mean)


# The report ---------------------------------------------------------------------------------------------

_SYMBOLS = {"learning_rate": "rate", "threshold": "C", "target_quantile": "gamma"}


def _spoken(settings: Settings) -> str:
    return " ".join(f"{_SYMBOLS[name]}={value:.4g}" for name, value in settings.items())


def _epochs(count: int) -> str:
    return "one epoch" if count == 1 else f"{count} epochs"


def _table(k: int, rows: list[Row], what: Experiment, shared: dict[str, Any]) -> Table:
    # Without privacy there is one grid, not one for each epsilon.
    end = rows[-1].cell.epsilon
    shown = [
        row for row in rows if row.cell.k == k and (row.cell.method != "NoDP" or row.cell.epsilon == end)
    ]
    known = PUBLISHED.get((what.data, k))
    return SAID.table(
        "grid",
        [_line(row, row.cell.printed(what)) for row in shown],
        what=what,
        k=k,
        shared=shared,
        epochs=_epochs(shared["epochs"]),
        seeds=show.seeds(shared["seeds"], "mean (std) over {} seeds"),
        source="k = 7 is printed as figures only" if known is None else known.name,
    )


def _line(row: Row, printed: Printed | None) -> tuple[str, ...]:
    cell, noise = row.cell, row.cell.noise_multiplier
    budget = ("inf", "-", "-") if noise is None else (str(cell.epsilon), str(cell.charged), f"{noise:.4f}")
    ours = [part for best in (row.last, row.optimistic) for part in (str(best), _spoken(best.settings))]
    theirs = ("-", "-")
    if printed is not None:
        settings = _spoken(dict(zip(grid(cell.method, 5)[0], printed.settings, strict=True)))
        theirs = f"{printed.accuracy:.2f} ({printed.std:.2f})", settings
    return (budget[0], cell.method, *budget[1:], *ours, *theirs)


def _notes(what: Experiment, protocol: Protocol, shared: dict[str, Any]) -> list[str]:
    tried, steps = protocol.tried or {}, shared["steps"]
    return SAID.notes(
        shared=shared,
        steps=steps,
        factor=math.exp(2.5e-3 * steps),
        epochs=_epochs(protocol.epochs),
        rows=what.data == "ag-news",
        thinned=", ".join(f"{len(kept)} of {len(grid(m, 5))} for {m}" for m, kept in tried.items()),
        short=protocol.epochs != EPOCHS,
    )


_COLOURS = dict(zip(PRIVATE, ("#0072b2", "#d55e00", "#cc79a7", "#009e73"), strict=True))
_OURS: dict[str, Any] = {"fmt": "o", "capsize": 2}
_OPEN: dict[str, Any] = {"markerfacecolor": "white", "markersize": 5}


def _draw(figure: Figure, rows: list[Row], what: Experiment, shared: dict[str, Any]) -> None:
    granularities = sorted({row.cell.k for row in rows})
    panels = figure.subplots(1, len(granularities), sharey=True, squeeze=False)[0]
    for axes, k in zip(panels, granularities, strict=True):
        _draw_panel(axes, [row for row in rows if row.cell.k == k], what)
        show.dressed(axes, f"k = {k}", xlabel="epsilon of the whole grid", open_frame=True)
    panels[0].set_ylabel("test accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    seeds = show.seeds(shared["seeds"], "{} seeds")
    figure.suptitle(SAID.text("text.figure", what=what, shared=shared, seeds=seeds), fontsize=11)


def _draw_panel(axes: Axes, rows: list[Row], what: Experiment) -> None:
    """Side by side for each epsilon: ours by the last iterate, ours at the best look, and what was published."""
    epsilons = sorted({row.cell.epsilon for row in rows})
    for number, (method, colour) in enumerate(_COLOURS.items()):
        of_method = sorted(
            (row for row in rows if row.cell.method == method), key=lambda row: row.cell.epsilon
        )
        at = [epsilons.index(row.cell.epsilon) + 0.2 * (number - 1.5) for row in of_method]
        last = [row.last for row in of_method]
        deviations = [best.std or 0.0 for best in last]
        axes.errorbar(at, [best.mean for best in last], deviations, color=colour, label=method, **_OURS)
        axes.plot(at, [row.optimistic.mean for row in of_method], "_", color=colour, markersize=11)
        known = [
            (x, p) for x, row in zip(at, of_method, strict=True) if (p := row.cell.printed(what)) is not None
        ]
        places = [x + 0.07 for x, _ in known]
        scores = [printed.accuracy for _, printed in known], [printed.std for _, printed in known]
        axes.errorbar(places, *scores, fmt="D", color=colour, elinewidth=0.8, **_OPEN)
    axes.plot([], [], "o", color="grey", label="ours, last iterate")
    axes.plot([], [], "_", color="grey", markersize=11, label="ours, best look (optimistic)")
    axes.plot([], [], "D", color="grey", label="published, best look", **_OPEN)
    ceiling = max((row.last.mean for row in rows if row.cell.method == "NoDP"), default=None)
    if ceiling is not None:
        axes.axhline(ceiling, color="black", linestyle=":", linewidth=1, label="ours without privacy")
    axes.set_xticks(range(len(epsilons)), [str(epsilon) for epsilon in epsilons])
    axes.set_xlim(-0.6, len(epsilons) - 0.4)
    axes.grid(alpha=0.3, axis="y")


def report(run: Run, quick: bool, what: Experiment) -> Report:
    protocol = what.quick if quick else Protocol()
    rows, shared = compare(run, what, protocol)
    return Report(
        [_table(k, rows, what, shared) for k in protocol.granularities],
        _notes(what, protocol, shared),
        partial(_draw, rows=rows, what=what, shared=shared),
        (4.0 + 3.2 * len(protocol.granularities), 4.2),
        {"data": what.data, "model": what.model, **shared},
    )


@recipe("oso-agnews", SAID["quick.agnews"])
def agnews(run: Run, quick: bool) -> Report:
    return report(run, quick, AG_NEWS)


@recipe("oso-mnist", SAID["quick.mnist"])
def mnist(run: Run, quick: bool) -> Report:
    return report(run, quick, MNIST)
