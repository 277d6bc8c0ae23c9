"""DP-FTRL (Kairouz et al., 2021) on images: trees against DP-SGD, at epsilons that are true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from sordino.recipes.frame import Job, Recipe, Report, Result, Run, Table
from sordino.recipes.trainings import count_rows, train_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sordino.methods import Method
    from sordino.noise import Releases

# torch is imported inside functions, so that a list of the recipes is quick.

_PAPER = {"restart_every": 1, "completion": False}
_PLAIN, _HEAVY = (0.5, 1.0), (0.05, 0.1)  # rates, without and with momentum 0.9


@dataclass(frozen=True)
class Contestant:
    """One line of the table."""

    label: str
    method: str
    settings: dict[str, Any]
    rates: tuple[float, ...]
    sampling: str | None = None


CONTESTANTS = (
    Contestant("FTRL, vanilla tree", "dp-ftrl", {"momentum": 0.0, "efficient": False, **_PAPER}, _PLAIN),
    Contestant("FTRLM, vanilla tree", "dp-ftrl", {"efficient": False, **_PAPER}, _HEAVY),
    Contestant("FTRL, efficient tree", "dp-ftrl", {"momentum": 0.0, **_PAPER}, _PLAIN),
    Contestant("FTRLM, efficient tree", "dp-ftrl", {**_PAPER}, _HEAVY),
    Contestant("FTRLM, our planned trees", "dp-ftrl", {}, _HEAVY),
    Contestant("DP-SGD, amplified", "dp-sgd", {}, _PLAIN),
    Contestant("DP-SGDM, amplified", "dp-sgd", {"momentum": 0.9}, _HEAVY),
    Contestant("DP-SGD, unamplified", "dp-sgd", {}, (0.1, 0.2), "shuffled"),
)


@dataclass(frozen=True)
class Experiment:
    """A data set and its plan. ``seeds`` are those of each epsilon.

    At the first epsilon each contestant's rates are tried for ``tuning`` epochs, with the noise of the whole plan, and
    the lowest that is within a point of the best is taken: noise gathers, so the best rate of a longer run is lower.
    At a smaller epsilon it is halved, as the paper's tuned rates are.
    """

    data: str
    model: str
    batch_size: int
    epochs: float
    delta: float
    seeds: dict[float, tuple[int, ...]]
    tuning: int | None
    contestants: tuple[Contestant, ...] = CONTESTANTS

    def rows(self) -> int:
        return int(count_rows(data=self.data)["train"])

    def plan(self, who: Contestant) -> tuple[Method, Releases, int]:
        """The method with its trees settled, its releases, and how many they are."""
        from sordino.data import Poisson, Shuffled
        from sordino.methods import method_named

        rows = self.rows()
        method = method_named(who.method, who.settings)
        poisson = method.noise.independent and who.sampling is None
        how = Poisson(self.batch_size / rows) if poisson else Shuffled(self.batch_size)
        per_epoch = how.steps_per_epoch(rows)
        steps = max(1, round(self.epochs * per_epoch))
        noise = method.noise.planned(steps, per_epoch)
        return replace(method, noise=noise), noise.over(noise.dealt(how, rows), rows, steps), steps

    def noise(self, who: Contestant, epsilon: float) -> float:
        from sordino.privacy import Budget, noise_for

        _, releases, steps = self.plan(who)
        return noise_for(Budget(epsilon, self.delta), lambda z: releases.cost(steps, z, ()))

    def job(self, who: Contestant, epsilon: float, rate: float, seed: int, epochs: float) -> Job:
        from sordino.noise import Tree

        settings = {**who.settings, "learning_rate": rate}
        noise = self.plan(who)[0].noise
        if isinstance(noise, Tree):
            settings["restart_every"] = noise.restart_every
        return Job(
            f"{who.label} eps={epsilon:g} rate={rate:g} seed={seed} epochs={epochs:g}",
            train_named,
            {
                "data": self.data,
                "model": self.model,
                "method": who.method,
                "settings": settings,
                "epochs": epochs,
                "batch_size": self.batch_size,
                "seed": seed,
                "noise_multiplier": self.noise(who, epsilon),
                "delta": self.delta,
                "sampling": who.sampling,
                "evaluations": max(1, round(epochs)),
                "rows": self.rows(),
            },
        )


def last_five(result: Result) -> float:
    """The paper's measure: test accuracy, averaged over the last five epochs, in percent."""
    scores = [line["test_accuracy"] for line in result["history"] if "test_accuracy" in line]
    return 100 * float(mean(scores[-5:]))


def tuning_jobs(what: Experiment, epsilon: float) -> list[Job]:
    assert what.tuning is not None
    return [what.job(who, epsilon, rate, 1, what.tuning) for who in what.contestants for rate in who.rates]


def chosen_rates(run: Run, what: Experiment, epsilon: float) -> list[tuple[float, str]]:
    """The best rate of each contestant on test rows, and how the rates did."""
    first = next(iter(what.seeds))
    if epsilon != first:
        return [(rate / 2, "half of the above") for rate, _ in chosen_rates(run, what, first)]
    if what.tuning is None:
        return [(who.rates[0], "not tuned") for who in what.contestants]
    results = iter(run(tuning_jobs(what, epsilon)))
    chosen = []
    for who in what.contestants:
        scores = {rate: 100 * float(next(results)["accuracy"]) for rate in who.rates}
        best = min(rate for rate in scores if scores[rate] >= max(scores.values()) - 1)
        chosen.append((best, ", ".join(f"{rate:g}: {score:.1f}" for rate, score in scores.items())))
    return chosen


def _trained(run: Run, what: Experiment) -> tuple[Table, dict[tuple[str, float], list[Result]]]:
    rates = {epsilon: chosen_rates(run, what, epsilon) for epsilon in what.seeds}
    keys = [
        (who, epsilon, rates[epsilon][i], seed)
        for epsilon, seeds in what.seeds.items()
        for i, who in enumerate(what.contestants)
        for seed in seeds
    ]
    found: dict[tuple[str, float], list[Result]] = {}
    results = run([what.job(who, epsilon, rate, seed, what.epochs) for who, epsilon, (rate, _), seed in keys])
    for (who, epsilon, _, _), result in zip(keys, results, strict=True):
        if float(result["epsilon"]) > epsilon:
            raise RuntimeError(
                f"{who.label} spent {result['epsilon']} of {epsilon}: this is a bug in Sordino"
            )
        found.setdefault((who.label, epsilon), []).append(result)
    rows = []
    for epsilon in what.seeds:
        for who, (rate, tried) in zip(what.contestants, rates[epsilon], strict=True):
            of = found[who.label, epsilon]
            rows.append(
                (
                    f"{epsilon:g}",
                    who.label,
                    f"{of[0]['noise_multiplier']:.3f}",
                    f"{rate:g}",
                    _spread([last_five(r) for r in of]),
                    _spread([100 * float(r["accuracy"]) for r in of]),
                    tried,
                )
            )
    title = (
        f"{what.data}, {what.model}, batches of {what.batch_size}, {what.epochs:g} epochs (test accuracy, %)"
    )
    columns = (
        "epsilon",
        "method",
        "noise multiplier",
        "rate",
        "last five epochs",
        "at the end",
        "tuning: rate: accuracy",
    )
    return Table(title, columns, rows), found


def _spread(values: Sequence[float]) -> str:
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread}"


# What noise the same epsilon buys ---------------------------------------------------------------------------------


def noise_in_sums(what: Experiment, who: Contestant, epsilon: float) -> float:
    """The standard deviation of the noise in the running sum of mean gradients, root mean square over the steps, in
    units of the threshold: what FTRL's and SGD's iterates hold of it, times the rate."""
    from sordino.noise import Tree
    from sordino.noise.tree import noise_of_sums

    method, releases, steps = what.plan(who)
    z = what.noise(who, epsilon)
    if isinstance(method.noise, Tree):
        per_epoch = what.rows() // what.batch_size
        cost = releases.cost(steps, 1.0, ())
        from sordino.privacy.loss_distribution import squared_mu

        squares = squared_mu(cost)
        assert squares is not None
        variance = noise_of_sums(method.noise, steps, per_epoch) / squares * z**2
    else:
        variance = z**2 * (steps + 1) / 2  # a random walk
    return float(variance**0.5) / what.batch_size


def crossing(epsilons: Sequence[float], tree: Sequence[float], sgd: Sequence[float]) -> str:
    """The epsilon from which on the tree has less noise; between two of ``epsilons`` on a line of logarithms."""
    leads = [math.log(s / t) for s, t in zip(sgd, tree, strict=True)]
    for k in range(1, len(leads)):
        if leads[k - 1] < 0 <= leads[k]:
            share = leads[k - 1] / (leads[k - 1] - leads[k])
            between = math.log(epsilons[k - 1]) * (1 - share) + math.log(epsilons[k]) * share
            return f"{math.exp(between):.2g}"
    return f"below {epsilons[0]:g}" if leads[0] >= 0 else f"not up to {epsilons[-1]:g}"


def _noise_table(what: Experiment) -> Table:
    epsilons = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    # The noise of the sum does not depend on momentum: one of each kind.
    kinds = {
        "independent, amplified": Contestant("", "dp-sgd", {}, ()),
        "independent, unamplified": Contestant("", "dp-sgd", {}, (), "shuffled"),
        "vanilla tree, restart every epoch": Contestant("", "dp-ftrl", {"efficient": False, **_PAPER}, ()),
        "efficient tree, restart every epoch": Contestant("", "dp-ftrl", _PAPER, ()),
        "our planned trees": Contestant("", "dp-ftrl", {}, ()),
    }
    noise = {name: [noise_in_sums(what, who, e) for e in epsilons] for name, who in kinds.items()}
    amplified, *others = noise
    rows = [(amplified, *(f"{value:.4f}" for value in noise[amplified]), "")]
    rows += [
        (name, *(f"{value:.4f}" for value in noise[name]), crossing(epsilons, noise[name], noise[amplified]))
        for name in others
    ]
    return Table(
        "Noise in the running sum of gradients at equal true epsilon (std, in thresholds)",
        ("noise", *(f"eps {e:g}" for e in epsilons), "less than amplified from epsilon"),
        rows,
    )


def _batch_table(what: Experiment) -> Table:
    """Noise, batch and epochs scaled together: the same trajectory in expectation, at another epsilon."""
    from sordino.privacy import price, show_epsilon

    rows = []
    contestants = [who for who in CONTESTANTS if who.label in _ONE_OF_EACH]
    base = {who.label: what.noise(who, 8.0) for who in contestants}
    for factor in (0.5, 1, 2, 4, 8):
        scaled = replace(
            what, batch_size=round(what.batch_size * factor), epochs=max(1, round(what.epochs * factor))
        )
        cells = []
        for who in contestants:
            _, releases, steps = scaled.plan(who)
            event = releases.cost(steps, base[who.label] * factor, ())
            cells.append(show_epsilon(price(event, what.delta).epsilon, 2))
        rows.append((scaled.batch_size, scaled.epochs, *cells))
    return Table(
        "Epsilon when noise, batch and epochs grow together (same steps and noise; planned trees are planned anew)",
        ("batch", "epochs", *(who.label for who in contestants)),
        rows,
    )


def _report(run: Run, what: Experiment, notes: Sequence[str]) -> Report:
    table, found = _trained(run, what)
    seeds = {epsilon: len(seeds) for epsilon, seeds in what.seeds.items()}
    said = [
        f"n = {what.rows():,}, delta {what.delta:g}; seeds per epsilon: "
        + ", ".join(f"{count} at {epsilon:g}" for epsilon, count in seeds.items())
        + " (seeds void epsilon). Epsilons are true: exact participation, a restart every epoch unless planned",
        "rates were chosen on test rows and the tuning is not charged"
        + (
            f"; at epsilon {next(iter(what.seeds)):g} each was tried for {what.tuning} epochs with the noise of the "
            "whole plan, the lowest within a point of the best was taken, and at other epsilons it is halved"
            if what.tuning
            else ""
        ),
        *(note for note in notes if note),
    ]
    return Report(
        [table, _noise_table(what), _batch_table(what)], said, lambda figure: _draw(figure, what, found)
    )


def _draw(figure: Figure, what: Experiment, found: dict[tuple[str, float], list[Result]]) -> None:
    panels = figure.subplots(1, len(what.seeds), squeeze=False)[0]
    for panel, epsilon in zip(panels, what.seeds, strict=True):
        for who in what.contestants:
            lines = [line for line in found[who.label, epsilon][0]["history"] if "test_accuracy" in line]
            style = "--" if who.method == "dp-sgd" else "-"
            panel.plot(
                [line["epoch"] for line in lines],
                [100 * line["test_accuracy"] for line in lines],
                style,
                label=who.label,
            )
        panel.set_title(f"epsilon {epsilon:g}")
        panel.set_xlabel("epoch")
        panel.set_ylabel("test accuracy, %")
        best = max(100 * r["best_accuracy"] for (_, e), rs in found.items() if e == epsilon for r in rs)
        panel.set_ylim(max(0.0, best - 15), best + 1)
    panels[-1].legend(fontsize=7)


MNIST = Experiment("mnist", "dp_ftrl_cnn", 250, 20, 1e-5, {8.0: (1, 2, 3), 3.0: (1,)}, tuning=4)
CIFAR = Experiment("cifar10", "dp_ftrl_cifar_cnn", 500, 100, 1e-5, {16.0: (1,), 8.0: (1,)}, tuning=10)
EMNIST = Experiment("emnist-bymerge", "cnn", 500, 50, 1e-6, {8.0: (1,), 3.0: (1,)}, tuning=5)
_ONE_OF_EACH = (
    "FTRLM, efficient tree",
    "FTRLM, our planned trees",
    "DP-SGD, amplified",
    "DP-SGD, unamplified",
)
_FEW = tuple(who for who in CONTESTANTS if who.label in _ONE_OF_EACH[:3])


def _mnist(run: Run, quick: bool) -> Report:
    what = replace(MNIST, epochs=2, seeds={8.0: (1,)}, tuning=None) if quick else MNIST
    return _report(
        run,
        what,
        [
            "the paper (table 6) has no accuracies in print; its figures claim: momentum beats none, efficient beats "
            "vanilla, amplified DP-SGD wins at small and FTRLM at large epsilon. Its epsilons are too small (see "
            "dp-ftrl-epsilons)"
        ],
    )


def _cifar(run: Run, quick: bool) -> Report:
    what = replace(CIFAR, epochs=0.2, seeds={16.0: (1,)}, tuning=None, contestants=_FEW) if quick else CIFAR
    return _report(run, what, ["quick is a check that it runs: a fifth of an epoch says nothing" * quick])


def _emnist(run: Run, quick: bool) -> Report:
    from sordino.data import load

    what, notes = EMNIST, []
    try:
        load(what.data)
    except ValueError as missing:
        what = replace(what, data="fashion-mnist", delta=1e-5)
        notes = [
            f"EMNIST is not here ({missing}); ran on Fashion-MNIST instead: the same shapes, 10 classes for 47"
        ]
    if quick:
        what = replace(what, epochs=2, seeds={8.0: (1,)}, tuning=None, contestants=_FEW)
    return _report(run, what, notes)


RECIPES = {
    "dp-ftrl-mnist": Recipe(
        "dp-ftrl-mnist",
        "DP-FTRL: trees against DP-SGD on MNIST at true epsilons (table 6, figures 1 and 10)",
        _mnist,
        "two epochs at epsilon 8, one seed, rates not tuned",
    ),
    "dp-ftrl-cifar10": Recipe(
        "dp-ftrl-cifar10",
        "DP-FTRL: trees against DP-SGD on CIFAR-10 at true epsilons (table 6, figures 1 and 10)",
        _cifar,
        "a fifth of an epoch of three methods at epsilon 16, rates not tuned",
    ),
    "dp-ftrl-emnist": Recipe(
        "dp-ftrl-emnist",
        "DP-FTRL: trees against DP-SGD on EMNIST at true epsilons (table 6, figures 1 and 10)",
        _emnist,
        "two epochs of three methods at epsilon 8, rates not tuned",
    ),
}
