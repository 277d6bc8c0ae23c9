"""AdaBest's comparisons (its table 2): FedAvg, SCAFFOLD, FedDyn and AdaBest under label skew, and CIFAR's CNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from sordino.recipes import show
from sordino.recipes.frame import Contestant, Job, Report, Result, Run, Study, Table, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import missing, train_federated


@dataclass(frozen=True)
class Setting:
    """How the rows are dealt out."""

    skew: str  # a partition of `partition_named`
    unbalanced: bool = False

    @property
    def partition(self) -> str:
        return f"{self.skew},spread=0.3" if self.unbalanced else self.skew

    @property
    def label(self) -> str:
        skew = "IID" if self.skew == "iid" else self.skew.replace("dirichlet:", "Dirichlet ")
        return f"{skew}, {'unbalanced' if self.unbalanced else 'balanced'}"


SAID = Published(__name__)
RIVALS = SAID.contestants("rivals")
_FEW = tuple(who for who in RIVALS if who.label not in ("FedProx, mu 0.01", "SCAFFOLD/m"))


def adabest(beta: float) -> Contestant:
    return Contestant(f"AdaBest, beta {beta:g}", "adabest", {"mu": 0.02, "beta": beta})


@dataclass(frozen=True)
class Protocol:
    """A data set and how it is dealt out. The first seed's balanced clients choose beta, for each skew.

    What is not here is as in the paper: batches of 45, rate 0.1 x 0.998 a round, mu 0.02.
    """

    data: str
    rows: int | None  # training rows to use
    model: str
    rounds: int
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    betas: tuple[float, ...] = (0.8, 0.9, 0.95, 0.98, 1.0)
    rivals: tuple[Contestant, ...] = RIVALS
    clients: int = 100
    holdout: int = 10
    per_round: int = 10
    local_epochs: int = 5
    every: int = 5  # rounds between evaluations
    test_rows: int | None = None

    def jobs(self, who: Contestant, setting: Setting, seeds: Sequence[int]) -> list[Job]:
        compared = ("settings", "seeds", "betas", "rivals", "every")
        given = {name: value for name, value in vars(self).items() if name not in compared}
        plan = {"partition": setting.partition, "evaluations": max(1, self.rounds // self.every)}
        study = Study(train_federated, given | plan, "algorithm")
        name = f"{self.data} {setting.label} {who.label}"
        return [study.job(f"{name} seed={seed}", who, seed=seed) for seed in seeds]

    def rivals_of(self, setting: Setting) -> list[Contestant]:
        """Progressive averages change nothing where all clients are of one size."""
        return [who for who in self.rivals if setting.unbalanced or "progressive" not in who.settings]

    def skews(self) -> list[str]:
        return list(dict.fromkeys(setting.skew for setting in self.settings))


def last_ten(result: Result, what: str = "accuracy") -> float:
    """Percent, averaged over the last ten evaluations."""
    return 100 * fmean(result[what][-10:])


def chosen_betas(run: Run, what: Protocol) -> dict[str, tuple[float, str]]:
    """The best beta for each skew by the accuracy on clients that were held out, and how the others did."""
    if len(what.betas) == 1:
        return dict.fromkeys(what.skews(), (what.betas[0], ""))
    jobs = {
        (skew, beta): what.jobs(adabest(beta), Setting(skew), what.seeds[:1])
        for skew in what.skews()
        for beta in what.betas
    }
    # The rivals are not for choosing. They run along, so that no worker waits for the last of the betas.
    others = {
        (setting, who.label): what.jobs(who, setting, what.seeds)
        for setting in what.settings
        for who in what.rivals_of(setting)
    }
    found = results_of(run, {**jobs, **others})
    chosen = {}
    for skew in what.skews():
        scores = {beta: last_ten(found[skew, beta][0], "holdout") for beta in what.betas}
        chosen[skew] = show.best(scores), show.tried(scores)
    return chosen


Found = dict[tuple[Setting, str], list[Result]]  # by setting and label, one result for each seed


def trained(run: Run, what: Protocol) -> tuple[Found, dict[str, tuple[float, str]]]:
    betas = chosen_betas(run, what)
    jobs = {
        (setting, who.label): what.jobs(who, setting, what.seeds)
        for setting in what.settings
        for who in [*what.rivals_of(setting), adabest(betas[setting.skew][0])]
    }
    return results_of(run, jobs), betas


def rounds_to(result: Result, accuracy: float) -> int | None:
    """The first evaluated round with this test accuracy (%), if any."""
    pairs = zip(result["measured"], result["accuracy"], strict=True)
    return next((number for number, score in pairs if 100 * score >= accuracy), None)


def _table(what: Protocol, found: Found) -> Table:
    rows = []
    for (setting, label), results in found.items():
        goals = [last_ten(result) for result in found[setting, "FedAvg"]]
        needed = [rounds_to(result, goal) for result, goal in zip(results, goals, strict=True)]
        reached = [number for number in needed if number is not None]
        all_did = len(reached) == len(needed)
        speed = f"{fmean(reached):.0f}" if all_did else f"{len(reached)} of {len(needed)} did"
        test = show.spread([last_ten(result) for result in results])
        held_out = f"{fmean(last_ten(r, 'holdout') for r in results):.2f}" if what.holdout else ""
        norm = fmean(result["norms"][-1] for result in results)
        rows.append(f"{setting.label} | {label} | {test} | {held_out} | {speed} | {norm:.3g}")
    return SAID.table("compared", rows, what=what, epochs=show.several(what.local_epochs, "local epoch"))


def report(run: Run, protocols: Sequence[Protocol], **why: Any) -> Report:
    betas, curves = [], []
    for what in protocols:
        found, chosen = trained(run, what)
        curves.append((what, found))
        tried = "; ".join(f"{Setting(skew).label}: {tried}" for skew, (_, tried) in chosen.items())
        betas += SAID.notes(
            "betas", what=what, tuned=len(what.betas) > 1, fixed=len(what.betas) == 1, tried=tried
        )
    seeds = show.seeds(len(protocols[0].seeds), "mean, lowest and highest of {} seeds")
    notes = [*SAID.notes(**why), *betas, SAID.text("plan", seeds=seeds)]
    width = sum(len(what.settings) for what in protocols)
    size = (4.0 * min(3, width) + 1, 3.5 * -(-width // 3) + 0.5)
    return Report([_table(*pair) for pair in curves], notes, partial(_draw, curves=curves), size)


def _draw(figure: Figure, curves: Sequence[tuple[Protocol, Found]]) -> None:
    cells = [(what, found, setting) for what, found in curves for setting in what.settings]
    columns = min(3, len(cells))
    panels = figure.subplots(-(-len(cells) // columns), columns, squeeze=False).flatten()
    for panel, (what, found, setting) in zip(panels, cells, strict=False):
        shown = {label: results for (of, label), results in found.items() if of == setting}
        for label, (result, *_) in shown.items():
            panel.plot(result["measured"], show.percents(result["accuracy"]), label=label, lw=1)
        top = max(100 * max(result["accuracy"]) for results in shown.values() for result in results)
        panel.set_ylim(max(0.0, top - 25), min(100.0, top + 2))
        show.dressed(
            panel, f"{what.data}: {setting.label}", 9, legend=6, xlabel="round", ylabel="test accuracy, %"
        )
    for panel in panels[len(cells) :]:
        panel.set_visible(False)


# What is run ------------------------------------------------------------------------------------------------------

_ALL = tuple(
    Setting(skew, unbalanced)
    for skew in ("dirichlet:0.3", "dirichlet:0.03", "iid")
    for unbalanced in (False, True)
)
# All that EMNIST-L has, and as many rows of what stands in for it.
EMNIST = Protocol("emnist-l", 48_000, "mlp:100,100", 500, _ALL)
CIFAR = Protocol(
    "cifar10", None, "fed_cnn:augmented", 200, _ALL[:1], seeds=(1,), betas=(0.9, 0.95, 0.98), rivals=_FEW
)


@recipe("adabest-emnist", "80 rounds at Dirichlet 0.3, two seeds, five rivals, three betas")
def emnist(run: Run, quick: bool) -> Report:
    protocols, why = [EMNIST], missing("emnist-letters")
    if why:
        protocols = [replace(EMNIST, data=data) for data in ("fashion-mnist", "mnist")]
    if quick:
        less = replace(protocols[0], rounds=80, settings=_ALL[:2], seeds=(1, 2), betas=(0.8, 0.9, 0.95))
        protocols = [replace(less, rivals=_FEW, every=2)]
    where = "Fashion-MNIST" if quick else "Fashion-MNIST and of MNIST"
    return report(run, protocols, elsewhere=why, where=where, images=False, short=False)


@recipe("adabest-cifar", "ten rounds of one local epoch, 5 of 100 clients, 1,000 test rows, beta not tuned")
def cifar(run: Run, quick: bool) -> Report:
    less = replace(
        CIFAR, rounds=10, betas=(0.9,), holdout=0, per_round=5, local_epochs=1, every=2, test_rows=1000
    )
    return report(run, [less if quick else CIFAR], elsewhere="", short=quick)
