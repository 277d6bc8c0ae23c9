"""AdaBest's comparisons (its table 2): FedAvg, SCAFFOLD, FedDyn and AdaBest under label skew, and CIFAR's CNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from sordino.recipes.adabest_runs import train_federated
from sordino.recipes.frame import Job, Recipe, Report, Result, Run, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


@dataclass(frozen=True)
class Rival:
    label: str
    algorithm: str
    settings: dict[str, Any]
    only_unbalanced: bool = False  # on balanced clients it is another one of them


RIVALS = (
    Rival("FedAvg", "fedavg", {}),
    Rival("FedProx, mu 0.01", "fedprox", {"mu": 0.01}),
    Rival("SCAFFOLD", "scaffold", {}),
    Rival("SCAFFOLD, progressive average", "scaffold", {"progressive": True}, only_unbalanced=True),
    Rival("SCAFFOLD/m", "scaffold-m", {}),
    Rival("FedDyn", "feddyn", {"mu": 0.02}),
    Rival("FedDyn, progressive average", "feddyn", {"mu": 0.02, "progressive": True}, only_unbalanced=True),
)


@dataclass(frozen=True)
class Experiment:
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
    rivals: tuple[Rival, ...] = RIVALS
    clients: int = 100
    holdout: int = 10
    per_round: int = 10
    local_epochs: int = 5
    every: int = 5  # rounds between evaluations
    test_rows: int | None = None

    def job(self, who: Rival, setting: Setting, seed: int) -> Job:
        return Job(
            f"{self.data} {setting.label} {who.label} seed={seed}",
            train_federated,
            {
                "data": self.data,
                "rows": self.rows,
                "test_rows": self.test_rows,
                "model": self.model,
                "algorithm": who.algorithm,
                "settings": who.settings,
                "partition": setting.partition,
                "clients": self.clients,
                "holdout": self.holdout,
                "per_round": self.per_round,
                "local_epochs": self.local_epochs,
                "rounds": self.rounds,
                "evaluations": max(1, self.rounds // self.every),
                "seed": seed,
            },
        )

    def rivals_of(self, setting: Setting) -> list[Rival]:
        return [who for who in self.rivals if setting.unbalanced or not who.only_unbalanced]

    def skews(self) -> list[str]:
        return list(dict.fromkeys(setting.skew for setting in self.settings))


def adabest(beta: float) -> Rival:
    return Rival(f"AdaBest, beta {beta:g}", "adabest", {"mu": 0.02, "beta": beta})


def last_ten(result: Result, what: str = "accuracy") -> float:
    """Percent, averaged over the last ten evaluations."""
    return 100 * float(mean(result[what][-10:]))


def chosen_betas(run: Run, what: Experiment) -> dict[str, tuple[float, str]]:
    """The best beta for each skew by the accuracy on clients that were held out, and how the others did."""
    if len(what.betas) == 1:
        return dict.fromkeys(what.skews(), (what.betas[0], ""))
    jobs = [
        what.job(adabest(beta), Setting(skew), what.seeds[0]) for skew in what.skews() for beta in what.betas
    ]
    others = [
        what.job(who, setting, seed)
        for setting in what.settings
        for who in what.rivals_of(setting)
        for seed in what.seeds
    ]
    # The rivals are not for choosing. They run along, so that no worker waits for the last of the betas.
    results = iter(run([*jobs, *others])[: len(jobs)])
    chosen = {}
    for skew in what.skews():
        scores = {beta: last_ten(next(results), "holdout") for beta in what.betas}
        best = max(scores, key=lambda beta: scores[beta])
        chosen[skew] = best, ", ".join(f"{beta:g}: {score:.1f}" for beta, score in scores.items())
    return chosen


Found = dict[tuple[Setting, str], list[Result]]  # by setting and label, one result for each seed


def trained(run: Run, what: Experiment) -> tuple[Found, dict[str, tuple[float, str]]]:
    betas = chosen_betas(run, what)
    keys = [
        (setting, who)
        for setting in what.settings
        for who in [*what.rivals_of(setting), adabest(betas[setting.skew][0])]
    ]
    results = iter(run([what.job(who, setting, seed) for setting, who in keys for seed in what.seeds]))
    return {(setting, who.label): [next(results) for _ in what.seeds] for setting, who in keys}, betas


def rounds_to(result: Result, accuracy: float) -> int | None:
    """The first evaluated round with this test accuracy (%), if any."""
    pairs = zip(result["measured"], result["accuracy"], strict=True)
    return next((number for number, score in pairs if 100 * score >= accuracy), None)


def _table(what: Experiment, found: Found) -> Table:
    rows = []
    for (setting, label), results in found.items():
        goals = [last_ten(result) for result in found[setting, "FedAvg"]]
        needed = [rounds_to(result, goal) for result, goal in zip(results, goals, strict=True)]
        reached = [number for number in needed if number is not None]
        speed = (
            f"{mean(reached):.0f}" if len(reached) == len(needed) else f"{len(reached)} of {len(needed)} did"
        )
        rows.append(
            (
                setting.label,
                label,
                spread([last_ten(result) for result in results]),
                f"{mean(last_ten(result, 'holdout') for result in results):.2f}" if what.holdout else "",
                speed,
                f"{mean(result['norms'][-1] for result in results):.3g}",
            )
        )
    title = (
        f"{what.data}, {what.per_round} of {what.clients} clients a round, {what.rounds:,} rounds of "
        f"{what.local_epochs} local epoch{'s' * (what.local_epochs > 1)} (accuracy, %, last ten evaluations)"
    )
    return Table(
        title,
        (
            "clients",
            "algorithm",
            "test",
            "held-out clients",
            "rounds to FedAvg's accuracy",
            "norm of the cloud model",
        ),
        rows,
    )


def spread(values: Sequence[float]) -> str:
    between = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{mean(values):.2f}{between}"


def report(run: Run, experiments: Sequence[Experiment], notes: Sequence[str]) -> Report:
    tables, said, curves = [], list(notes), []
    for what in experiments:
        found, betas = trained(run, what)
        tables.append(_table(what, found))
        curves.append((what, found))
        said.append(
            f"{what.data}: beta chosen on the held-out clients of the first seed, balanced, their accuracy at each: "
            + "; ".join(f"{Setting(skew).label}: {tried}" for skew, (_, tried) in betas.items())
            if len(what.betas) > 1
            else f"{what.data}: beta {what.betas[0]:g} and not tuned"
        )
    what = experiments[0]
    count = len(what.seeds)
    said.append(
        "batches of 45, the last one filled up, rate 0.1 x 0.998 a round, mu 0.02; "
        + (f"mean, lowest and highest of {count} seeds" if count > 1 else "one seed")
        + ", also of the partition and the weights; unbalanced sizes are lognormal with deviation 0.3; accuracy "
        "is that of the cloud model"
    )
    width = sum(len(what.settings) for what in experiments)
    return Report(
        tables,
        said,
        lambda figure: _draw(figure, curves),
        size=(4.0 * min(3, width) + 1, 3.5 * -(-width // 3) + 0.5),
    )


def _draw(figure: Figure, curves: Sequence[tuple[Experiment, Found]]) -> None:
    cells = [(what, found, setting) for what, found in curves for setting in what.settings]
    columns = min(3, len(cells))
    panels = figure.subplots(-(-len(cells) // columns), columns, squeeze=False).flatten()
    for panel, (what, found, setting) in zip(panels, cells, strict=False):
        for (of, label), results in found.items():
            if of == setting:
                result = results[0]
                panel.plot(result["measured"], [100 * a for a in result["accuracy"]], label=label, lw=1)
        top = max(100 * max(r["accuracy"]) for (of, _), rs in found.items() if of == setting for r in rs)
        panel.set_ylim(max(0.0, top - 25), min(100.0, top + 2))
        panel.set_title(f"{what.data}: {setting.label}", fontsize=9)
        panel.set_xlabel("round")
        panel.set_ylabel("test accuracy, %")
        panel.legend(fontsize=6)
    for panel in panels[len(cells) :]:
        panel.set_visible(False)


# EMNIST-L ---------------------------------------------------------------------------------------------------------

_ALL = tuple(
    Setting(skew, unbalanced)
    for skew in ("dirichlet:0.3", "dirichlet:0.03", "iid")
    for unbalanced in (False, True)
)
# All that EMNIST-L has, and as many rows of what stands in for it.
EMNIST = Experiment("emnist-l", 48_000, "mlp:100,100", 500, _ALL)
_FEW = ("FedAvg", "SCAFFOLD", "FedDyn", "SCAFFOLD, progressive average", "FedDyn, progressive average")
_CLAIMS = (
    "AdaBest's accuracies are in table 2 of its main text, which is not part of what could be read; the supplement "
    "prints none, and the one public number is CIFAR-100, Dirichlet 0.3, 10 clients a round: 56.2. It claims that "
    "AdaBest converges faster and to higher accuracy than all of them, and that progressive averages do no harm to "
    "SCAFFOLD and FedDyn"
)


def _emnist(run: Run, quick: bool) -> Report:
    from sordino.data import load

    experiments, notes = [EMNIST], [_CLAIMS]
    try:
        load("emnist-letters")
    except ValueError as missing:
        experiments = [replace(EMNIST, data=data) for data in ("fashion-mnist", "mnist")]
        notes.append(
            f"EMNIST is not here ({missing}); ran on the first 48,000 rows of "
            + ("Fashion-MNIST" if quick else "Fashion-MNIST and of MNIST")
            + " instead: the same shapes and sizes"
        )
    if quick:
        experiments = [
            replace(
                experiments[0],
                rounds=80,
                settings=_ALL[:2],
                seeds=(1, 2),
                betas=(0.8, 0.9, 0.95),
                rivals=tuple(who for who in RIVALS if who.label in _FEW),
                every=2,
            )
        ]
    return report(run, experiments, notes)


# CIFAR-10 ---------------------------------------------------------------------------------------------------------

CIFAR = Experiment(
    "cifar10",
    None,
    "fed_cnn:augmented",
    200,
    _ALL[:1],
    seeds=(1,),
    betas=(0.9, 0.95, 0.98),
    rivals=tuple(who for who in RIVALS if who.label in _FEW),
)


def _cifar(run: Run, quick: bool) -> Report:
    what = CIFAR
    notes = [
        _CLAIMS,
        "CIFAR-10; CIFAR-100 was not to be had. Images are flipped with probability 1/2, and with 1/2 shifted by up to "
        "4 pixels, as FedDyn has it",
    ]
    if quick:
        what = replace(
            what, rounds=10, betas=(0.9,), holdout=0, per_round=5, local_epochs=1, every=2, test_rows=1000
        )
        notes.append(
            "quick is a check that it runs: ten rounds of one local epoch and 1,000 test rows say little"
        )
    return report(run, [what], notes)


RECIPES = {
    "adabest-emnist": Recipe(
        "adabest-emnist",
        "AdaBest: against FedAvg, SCAFFOLD and FedDyn under label skew on EMNIST-L (table 2)",
        _emnist,
        "80 rounds at Dirichlet 0.3, two seeds, five rivals, three betas",
    ),
    "adabest-cifar": Recipe(
        "adabest-cifar",
        "AdaBest: against FedAvg, SCAFFOLD and FedDyn with a CNN on CIFAR-10 (table 2)",
        _cifar,
        "ten rounds of one local epoch, 5 of 100 clients, 1,000 test rows, beta not tuned",
    ),
}
