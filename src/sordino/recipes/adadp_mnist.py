"""ADADP's comparison on MNIST (Koskela and Honkela, 2020, figures 4 and 5): no tuning against tuned rates.

The paper has curves and no tables, so what stands beside our numbers is what its text claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sordino.privacy import show_epsilon
from sordino.recipes import show
from sordino.recipes.frame import Contestant, Job, Report, Result, Run, Study, Table, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import train_named

BATCH = 200
DELTA = 1e-5
THRESHOLD = 1.0  # C of all methods: the paper has none, its code 10, which clips nothing and drowns in noise
PAPER_TOLERANCE = 1.0
TUNED_AT = 2.0  # the sigma at which DP-SGD's rate is tuned

SAID = Published(__name__)
MOMENTS_EPSILON = {float(sigma): epsilon for sigma, epsilon in SAID["moments_epsilon"].items()}
WITHOUT_NOISE: float = SAID["without_noise"]
COMPETITIVE = 0.01  # our reading of "competitive": at most one percentage point below
ABOUT = 0.01  # and of "about"


@dataclass(frozen=True)
class Protocol:
    epochs: float
    freeze_after: float  # epochs, in the comparison with Adam
    sigmas: tuple[float, ...]
    adam_rates: tuple[float, ...]
    sgd_rates: tuple[float, ...]  # for means over the batch; the paper's are for sums
    seeds: int  # of what is compared; the grids are run with the first alone
    evaluations: int


FULL, QUICK = Protocol(**SAID["full"]), Protocol(**SAID["quick"])

# The curves, by what is compared. ADADP stops to adapt halfway in the comparison with Adam, and never in the other.
FROZEN, FROZEN_RULE = "ADADP, tol 1, frozen", "ADADP, tol of the plan, frozen"
PLAIN, PLAIN_RULE = "ADADP, tol 1", "ADADP, tol of the plan"
BEST, SECOND, CARRIED = "DP-Adam, best rate", "DP-Adam, second-best rate", "DP-SGD, carried rate"
_STUDY = Study(train_named, {"data": "mnist", "model": "mnist_mlp", "batch_size": BATCH, "delta": DELTA})


Grids = dict[tuple[str, float], dict[float, float]]  # by method and sigma, then by rate: accuracies


@dataclass(frozen=True)
class Found:
    what: Protocol
    grids: Grids
    results: dict[tuple[str, float], list[Result]]  # by what is compared and sigma, one for each seed

    def accuracy(self, name: str, sigma: float) -> float:
        return show.mean_accuracy(self.results[name, sigma])

    def rates(self, sigma: float) -> dict[str, float]:
        adam, sgd = self.grids["dp-adam", sigma], self.grids["dp-sgd", TUNED_AT]
        best, second, *_ = sorted(adam, key=lambda rate: adam[rate], reverse=True)
        return {BEST: best, SECOND: second, CARRIED: show.best(sgd)}


@recipe("adadp-mnist", SAID["cut"])
def compare(run: Run, quick: bool) -> Report:
    """The grids first, for the rates of Adam and SGD; then what is compared, with every seed."""
    what = QUICK if quick else FULL
    tried = [("dp-adam", sigma, rate) for sigma in what.sigmas for rate in what.adam_rates]
    tried += [("dp-sgd", TUNED_AT, rate) for rate in what.sgd_rates]
    jobs = {(m, sigma, rate): _jobs(what, _fixed(m, rate), sigma, 1) for m, sigma, rate in tried}
    grids: Grids = {}
    for (method, sigma, rate), (result,) in results_of(run, jobs).items():
        grids.setdefault((method, sigma), {})[rate] = result["accuracy"]
    found = Found(what, grids, results_of(run, _compared(Found(what, grids, {}))))
    return Report(
        [_claims_table(found), _accuracy_table(found), _adam_table(found), _sgd_table(found)],
        _notes(found, quick),
        partial(_draw, found=found),
        (10.0, 4.0 * ((len(what.sigmas) + 1) // 2)),
        {"model": "mnist_mlp", "batch_size": BATCH, "threshold": THRESHOLD, "delta": DELTA, **vars(what)},
    )


def _compared(grid: Found) -> dict[tuple[str, float], list[Job]]:
    what = grid.what
    ours = {
        FROZEN: _adadp(PAPER_TOLERANCE, what.freeze_after),
        FROZEN_RULE: _adadp(None, what.freeze_after),
        PLAIN: _adadp(PAPER_TOLERANCE, None),
        PLAIN_RULE: _adadp(None, None),
    }
    methods = {BEST: "dp-adam", SECOND: "dp-adam", CARRIED: "dp-sgd"}
    at: dict[tuple[str, float], Contestant] = {}
    for sigma in what.sigmas:
        tuned = {name: _fixed(methods[name], rate) for name, rate in grid.rates(sigma).items()}
        at |= {(name, sigma): who for name, who in (ours | tuned).items()}
    at |= {(name, 0.0): ours[name] for name in (PLAIN, PLAIN_RULE)}
    return {(name, sigma): _jobs(what, who, sigma, what.seeds) for (name, sigma), who in at.items()}


def _adadp(tol: float | None, freeze_after: float | None) -> Contestant:
    label = f"tol {'of the plan' if tol is None else f'{tol:g}'}{'' if freeze_after is None else ' frozen'}"
    fixed = {"threshold": THRESHOLD, "target_quantile": None}  # as in the paper
    return Contestant(label, "adadp", {**fixed, "tol": tol, "freeze_after": freeze_after})


def _fixed(method: str, rate: float) -> Contestant:
    return Contestant(f"rate {rate:g}", method, {"threshold": THRESHOLD, "learning_rate": rate})


def _jobs(what: Protocol, who: Contestant, sigma: float, seeds: int) -> list[Job]:
    study = _STUDY.but(epochs=what.epochs, evaluations=what.evaluations, noise_multiplier=sigma)
    name = f"{who.method} sigma={sigma:g} {who.label}"
    return [study.job(f"{name} seed {seed}", who, seed=seed) for seed in range(seeds)]


# What was found -----------------------------------------------------------------------------------------


def _claims_table(found: Found) -> Table:
    """Each claim, whether ADADP with the paper's tolerance and with ours supports it, and by how much."""
    sigmas = found.what.sigmas
    higher = [sigma for sigma in sigmas if sigma != TUNED_AT]
    readings = (
        ("best", BEST, sigmas, -COMPETITIVE, (FROZEN, FROZEN_RULE)),
        ("second", SECOND, sigmas, 0.0, (FROZEN, FROZEN_RULE)),
        ("sgd", CARRIED, higher, 0.0, (PLAIN, PLAIN_RULE)),
    )
    rows, claims = [], SAID["claims"]
    for claim, rival, where, least, ours in readings:
        cells = []
        for name in ours:
            gaps = {sigma: found.accuracy(name, sigma) - found.accuracy(rival, sigma) for sigma in where}
            held = [gap >= least if least < 0 else gap > 0 for gap in gaps.values()]
            shown = ", ".join(f"{100 * gap:+.1f} at {sigma:g}" for sigma, gap in gaps.items())
            cells.append(show.judged(held, shown))
        rows.append((claims[claim], *cells))
    rows.append((claims["clean"], *(_about(found.accuracy(name, 0.0)) for name in (PLAIN, PLAIN_RULE))))
    return SAID.table("claims", rows)


def _about(value: float) -> str:
    near = abs(value - WITHOUT_NOISE) <= ABOUT
    return f"{'yes' if near else 'more' if value > WITHOUT_NOISE else 'no'} ({show.percent(value, 1)} %)"


def _accuracy_table(found: Found) -> Table:
    def cell(name: str, sigma: float) -> str:
        rate = found.rates(sigma).get(name) if sigma else None
        return f"{show.percent(found.accuracy(name, sigma))} %" + ("" if rate is None else f" ({rate:.2g})")

    ours = (FROZEN, FROZEN_RULE, PLAIN, PLAIN_RULE)
    rows = []
    for sigma in found.what.sigmas:
        spent = max(float(result["epsilon"]) for result in found.results[PLAIN, sigma])
        cells = [cell(name, sigma) for name in (*ours, BEST, SECOND, CARRIED)]
        rows.append((f"{sigma:g}", show_epsilon(spent, 4), f"{MOMENTS_EPSILON[sigma]:.4f}", *cells))
    rows.append(("0", "inf", "inf", "", "", *(cell(name, 0.0) for name in (PLAIN, PLAIN_RULE)), "", "", ""))
    columns = ("sigma", "epsilon", "epsilon, moments accountant, 100 epochs", *ours, BEST, SECOND, CARRIED)
    return SAID.table("accuracy", rows, columns, found=found, seeds=show.seeds(found.what.seeds))


def _adam_table(found: Found) -> Table:
    grids = {f"sigma {sigma:g}": found.grids["dp-adam", sigma] for sigma in found.what.sigmas}
    rows = [
        {"rate": f"{rate:.3g}", **{name: f"{show.percent(grid[rate])} %" for name, grid in grids.items()}}
        for rate in found.what.adam_rates
    ]
    return SAID.table("adam", rows)


def _sgd_table(found: Found) -> Table:
    rows = [
        (f"{rate:.3g}", f"{rate / BATCH:.3g}", f"{show.percent(accuracy)} %")
        for rate, accuracy in found.grids["dp-sgd", TUNED_AT].items()
    ]
    return SAID.table("sgd", rows)


def _notes(found: Found, quick: bool) -> list[str]:
    what = found.what
    ends = {
        how: found.results[name, what.sigmas[0]][0]["history"][-1].get("tolerance")
        for name, how in ((FROZEN_RULE, "frozen"), (PLAIN_RULE, "not frozen"))
    }
    tolerance = ", ".join(f"{value:.3g} ({how})" for how, value in ends.items() if value is not None)
    ends_of = (what.adam_rates[0], what.adam_rates[-1])
    edges = [f"DP-Adam at sigma {sigma:g}" for sigma in what.sigmas if found.rates(sigma)[BEST] in ends_of]
    if found.rates(what.sigmas[0])[CARRIED] in (what.sgd_rates[0], what.sgd_rates[-1]):
        edges.append("DP-SGD")
    return SAID.notes(what=what, tolerance=tolerance, edges=", ".join(edges), quick=quick)


# The figure ---------------------------------------------------------------------------------------------

_STYLES = {
    FROZEN: ("#b8442c", "-"),
    FROZEN_RULE: ("#e08a3c", "-"),
    PLAIN: ("#b8442c", ":"),
    BEST: ("#1b6ca8", "-"),
    SECOND: ("#1b6ca8", "--"),
    CARRIED: ("#555555", "-."),
}


def _draw(figure: Figure, found: Found) -> None:
    panels = figure.subplots((len(found.what.sigmas) + 1) // 2, 2, sharey=True, squeeze=False).flat
    for axes, sigma in zip(panels, found.what.sigmas, strict=False):
        rates = found.rates(sigma)
        for name, (colour, line) in _STYLES.items():
            epochs, means = _curve(found.results[name, sigma])
            label = f"{name} ({rates[name]:.2g})" if name in rates else name
            axes.plot(epochs, means, line, color=colour, label=label, linewidth=1.6)
        show.dressed(axes, f"sigma = {sigma:g}", 10, grid=True, xlabel="epoch", ylabel="test accuracy")
        axes.legend(fontsize=7, loc="lower right")
        _epsilons_above(axes, show.scored(found.results[FROZEN, sigma][0]["history"]))
    figure.suptitle("ADADP on MNIST: no rate given, against rates tuned on the test set", fontsize=10)


def _curve(runs: Sequence[Result]) -> tuple[list[float], list[float]]:
    """Accuracy by epoch, the mean over seeds."""
    marks = list(zip(*(show.scored(run["history"]) for run in runs), strict=True))
    means = [fmean(line["test_accuracy"] for line in mark) for mark in marks]
    return [mark[0]["epoch"] for mark in marks], means


def _epsilons_above(axes: Axes, scored: Sequence[Result]) -> None:
    chosen = scored[-1 :: -max(1, len(scored) // 4)]
    shown = [show_epsilon(float(line["epsilon"]), 2) for line in chosen]
    top = axes.secondary_xaxis("top")
    top.set_xticks([line["epoch"] for line in chosen], shown)
    top.tick_params(labelsize=7)
    top.set_xlabel("epsilon", fontsize=8)
