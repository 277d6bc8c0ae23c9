"""DP-FTRL (Kairouz et al., 2021) on images: trees against DP-SGD, at epsilons that are true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

import sordino.privacy
from sordino.data import Poisson, Shuffled
from sordino.methods import Method, method_named
from sordino.noise import Releases, Tree
from sordino.noise.tree import noise_of_sums
from sordino.privacy import Budget, price, show_epsilon
from sordino.privacy.loss_distribution import squared_mu
from sordino.recipes import frame, show
from sordino.recipes.frame import Contestant, Job, Report, Result, Run, Study, Table, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import count_rows, missing, train_named

SAID = Published(__name__)
CONTESTANTS = SAID.contestants("contestants")
_ONE_OF_EACH = [CONTESTANTS[i] for i in (3, 4, 5, 7)]
_FEW = tuple(_ONE_OF_EACH[:3])


@dataclass(frozen=True)
class Protocol:
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
        rows = self.rows()
        method = method_named(who.method, who.settings)
        poisson = method.noise.independent and who.sampling is None
        how = Poisson(self.batch_size / rows) if poisson else Shuffled(self.batch_size)
        per_epoch = how.steps_per_epoch(rows)
        steps = max(1, round(self.epochs * per_epoch))
        noise = method.noise.planned(steps, per_epoch)
        return replace(method, noise=noise), noise.over(noise.dealt(how, rows), rows, steps), steps

    def noise(self, who: Contestant, epsilon: float) -> float:
        _, releases, steps = self.plan(who)
        return sordino.privacy.noise_for(Budget(epsilon, self.delta), lambda z: releases.cost(steps, z, ()))

    def job(self, who: Contestant, epsilon: float, rate: float, seed: int, epochs: float) -> Job:
        noise = self.plan(who)[0].noise
        planned = {"restart_every": noise.restart_every} if isinstance(noise, Tree) else {}
        chosen = replace(who, settings={**who.settings, "learning_rate": rate, **planned})
        data = {"data": self.data, "model": self.model, "rows": self.rows()}
        plan = {"epochs": epochs, "batch_size": self.batch_size, "evaluations": max(1, round(epochs))}
        spent = {"noise_multiplier": self.noise(who, epsilon), "delta": self.delta, "sampling": who.sampling}
        name = f"{who.label} eps={epsilon:g} rate={rate:g} seed={seed} epochs={epochs:g}"
        return Study(train_named, {**data, **plan, **spent}).job(name, chosen, seed=seed)


def last_five(result: Result) -> float:
    """The paper's measure: test accuracy, averaged over the last five epochs, in percent."""
    return fmean(show.curve(result["history"])[1][-5:])


def chosen_rates(run: Run, what: Protocol, epsilon: float) -> dict[str, tuple[float, str]]:
    """The best rate of each contestant on test rows, and how the rates did."""
    first = next(iter(what.seeds))
    if epsilon != first:
        before = chosen_rates(run, what, first)
        return {label: (rate / 2, "half of the above") for label, (rate, _) in before.items()}
    if what.tuning is None:
        return {who.label: (who.rates[0], "not tuned") for who in what.contestants}
    jobs = {w.label: [what.job(w, epsilon, r, 1, what.tuning) for r in w.rates] for w in what.contestants}
    chosen = {}
    for who, results in zip(what.contestants, results_of(run, jobs).values(), strict=True):
        scores = {rate: 100 * float(r["accuracy"]) for rate, r in zip(who.rates, results, strict=True)}
        best = min(rate for rate in scores if scores[rate] >= max(scores.values()) - 1)
        chosen[who.label] = best, show.tried(scores)
    return chosen


Found = dict[tuple[str, float], list[Result]]  # by contestant and epsilon, one for each seed


def _trained(run: Run, what: Protocol) -> tuple[Table, Found]:
    rates = {epsilon: chosen_rates(run, what, epsilon) for epsilon in what.seeds}
    jobs = {
        (who.label, epsilon): [
            what.job(who, epsilon, rates[epsilon][who.label][0], seed, what.epochs) for seed in seeds
        ]
        for epsilon, seeds in what.seeds.items()
        for who in what.contestants
    }
    found = results_of(run, jobs)
    rows = []
    for (label, epsilon), results in found.items():
        for result in results:
            frame.check_spent(label, result, epsilon)
        rate, tried = rates[epsilon][label]
        scores = f"{show.spread([last_five(result) for result in results])} | {show.accuracy(results)}"
        noise = results[0]["noise_multiplier"]
        rows.append(f"{epsilon:g} | {label} | {noise:.3f} | {rate:g} | {scores} | {tried}")
    return SAID.table("accuracy", rows, what=what), found


# What noise the same epsilon buys ---------------------------------------------------------------------------------


def noise_in_sums(what: Protocol, who: Contestant, epsilon: float) -> float:
    """The standard deviation of the noise in the running sum of mean gradients, root mean square over the steps, in
    units of the threshold: what FTRL's and SGD's iterates hold of it, times the rate."""
    method, releases, steps = what.plan(who)
    z = what.noise(who, epsilon)
    if isinstance(method.noise, Tree):
        per_epoch = what.rows() // what.batch_size
        squares = squared_mu(releases.cost(steps, 1.0, ()))
        assert squares is not None
        variance = noise_of_sums(method.noise, steps, per_epoch) / squares * z**2
    else:
        variance = z**2 * (steps + 1) / 2  # a random walk
    return float(variance**0.5) / what.batch_size


def crossing(epsilons: Sequence[float], tree: Sequence[float], sgd: Sequence[float]) -> str:
    """The epsilon from which on the tree has less noise."""
    leads = show.log_ratios(sgd, tree)
    found = show.crossing(epsilons, leads, rising=True)
    if found is None:
        return f"below {epsilons[0]:g}" if leads[0] >= 0 else f"not up to {epsilons[-1]:g}"
    return f"{found:.2g}"


def _noise_table(what: Protocol) -> Table:
    epsilons = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    kinds = SAID.contestants("kinds")
    noise = {who.label: [noise_in_sums(what, who, e) for e in epsilons] for who in kinds}
    amplified = noise[kinds[0].label]
    less = {name: "" if of is amplified else crossing(epsilons, of, amplified) for name, of in noise.items()}
    rows = [(name, *(f"{value:.4f}" for value in of), less[name]) for name, of in noise.items()]
    columns = ("noise", *(f"eps {e:g}" for e in epsilons), "less than amplified from epsilon")
    return SAID.table("noise", rows, columns)


def _batch_table(what: Protocol) -> Table:
    """Noise, batch and epochs scaled together: the same trajectory in expectation, at another epsilon."""
    rows = []
    for factor in (0.5, 1, 2, 4, 8):
        batch, epochs = round(what.batch_size * factor), max(1, round(what.epochs * factor))
        cells = {}
        for who in _ONE_OF_EACH:
            _, releases, steps = replace(what, batch_size=batch, epochs=epochs).plan(who)
            event = releases.cost(steps, what.noise(who, 8.0) * factor, ())
            cells[who.label] = show_epsilon(price(event, what.delta).epsilon, 2)
        rows.append({"batch": batch, "epochs": epochs, **cells})
    return SAID.table("batches", rows)


def _report(run: Run, what: Protocol, **also: Any) -> Report:
    table, found = _trained(run, what)
    notes = SAID.notes(
        what=what,
        rows=what.rows(),
        seeds=", ".join(f"{len(seeds)} at {epsilon:g}" for epsilon, seeds in what.seeds.items()),
        first=next(iter(what.seeds)),
        tuned=bool(what.tuning),
        untuned=not what.tuning,
        **{"published": False, "short": False, "why": "", **also},
    )
    tables = [table, _noise_table(what), _batch_table(what)]
    return Report(tables, notes, partial(_draw, what=what, found=found))


def _draw(figure: Figure, what: Protocol, found: Found) -> None:
    panels = figure.subplots(1, len(what.seeds), squeeze=False)[0]
    for panel, epsilon in zip(panels, what.seeds, strict=True):
        for who in what.contestants:
            style = "--" if who.method == "dp-sgd" else "-"
            panel.plot(*show.curve(found[who.label, epsilon][0]["history"]), style, label=who.label)
        best = max(100 * r["best_accuracy"] for (_, e), rs in found.items() if e == epsilon for r in rs)
        show.dressed(panel, f"epsilon {epsilon:g}", xlabel="epoch", ylabel="test accuracy, %")
        panel.set_ylim(max(0.0, best - 15), best + 1)
    panels[-1].legend(fontsize=7)


MNIST = Protocol("mnist", "dp_ftrl_cnn", 250, 20, 1e-5, {8.0: (1, 2, 3), 3.0: (1,)}, tuning=4)
CIFAR = Protocol("cifar10", "dp_ftrl_cifar_cnn", 500, 100, 1e-5, {16.0: (1,), 8.0: (1,)}, tuning=10)
EMNIST = Protocol("emnist-bymerge", "cnn", 500, 50, 1e-6, {8.0: (1,), 3.0: (1,)}, tuning=5)


@recipe("dp-ftrl-mnist", "two epochs at epsilon 8, one seed, rates not tuned")
def mnist(run: Run, quick: bool) -> Report:
    what = replace(MNIST, epochs=2, seeds={8.0: (1,)}, tuning=None) if quick else MNIST
    return _report(run, what, published=True)


@recipe("dp-ftrl-cifar10", "a fifth of an epoch of three methods at epsilon 16, rates not tuned")
def cifar(run: Run, quick: bool) -> Report:
    less = replace(CIFAR, epochs=0.2, seeds={16.0: (1,)}, tuning=None, contestants=_FEW)
    return _report(run, less if quick else CIFAR, short=quick)


@recipe("dp-ftrl-emnist", "two epochs of three methods at epsilon 8, rates not tuned")
def emnist(run: Run, quick: bool) -> Report:
    why = missing(EMNIST.data)
    what = replace(EMNIST, data="fashion-mnist", delta=1e-5) if why else EMNIST
    less = replace(what, epochs=2, seeds={8.0: (1,)}, tuning=None, contestants=_FEW)
    return _report(run, less if quick else what, why=why)
