"""One run that nobody tuned, between the grid that a user could pay for and the oracle that nobody has.

The default and the papers' self-tuning methods run once each. Against them stand DP-SGD, DP-Adam and AdamWOSM at the
best setting of grids that grow until the best lies inside: chosen for free (the oracle), with the whole grid under one
budget, and by private selection.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sordino.recipes import show
from sordino.recipes.frame import (
    Contestant,
    Job,
    Report,
    Result,
    Run,
    Study,
    Table,
    check_spent,
    recipe,
    results_of,
)
from sordino.recipes.one_run_tasks import DELTA, Task, not_there, prepared, priced_noise, train_task
from sordino.recipes.paper import Published

SAID = Published(__name__)
NEAR = 0.5  # points
WIDENED = 4  # times that a grid may grow by a rate
FINALISTS = 5  # settings of the grids that are run with every seed
FIRST = 1  # seed
DEFAULT, INDEPENDENT = "default", "default, independent noise"
GRIDS = SAID.contestants("grids")
PAYING = GRIDS[:2]

_STUDY = Study(train_task, {"delta": DELTA})
Key = TypeVar("Key", bound=Hashable)


# Grids that grow ----------------------------------------------------------------------------------------------


def beyond(scores: Mapping[float, float]) -> float | None:
    """The next rate at the end where the best lies; None where a best one lies inside.

    >>> beyond({0.1: 0.5, 0.3: 0.7, 1.0: 0.8}), beyond({0.1: 0.8, 0.3: 0.7}), beyond({0.1: 0.5, 0.3: 0.8, 1.0: 0.8})
    (3.0, 0.03, None)
    """
    rates = sorted(scores)
    if inside(scores, best_rate(scores)):
        return None
    return _step(rates[-1], up=True) if best_rate(scores) == rates[-1] else _step(rates[0], up=False)


def best_rate(scores: Mapping[float, float]) -> float:
    """Of equals one that lies inside."""
    top = [rate for rate in sorted(scores) if scores[rate] == max(scores.values())]
    return next((rate for rate in top if inside(scores, rate)), top[0])


def inside(scores: Mapping[float, float], rate: float) -> bool:
    return min(scores) < rate < max(scores)


def _step(rate: float, up: bool) -> float:
    """Along 1, 3, 10, 30, ...

    >>> _step(0.3, up=True), _step(1.0, up=True), _step(0.3, up=False), _step(1.0, up=False)
    (1.0, 3.0, 0.1, 0.3)
    """
    digit, _, power = f"{rate:.0e}".partition("e")
    if digit == "1":
        return float(f"3e{int(power) if up else int(power) - 1}")
    return float(f"1e{int(power) + 1 if up else int(power)}")


def widened(
    run: Run, starts: Mapping[Key, Sequence[float]], job: Callable[[Key, float], Job], most: int = WIDENED
) -> dict[Key, dict[float, Result]]:
    """The results of each grid by rate. A grid grows while its best lies at an end, ``most`` times at most."""
    found: dict[Key, dict[float, Result]] = {key: {} for key in starts}
    asked = {(key, rate) for key, rates in starts.items() for rate in rates}
    for _ in range(most + 1):
        ordered = [(key, rate) for key in starts for rate in sorted(r for of, r in asked if of == key)]
        for (key, rate), (result,) in results_of(run, {each: [job(*each)] for each in ordered}).items():
            found[key][rate] = result
        further = {key: beyond(_accuracies(of)) for key, of in found.items()}
        asked = {(key, rate) for key, rate in further.items() if rate is not None}
        if not asked:
            break
    return found


def _accuracies(results: Mapping[Key, Result]) -> dict[Key, float]:
    return {key: float(result["accuracy"]) for key, result in results.items()}


# What is run --------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    task: Task
    epsilon: float

    def __str__(self) -> str:
        return f"{self.task.name} at epsilon {self.epsilon:g}"


class Variant(NamedTuple):
    """What a grid of rates has in common beside its rule."""

    batch: int = 1  # times the default
    average: float = 0.0  # 0 is none
    standardised: bool = False

    def __str__(self) -> str:
        parts = [f"batch x{self.batch}"] * (self.batch != 1)
        parts += [f"average {self.average:g}"] * (self.average != 0)
        return ", ".join([*parts, *["standardised"] * self.standardised])


class Choice(NamedTuple):
    """A setting of a grid."""

    rule: str
    variant: Variant
    rate: float

    def __str__(self) -> str:
        varied = f", {self.variant}" if str(self.variant) else ""
        return f"{self.rule} {self.rate:g}{varied}"


@dataclass(frozen=True)
class Protocol:
    tasks: tuple[Task, ...]
    epsilons: tuple[float, ...]
    seeds: int
    more_seeds: int  # where default and oracle are near each other
    batches: tuple[int, ...]
    averages: tuple[float, ...]
    selection: bool

    @staticmethod
    def of(said: Mapping[str, Any]) -> Protocol:
        return Protocol(**{**said, "tasks": tuple(Task(**task) for task in said["tasks"])})

    @property
    def later_seeds(self) -> range:
        return range(FIRST + 1, FIRST + self.seeds)

    @property
    def last_seeds(self) -> range:
        return range(FIRST + self.seeds, FIRST + self.seeds + self.more_seeds)

    def variants(self) -> list[Variant]:
        """The plain one first."""
        standardised = (False, True) if len(self.batches) > 1 and can_standardise() else (False,)
        return [Variant(*each) for each in product(self.batches, self.averages, standardised)]

    def part(self, only: Sequence[str]) -> Protocol:
        """What ``only`` names: data sets, and epsilons as in eps=3; where it names none of a kind, all of that kind."""
        names = {name for name in only if not name.startswith("eps=")}
        epsilons = {float(name.removeprefix("eps=")) for name in only if name.startswith("eps=")}
        tasks = tuple(task for task in self.tasks if not names or task.data in names)
        kept = tuple(each for each in self.epsilons if not epsilons or each in epsilons)
        if not tasks or not kept:
            raise ValueError(f"nothing of {', '.join(only)} is part of this: give --full, or others")
        return Protocol(**{**vars(self), "tasks": tasks, "epsilons": kept})


FULL, QUICK = Protocol.of(SAID["full"]), Protocol.of(SAID["quick"])
PARTS = (
    *dict.fromkeys(task.data for task in FULL.tasks),
    *(f"eps={epsilon:g}" for epsilon in sorted(FULL.epsilons)),
)


def can_standardise() -> bool:
    """Whether `sordino.train` can: then the oracle may as well."""
    from sordino.runs.options import RunOptions
    from sordino.training import train

    return "standardise" in {*inspect.signature(train).parameters, *RunOptions.__annotations__}


def ones() -> list[Contestant]:
    """What is run once, but for those with a setting that their method does not have."""
    from sordino.methods import METHODS

    def known(who: Contestant) -> bool:
        return set(who.settings) <= set(inspect.signature(METHODS[who.method]).parameters)

    return [who for who in SAID.contestants("ones") if known(who)]


def one_job(cell: Cell, who: Contestant, seed: int) -> Job:
    own = {} if who.sampling is None else {"sampling": who.sampling}
    name = f"{cell.task.name} eps={cell.epsilon:g} {who.label} seed={seed}"
    return _STUDY.job(name, who, **cell.task.settings, epsilon=cell.epsilon, seed=seed, **own)


def grid_job(cell: Cell, choice: Choice, seed: int, noise_multiplier: float | None = None) -> Job:
    """Of a run that spends epsilon, or with a noise multiplier of one that is part of something that does."""
    (rule,) = (each for each in GRIDS if each.label == choice.rule)
    batch, average, standardised = choice.variant
    settings = {**rule.settings, "learning_rate": choice.rate} | ({"average": average} if average else {})
    own: dict[str, Any] = {"batch_factor": batch} if batch != 1 else {}
    own |= {"standardise": "private"} if standardised else {}
    own |= {"epsilon": cell.epsilon} if noise_multiplier is None else {"noise_multiplier": noise_multiplier}
    share = "" if noise_multiplier is None else f" z={noise_multiplier:.4g}"
    name = f"{cell.task.name} eps={cell.epsilon:g}{share} {choice} seed={seed}"
    who = Contestant(choice.rule, rule.method, settings)
    return _STUDY.job(name, who, **cell.task.settings, seed=seed, **own)


def feature_job(task: Task) -> Job:
    settings = {"data": task.data, "features": task.features}
    return Job(f"{task.data} {task.features}", prepared, settings)


def paying_choices() -> list[Choice]:
    return [Choice(rule.label, Variant(), rate) for rule in PAYING for rate in rule.rates]


def price_jobs(cell: Cell, selection: bool) -> list[Job]:
    """What a run may spend as one of a grid, and as one of a selection."""
    runs, task = len(paying_choices()), cell.task
    kinds = {"grid": None, "selection": float(runs)} if selection else {"grid": None}
    common = {"data": task.data, "epsilon": cell.epsilon, "runs": runs}
    return [
        Job(f"{task.data} eps={cell.epsilon:g} {kind} noise", priced_noise, {**common, "mean": mean})
        for kind, mean in kinds.items()
    ]


# What was found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Best:
    """The best of some settings by the mean over seeds."""

    choice: Choice
    results: list[Result]
    inside: bool = True

    @property
    def mean(self) -> float:
        return 100 * show.mean_accuracy(self.results)


@dataclass(frozen=True)
class Found:
    """All about one task, model and epsilon. Accuracies are in percent."""

    cell: Cell
    ones: dict[str, list[Result]]
    oracle: Best
    bests: dict[str, Best]  # of each rule, with the first seed
    paying: Best
    selected: float | None

    def one(self, label: str) -> float:
        return 100 * show.mean_accuracy(self.ones[label])

    @property
    def gap(self) -> float:
        """Of the default to the oracle, in points: negative where the oracle is better."""
        return self.one(DEFAULT) - self.oracle.mean

    @property
    def lead(self) -> float:
        """Of the default over the grid that pays for itself."""
        return self.one(DEFAULT) - self.paying.mean


Grown = dict[tuple[Cell, str, Variant], dict[float, Result]]


def explore(run: Run, what: Protocol, epsilon: float) -> list[Found]:
    """All tasks at one epsilon. What is asked for again has been kept: jobs are run in the order of their tasks."""
    cells, whos, paying = [Cell(task, epsilon) for task in what.tasks], ones(), paying_choices()
    seeds = [FIRST, *what.later_seeds]

    def started(cell: Cell) -> list[Job]:
        once = [one_job(cell, who, seed) for who in whos for seed in seeds]
        plain = [Choice(rule.label, Variant(), rate) for rule in GRIDS for rate in rule.rates]
        return [*once, *price_jobs(cell, what.selection), *(grid_job(cell, each, FIRST) for each in plain)]

    # Alone, or two workers would make the same features at once.
    results_of(run, {"features": [feature_job(task) for task in what.tasks if task.features is not None]})
    run([job for cell in cells for job in started(cell)])
    once = results_of(
        run, {(cell, who.label): [one_job(cell, who, seed) for seed in seeds] for cell in cells for who in whos}
    )  # fmt: skip
    for (cell, label), results in once.items():
        for result in results:
            check_spent(f"{label} on {cell}", result, epsilon)
    noises = results_of(run, {cell: price_jobs(cell, what.selection) for cell in cells})
    shared = {
        (cell, kind): [grid_job(cell, each, FIRST, float(priced["noise_multiplier"])) for each in paying]
        for cell in cells
        for kind, priced in enumerate(noises[cell])
    }
    pools = results_of(run, shared)
    grown = _grown(run, what, cells)

    tried = {cell: dict(_choices(grown, cell)) for cell in cells}
    oracle = _finals(run, what, tried, lambda cell, choice, seed: grid_job(cell, choice, seed))
    alone = {cell: dict(zip(paying, pools[cell, 0], strict=True)) for cell in cells}
    noise = {cell: float(noises[cell][0]["noise_multiplier"]) for cell in cells}
    paid = _finals(run, what, alone, lambda cell, choice, seed: grid_job(cell, choice, seed, noise[cell]))
    found = [
        Found(
            cell,
            {who.label: once[cell, who.label] for who in whos},
            Best(*oracle[cell], _is_inside(grown, cell, oracle[cell][0])),
            {rule.label: _best_of_rule(grown, cell, rule.label) for rule in GRIDS},
            Best(*paid[cell]),
            _of_selection(pools[cell, 1], len(paying)) if what.selection else None,
        )
        for cell in cells
    ]
    return _with_more_seeds(run, what, found, whos[0])


def _grown(run: Run, what: Protocol, cells: Sequence[Cell]) -> Grown:
    """The plain grid of each rule, and those of the other variants around the best of it."""

    def job(key: tuple[Cell, str, Variant], rate: float) -> Job:
        return grid_job(key[0], Choice(key[1], key[2], rate), FIRST)

    plain, *others = what.variants()
    grown: Grown = widened(
        run, {(cell, rule.label, plain): rule.rates for cell in cells for rule in GRIDS}, job
    )
    starts: dict[tuple[Cell, str, Variant], Sequence[float]] = {}
    for (cell, rule, _), results in list(grown.items()):
        best = best_rate(_accuracies(results))
        around = (_step(best, up=False), best, _step(best, up=True))
        starts |= {(cell, rule, variant): around for variant in others}
    return grown | widened(run, starts, job) if starts else grown


def _choices(grown: Grown, cell: Cell) -> Iterable[tuple[Choice, Result]]:
    for (of, rule, variant), results in grown.items():
        if of == cell:
            yield from ((Choice(rule, variant, rate), result) for rate, result in results.items())


def _is_inside(grown: Grown, cell: Cell, choice: Choice) -> bool:
    return inside(_accuracies(grown[cell, choice.rule, choice.variant]), choice.rate)


def _best_of_rule(grown: Grown, cell: Cell, rule: str) -> Best:
    of_rule = {choice: result for choice, result in _choices(grown, cell) if choice.rule == rule}
    best = finalists(of_rule, 1)[0]
    # Of equals in one grid that which lies inside.
    grid = _accuracies(grown[cell, rule, best.variant])
    best = best._replace(rate=best_rate(grid))
    return Best(best, [of_rule[best]], inside(grid, best.rate))


def finalists(results: Mapping[Key, Result], count: int = FINALISTS) -> list[Key]:
    """The best ones; of equals, which are many where test rows are few, those with the least loss on test rows."""

    def rank(key: Key) -> tuple[float, float]:
        loss = float(results[key]["test_loss"])
        return -float(results[key]["accuracy"]), math.inf if math.isnan(loss) else loss

    return sorted(results, key=rank)[:count]


def _finals(
    run: Run,
    what: Protocol,
    tried: Mapping[Cell, Mapping[Choice, Result]],
    job: Callable[[Cell, Choice, int], Job],
) -> dict[Cell, tuple[Choice, list[Result]]]:
    """The best by the mean over all seeds, of those that were best with the first."""
    last = {cell: finalists(of) for cell, of in tried.items()}
    later = results_of(
        run,
        {(cell, c): [job(cell, c, s) for s in what.later_seeds] for cell in tried for c in last[cell]},
    )
    whole = {cell: {c: [tried[cell][c], *later[cell, c]] for c in last[cell]} for cell in tried}
    return {cell: max(of.items(), key=lambda each: show.mean_accuracy(each[1])) for cell, of in whole.items()}


def _with_more_seeds(run: Run, what: Protocol, found: list[Found], default: Contestant) -> list[Found]:
    """A claim of less than half a point needs five seeds."""
    near = [each for each in found if abs(each.gap) < NEAR and what.more_seeds]
    jobs = {
        each.cell: [
            *(one_job(each.cell, default, seed) for seed in what.last_seeds),
            *(grid_job(each.cell, each.oracle.choice, seed) for seed in what.last_seeds),
        ]
        for each in near
    }
    more = results_of(run, jobs)
    return [_longer(each, more.get(each.cell, []), what.more_seeds) for each in found]


def _longer(found: Found, more: list[Result], seeds: int) -> Found:
    ours, theirs = more[:seeds], more[seeds:]
    best = found.oracle
    return Found(
        found.cell,
        found.ones | {DEFAULT: [*found.ones[DEFAULT], *ours]},
        Best(best.choice, [*best.results, *theirs], best.inside),
        found.bests,
        found.paying,
        found.selected,
    )


def _of_selection(pool: Sequence[Result], mean: float) -> float:
    return 100 * expected_winner([float(each["accuracy"]) for each in pool], mean)


def expected_winner(pool: Sequence[float], mean: float) -> float:
    """The mean score of the best of K drawn from a pool, K geometric of this mean.

    >>> expected_winner([0.0, 1.0], 1.0), round(expected_winner([0.0, 1.0], 2.0), 4)
    (0.5, 0.6667)
    """
    gamma, total, below = 1 / mean, 0.0, 0.0
    for place, score in enumerate(sorted(pool), 1):
        share = place / len(pool)
        no_better = gamma * share / (1 - (1 - gamma) * share)  # the generating function of K
        total += (no_better - below) * score
        below = no_better
    return total


# The report ---------------------------------------------------------------------------------------------------


@recipe("one-run", SAID["cut"], PARTS)
def one_run(run: Run, quick: bool, only: Sequence[str] = ()) -> Report:
    """Epsilon by epsilon, so that every task is looked at before any is at the next."""
    asked = (QUICK if quick else FULL).part(only)
    lacking = {name: why for name in {task.data for task in asked.tasks} if (why := not_there(name))}
    tasks = tuple(task for task in asked.tasks if task.data not in lacking)
    if not tasks:
        raise ValueError(f"none of the data is here: {'; '.join(lacking.values())}")
    what = Protocol(**{**vars(asked), "tasks": tasks})
    found = list(chain.from_iterable(explore(run, what, epsilon) for epsilon in what.epsilons))
    order = {task.name: place for place, task in enumerate(what.tasks)}
    found.sort(key=lambda each: (order[each.cell.task.name], each.cell.epsilon))
    tables = [_claims(found), _main(found), _others(found), _bests(found)]
    tables += [_balanced(found)] if any(each.cell.task.balanced for each in found) else []
    return Report(
        tables,
        _notes(found, what, quick, sorted(lacking), only),
        partial(_draw, found=found),
        (3.0 + 3.6 * len(what.epsilons), 1.9 + 0.3 * len(what.tasks)),
        {"delta": DELTA, "seeds": what.seeds, "cells": [_plain(each) for each in found]},
    )


def _plain(found: Found) -> dict[str, Any]:
    """For result.json, in percent."""
    seeds = {"default": len(found.ones[DEFAULT]), "oracle": len(found.oracle.results)}
    return {
        **found.cell.task.settings,
        "epsilon": found.cell.epsilon,
        "once": {label: found.one(label) for label in found.ones},
        "oracle": found.oracle.mean,
        "oracle_setting": str(found.oracle.choice),
        "inside": found.oracle.inside,
        "paying": found.paying.mean,
        "paying_setting": str(found.paying.choice),
        "selected": found.selected,
        "seeds": seeds,
    }


def _claims(found: Sequence[Found]) -> Table:
    gaps = {each.cell: each.gap for each in found}
    leads = {each.cell: each.lead for each in found}
    rows = [
        (SAID.text("claims.near"), show.judged([gap >= -NEAR for gap in gaps.values()], _least(gaps))),
        (SAID.text("claims.pays"), show.judged([lead > 0 for lead in leads.values()], _least(leads))),
    ]
    selected = {each.cell: each.one(DEFAULT) - each.selected for each in found if each.selected is not None}
    independent = {
        each.cell: each.one(DEFAULT) - each.one(INDEPENDENT) for each in found if INDEPENDENT in each.ones
    }
    for claim, of in (("selected", selected), ("independent", independent)):
        if of:
            held = [lead > 0 for lead in of.values()]
            rows.append((SAID.text(f"claims.{claim}"), show.judged(held, _least(of))))
    return SAID.table("claims", rows)


def _least(of: Mapping[Cell, float]) -> str:
    worst = min(of, key=lambda cell: of[cell])
    return f"{fmean(of.values()):+.2f} points on average, at least {of[worst]:+.2f}: {worst}"


def _known(found: Found) -> tuple[str, ...]:
    return found.cell.task.data, found.cell.task.model_name, f"{found.cell.epsilon:g}"


def _main(found: Sequence[Found]) -> Table:
    rows, selects = [], any(each.selected is not None for each in found)
    for each in found:
        data, model, epsilon = _known(each)
        first = each.ones[DEFAULT][0]
        sizes = [f"{first[name]:,}" for name in ("n", "inputs", "parameters")]
        oracle, paying = each.oracle, each.paying
        cells = [data, model, *sizes, epsilon, show.accuracy(each.ones[DEFAULT])]
        cells += [show.accuracy(oracle.results), str(oracle.choice), "yes" if oracle.inside else "no"]
        cells += [f"{each.gap:+.2f}", show.accuracy(paying.results), str(paying.choice), f"{each.lead:+.2f}"]
        cells += ["" if each.selected is None else f"{each.selected:.2f}"] * selects
        rows.append(cells)
    return SAID.table("main", rows, selected=" | selection" if selects else "")


def _others(found: Sequence[Found]) -> Table:
    columns = ("data", "model", "epsilon", *found[0].ones)
    rows = [(*_known(each), *(show.accuracy(results) for results in each.ones.values())) for each in found]
    return SAID.table("others", rows, columns)


def _bests(found: Sequence[Found]) -> Table:
    def cell(best: Best) -> str:
        setting = str(best.choice).removeprefix(f"{best.choice.rule} ")
        return f"{best.mean:.2f} ({setting}; {'inside' if best.inside else 'at the end'})"

    columns = ("data", "model", "epsilon", *(rule.label for rule in GRIDS))
    rows = [(*_known(each), *(cell(each.bests[rule.label]) for rule in GRIDS)) for each in found]
    return SAID.table("bests", rows, columns)


def _balanced(found: Sequence[Found]) -> Table:
    def cell(results: Sequence[Result]) -> str:
        return show.spread([100 * float(result["balanced"]) for result in results])

    rows = [
        (*_known(each), cell(each.ones[DEFAULT]), cell(each.oracle.results), cell(each.paying.results))
        for each in found
        if each.cell.task.balanced
    ]
    return SAID.table("balanced", rows)


def summary(found: Sequence[Found]) -> str:
    near, above = sum(each.gap >= -NEAR for each in found), sum(each.lead > 0 for each in found)
    worst = min(found, key=lambda each: each.gap)
    return SAID.text(
        "text.summary",
        near=near,
        cells=len(found),
        share=f"{100 * near / len(found):.0f} %",
        worst=worst.gap,
        where=worst.cell,
        above=above,
        everywhere=": everywhere" if above == len(found) else "",
    )


def _notes(
    found: Sequence[Found], what: Protocol, quick: bool, lacking: Sequence[str], only: Sequence[str]
) -> list[str]:
    standardised = any(variant.standardised for variant in what.variants())
    return SAID.notes(
        summary=summary(found),
        seeds=show.seeds(what.seeds, "{} seeds"),
        k=len(paying_choices()),
        others=len(what.variants()) > 1,
        selected=what.selection,
        more=what.more_seeds and what.seeds + what.more_seeds,
        standardised=standardised,
        raw=not standardised,
        left_out=", ".join(lacking),
        only=", ".join(only),
        quick=quick,
        cut=SAID["cut"],
    )


# The figure ---------------------------------------------------------------------------------------------------

_SHOWN = -12.0  # points from the oracle; what is worse stands at the edge with its number
_INK, _PALE = "#1b6ca8", "#9a9a9a"


def _draw(figure: Figure, found: Sequence[Found]) -> None:
    """For each task a line from the paying grid to the oracle, and a dot for one run."""
    epsilons = sorted({each.cell.epsilon for each in found})
    names = list(dict.fromkeys(each.cell.task.name for each in found))
    panels = figure.subplots(1, len(epsilons), sharey=True, squeeze=False)[0]
    least = min(min(each.gap, each.paying.mean - each.oracle.mean) for each in found)
    most = max(1.0, *(each.gap for each in found), *(each.paying.mean - each.oracle.mean for each in found))
    left = max(_SHOWN, least) - 0.6
    for axes, epsilon in zip(panels, epsilons, strict=True):
        axes.axvspan(-NEAR, NEAR, color="#e8eef4", zorder=0)
        axes.axvline(0, color="black", linewidth=0.8, zorder=1)
        for each in found:
            if each.cell.epsilon == epsilon:
                _dumbbell(axes, names.index(each.cell.task.name), each)
        show.dressed(axes, f"epsilon {epsilon:g}", 10, xlim=(left, most + 0.6), open_frame=True)
        axes.grid(alpha=0.3, axis="x")
        axes.set_xlabel("points from the oracle")
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    shown = {"grid that pays for itself": ("o", "white", _PALE), "private selection": ("d", _PALE, _PALE)}
    if all(each.selected is None for each in found):
        shown.pop("private selection")
    shown |= {
        "one run, nothing set": ("o", _INK, _INK),
        "oracle (its accuracy at the right, %)": ("|", "black", "black"),
    }
    for label, (marker, face, edge) in shown.items():
        panels[0].plot([], [], marker, markerfacecolor=face, markeredgecolor=edge, label=label)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(SAID.text("text.figure"), fontsize=10 if len(epsilons) > 1 else 7)


def _dumbbell(axes: Axes, place: int, found: Found) -> None:
    oracle = found.oracle.mean
    paying = found.paying.mean - oracle
    axes.plot([max(paying, _SHOWN), 0], [place, place], color=_PALE, linewidth=1.6, zorder=2)
    axes.plot([0], [place], "|", color="black", markersize=11, zorder=3)
    _mark(axes, place, paying, "o", "white", _PALE, 6, above=True)
    if found.selected is not None:
        _mark(axes, place, found.selected - oracle, "d", _PALE, _PALE, 5)
    _mark(axes, place, found.gap, "o", _INK, _INK, 7, above=False)
    beside = axes.get_yaxis_transform()  # across in shares of the panel
    axes.text(1.01, place, f"{oracle:.1f}", fontsize=7, va="center", color="#555555", transform=beside)


def _mark(
    axes: Axes, place: int, at: float, marker: str, face: str, edge: str, size: int, above: bool | None = None
) -> None:
    """What lies beyond the panel is an arrow at its edge, with its number above or below the line."""
    out = at < _SHOWN
    shape: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": edge, "markersize": size}
    axes.plot([max(at, _SHOWN)], [place], "<" if out else marker, zorder=4, **shape)
    if out and above is not None:
        axes.annotate(
            f"{at:.0f}",
            (_SHOWN, place),
            (7, 3 if above else -9),
            textcoords="offset points",
            fontsize=6,
            color=edge,
        )
