"""Clients that tune their own rates (Koskela and Honkela, 2020, figures 1 to 3): ADADP against tuned SGD and Adam.

Five clients, each with two classes, or that and a share of rows dealt at random; all take part in every round. The
paper has curves and no tables, so what stands beside our numbers is what its text claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sordino.data.partitions import Pathological
from sordino.federated import LocalAdam, LocalExtrapolation, LocalSgd
from sordino.recipes import show
from sordino.recipes.frame import Job, Report, Result, Run, Table, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import train_federated

CLIENTS = 5
TOLERANCE = 0.1
# Evaluations whose mean is a run's accuracy: single rounds of clients with two classes go up and down.
LAST = 3
INSENSITIVE = 0.02  # our reading: at most so much between the best and the worst initial rate
MU, BETA = 0.02, 0.9  # of AdaBest

SAID = Published(__name__)


@dataclass(frozen=True)
class Protocol:
    data: str
    model: str
    groups: tuple[tuple[int, int], ...]  # the two classes of each client
    rounds: int
    shares: tuple[float, ...]  # of rows dealt at random, from by class only to at random only
    starts: tuple[float, ...]  # ADADP's initial rates
    sgd_rates: tuple[float, ...]
    adam_rates: tuple[float, ...]
    seeds: int  # of what is compared; the grids are run with the first alone
    evaluations: int
    rows: int | None = None  # of the training set, the first; None is all
    batch: int = 10
    engine: str = "stacked"

    @property
    def middle(self) -> float:
        """The initial rate that ADADP is shown with where it is shown with one; no choice was made among them."""
        return self.starts[len(self.starts) // 2]

    @property
    def grids(self) -> dict[str, tuple[float, ...]]:
        return {SGD: self.sgd_rates, ADAM: self.adam_rates}


FULL, QUICK = Protocol(**SAID["full"]), Protocol(**SAID["quick"])

# The contestants, by their names in tables and figures.
KEPT, FRESH = "ADADP, rate kept", "ADADP, rate begun anew each round"
BOLD, TWICE = "ADADP, rate kept, no step taken back", "ADADP, rate kept, two local epochs"
BEST_SGD, BEST_ADAM = "SGD, best rate", "Adam, best rate"
BOTH, ADABEST = "AdaBest with ADADP, rate kept", "AdaBest with SGD, FedAvg's best rate"
SGD, ADAM = "SGD", "Adam"  # at any rate
_ADADP = (KEPT, FRESH, BOTH, BOLD, TWICE)

# Jobs -----------------------------------------------------------------------------------------------------------


def train_pairs(
    *, groups: Sequence[Sequence[int]], share: float, local: str, discard: bool, batch: int, **how: Any
) -> Result:
    """Clients by groups of labels, all of them in every round. ``discard`` is of ADADP: steps may be taken back."""
    rules = {"adadp": LocalExtrapolation(TOLERANCE, discard), "sgd": LocalSgd(), "adam": LocalAdam()}
    found = train_federated(
        partition=Pathological(tuple(map(tuple, groups)), random=share),
        clients=len(groups),
        per_round=len(groups),
        local=rules[local],
        batch_size=batch,
        decay=1.0,  # constant rates, as in the paper
        settings={"mu": MU, "beta": BETA} if how["algorithm"] == "adabest" else {},
        **how,
    )
    scores = list(zip(found["measured"], found["accuracy"], strict=True))
    kept = ("rates", "left_out", "parameters", "engine", "rows", "seconds")
    accuracy = fmean(score for _, score in scores[-LAST:])
    return {"accuracy": accuracy, "scores": scores, **{name: found[name] for name in kept}}


Key = tuple[str, float, float]  # what, share of random rows, (initial) rate


def _job(what: Protocol, key: Key, seed: int) -> Job:
    name, share, rate = key
    given = ("data", "model", "rows", "rounds", "batch", "evaluations", "engine")
    settings = {of: getattr(what, of) for of in given} | SAID["usual"] | SAID["contestants"][name]
    settings |= {"groups": [list(group) for group in what.groups], "share": share, "rate": rate, "seed": seed}
    return Job(f"{name} {rate:g}, {show.share(share)} random, seed {seed}", train_pairs, settings)


@dataclass(frozen=True)
class Found:
    what: Protocol
    results: dict[Key, list[Result]]  # one for each seed that was run

    def best(self, name: str, share: float) -> float:
        """The best rate of SGD's or Adam's grid."""
        return show.best({rate: self.accuracy(name, share, rate) for rate in self.what.grids[name]})

    def rate(self, name: str, share: float) -> float:
        """That which a contestant is shown with where it is shown with one."""
        return self.what.middle if name in _ADADP else self.best(ADAM if name == BEST_ADAM else SGD, share)

    def accuracy(self, name: str, share: float, rate: float | None = None) -> float:
        rate = self.rate(name, share) if rate is None else rate
        return show.mean_accuracy(self.results[name, share, rate])

    def range(self, name: str, share: float, rates: Sequence[float]) -> float:
        """Best minus worst."""
        scores = [self.accuracy(name, share, rate) for rate in rates]
        return max(scores) - min(scores)


@recipe("adadp-federated", "Fashion-MNIST and a small network, a fifth of the batches, 12 rounds, one seed")
def compare(run: Run, quick: bool) -> Report:
    """The grids first, for the rates of SGD and Adam; then what is compared, with every seed."""
    what = QUICK if quick else FULL
    tried = [(n, share, rate) for share in what.shares for n, rates in what.grids.items() for rate in rates]
    grid = results_of(run, {key: [_job(what, key, 0)] for key in tried})
    keys = _compared(Found(what, grid))
    compared = results_of(run, {key: [_job(what, key, seed) for seed in range(what.seeds)] for key in keys})
    found = Found(what, grid | compared)
    return Report(
        [_claims_table(found), _accuracy_table(found), _rate_table(found), _client_rates_table(found)],
        _notes(found, quick),
        partial(_draw, found=found),
        (3.6 * len(what.shares), 9.0),
        {**vars(what), "tolerance": TOLERANCE, "mu": MU, "beta": BETA},
    )


def _compared(grid: Found) -> Iterator[Key]:
    for share in grid.what.shares:
        yield from ((name, share, start) for name in (KEPT, FRESH, BOTH) for start in grid.what.starts)
        yield from (
            (name, share, grid.rate(name, share)) for name in (BOLD, TWICE, BEST_SGD, BEST_ADAM, ADABEST)
        )


# What was found -------------------------------------------------------------------------------------------------


def _claims_table(found: Found) -> Table:
    readings = (_insensitive, _robust, _poor_adam)
    cells = [[of(found, name) for name in (KEPT, FRESH)] for of in readings]
    cells.append([_steadier(found), "not run"])
    return SAID.table("claims", [(claim, *of) for claim, of in zip(SAID["claims"], cells, strict=True)])


def _by_share(values: dict[float, str]) -> str:
    return "; ".join(f"{show.share(share)}: {value}" for share, value in values.items())


def _insensitive(found: Found, name: str) -> str:
    what = found.what
    ours = {share: found.range(name, share, what.starts) for share in what.shares}
    sgd = {share: found.range(SGD, share, what.sgd_rates) for share in what.shares}
    shown = {share: f"{100 * ours[share]:.1f} (SGD {100 * sgd[share]:.1f})" for share in what.shares}
    held = [spread <= INSENSITIVE for spread in ours.values()]
    return show.judged(held, f"best minus worst, at {_by_share(shown)}")


def _robust(found: Found, name: str) -> str:
    """How much is lost to the data dealt at random: less than by SGD, tuned for each share?"""
    top = max(found.what.shares)
    held, shown = [], {}
    for share in (share for share in found.what.shares if share < top):
        ours, sgd = (found.accuracy(of, top) - found.accuracy(of, share) for of in (name, BEST_SGD))
        held.append(ours < sgd)
        shown[share] = f"{100 * ours:.1f} (SGD {100 * sgd:.1f})"
    return show.judged(held, f"lost, at {_by_share(shown)}")


def _poor_adam(found: Found, name: str) -> str:
    share = min(found.what.shares, key=lambda share: abs(share - 1 / 3))
    adam = found.accuracy(BEST_ADAM, share)
    gaps = {who: adam - found.accuracy(of, share) for who, of in (("ADADP", name), ("SGD", BEST_SGD))}
    shown = ", ".join(f"{100 * gap:+.1f} against {who}" for who, gap in gaps.items())
    return show.judged([gap < -INSENSITIVE for gap in gaps.values()], shown)


def _steadier(found: Found) -> str:
    gains = {share: found.accuracy(KEPT, share) - found.accuracy(BOLD, share) for share in found.what.shares}
    shown = _by_share({share: f"{100 * gain:+.1f}" for share, gain in gains.items()})
    return show.judged([gain > INSENSITIVE for gain in gains.values()], f"gained, at {shown}")


def _cell(runs: Sequence[Result]) -> str:
    """Accuracy in percent, the lowest and highest of several seeds, and how often clients came back with no numbers."""
    lost = sum(result["left_out"] for result in runs)
    return show.accuracy(runs, 1) + (f", {lost} left out" if lost else "")


def _accuracy_table(found: Found) -> Table:
    what, results = found.what, found.results

    def line(name: str, start: float) -> tuple[str, ...]:
        return (f"{name}, from {start:g}", *(_cell(results[name, share, start]) for share in what.shares))

    def tuned(name: str, share: float) -> str:
        rate = found.rate(name, share)
        return f"{_cell(results[name, share, rate])} (rate {rate:.2g})"

    rows = [(name, *(tuned(name, share) for share in what.shares)) for name in (BEST_SGD, BEST_ADAM, ADABEST)]
    rows += [line(name, start) for name in (KEPT, FRESH, BOTH) for start in what.starts]
    rows += [line(name, what.middle) for name in (BOLD, TWICE)]
    columns = ("clients", *map(show.share, what.shares))
    return SAID.table("accuracy", rows, columns, what=what, seeds=show.seeds(what.seeds))


def _rate_table(found: Found) -> Table:
    """The grids of SGD and Adam."""
    rows = [
        (name, f"{rate:.2g}", *(_cell(found.results[name, share, rate]) for share in found.what.shares))
        for name, rates in found.what.grids.items()
        for rate in rates
    ]
    columns = ("clients", "rate", *map(show.share, found.what.shares))
    return SAID.table("rates", rows, columns)


def _client_rates_table(found: Found) -> Table:
    def ends(name: str, share: float, start: float) -> str:
        return " / ".join(f"{rate:.2g}" for rate in found.results[name, share, start][0]["rates"][-1])

    shares, starts = found.what.shares, found.what.starts
    rows = [
        (name, f"{start:g}", *(ends(name, s, start) for s in shares))
        for name in (KEPT, BOTH)
        for start in starts
    ]
    rows.append(("SGD's best rate", "", *(f"{found.best(SGD, share):.2g}" for share in shares)))
    columns = ("clients", "from", *map(show.share, shares))
    return SAID.table("client_rates", rows, columns)


def _notes(found: Found, quick: bool) -> list[str]:
    what = found.what
    one = next(iter(found.results.values()))[0]
    rows = one["rows"]
    batches = rows // CLIENTS // what.batch
    # What is called the best of a grid is of that grid, but for further seeds.
    trained = [
        run for (name, _, _), runs in found.results.items() for run in runs[name in (BEST_SGD, BEST_ADAM) :]
    ]
    edges = {
        f"{name} at {show.share(share)}"
        for share in what.shares
        for name, rates in what.grids.items()
        if found.best(name, share) in (rates[0], rates[-1])
    }
    return SAID.notes(
        what=what,
        one=one,
        rows=rows,
        batches=batches,
        points=100 * INSENSITIVE,
        highest=what.starts[-1],
        apart=what.rounds // what.evaluations,
        count=len(trained),
        minutes=sum(result["seconds"] for result in trained) / 60,
        edges=", ".join(sorted(edges)),
        quick=quick,
    )


# The figure -----------------------------------------------------------------------------------------------------

_STYLES = {
    KEPT: ("#b8442c", "-"),
    FRESH: ("#e08a3c", "-"),
    BOTH: ("#b8442c", ":"),
    BEST_SGD: ("#1b6ca8", "-"),
    BEST_ADAM: ("#555555", "-."),
    ADABEST: ("#1b6ca8", ":"),
}


def _draw(figure: Figure, found: Found) -> None:
    panels = figure.subplots(3, len(found.what.shares), sharey="row", squeeze=False)
    for share, (above, between, below) in zip(found.what.shares, panels.T, strict=True):
        _draw_rounds(above, found, share)
        _draw_client_rates(between, found, share)
        _draw_initial_rates(below, found, share)
        show.dressed(above, f"{show.share(share)} of the rows random", 9, xlabel="round", grid=True)
        show.dressed(between, xlabel="round", yscale="log", grid=True)
        show.dressed(below, xlabel="rate, of ADADP the initial one", xscale="log", grid=True)
    for axes, label in zip(
        panels[:, 0], ("test accuracy, %", "clients' rates", "test accuracy, %"), strict=True
    ):
        show.dressed(axes, ylabel=label, legend=6, boxed=False)


def _draw_rounds(axes: Axes, found: Found, share: float) -> None:
    for name, (colour, line) in _STYLES.items():
        runs = found.results[name, share, found.rate(name, share)]
        rounds = [number for number, _ in runs[0]["scores"]]
        means = [100 * fmean(at) for at in zip(*([s for _, s in run["scores"]] for run in runs), strict=True)]
        axes.plot(rounds, means, line, color=colour, label=name, linewidth=1.4)


def _draw_client_rates(axes: Axes, found: Found, share: float) -> None:
    for start in found.what.starts:
        rates = found.results[KEPT, share, start][0]["rates"]
        least, median, largest = zip(*rates, strict=True)
        rounds = range(1, len(rates) + 1)
        (drawn,) = axes.plot(rounds, median, linewidth=1.4, label=f"from {start:g}")
        axes.fill_between(rounds, least, largest, alpha=0.2, color=drawn.get_color())


def _draw_initial_rates(axes: Axes, found: Found, share: float) -> None:
    styles = {KEPT: KEPT, FRESH: FRESH, SGD: BEST_SGD, ADAM: BEST_ADAM}
    for name, like in styles.items():
        rates = found.what.grids.get(name, found.what.starts)
        values = [100 * found.accuracy(name, share, rate) for rate in rates]
        colour, line = _STYLES[like]
        axes.plot(rates, values, line, marker="o", markersize=3, color=colour, label=name)
