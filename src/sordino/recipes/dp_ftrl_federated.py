"""User-level DP-FTRL (Kairouz et al., 2021, tables 3 to 5): its epsilons, and a next-word model on a real federation.

StackOverflow is not to be had everywhere, so the trainings are on Shakespeare's roles: 1,120 clients for 342,477. The
epsilons of the published runs need no data and are recomputed as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import sordino.privacy
from sordino.clipping import Fixed
from sordino.data import Loaded, Poisson, Sampling, Shuffled, load
from sordino.data.partitions import Natural
from sordino.data.shakespeare import with_vocabulary
from sordino.federated.algorithms import FedAvg
from sordino.models import next_word_accuracy, next_word_loss, next_word_lstm
from sordino.noise import Gaussian, Mechanism, Tree
from sordino.noise.tree import noise_of_sums
from sordino.privacy import Budget, gaussian, poisson_gaussian, price, repeat, tree_plan
from sordino.privacy.trees import fixed_order_sensitivity, trees_plan, worst_case_sensitivity
from sordino.recipes import show
from sordino.recipes.dp_ftrl_epsilons import CLIENTS, POISSON, ROUNDS, TABLES, TREE, Printed, as_shown, priced
from sordino.recipes.frame import Job, Report, Result, Run, Table, check_spent, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import federated
from sordino.steps import Ftrl, Sgd
from sordino.vector import ParameterVector

# The published runs ---------------------------------------------------------------------------------------------

SAID = Published(__name__)
TRAINED = {
    number: [
        dict(zip(SAID["trained.columns"], line.split(), strict=True)) for line in SAID[f"trained.{number}"]
    ]
    for number in (3, 4)
}
POPULATIONS = (CLIENTS, 1_000_000)
# The noise multiplier for each 100 clients of a round with which a run of 100 clients reaches 24.5 %.
NOISE = {"SGDM": 0.007, "FTRLM": 0.149, "FTRLM, vanilla tree": 0.067}
GOALS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
SO_DELTA = 1e-6


def worst_order(*, table: int, line: int) -> Result:
    """Epsilons of one printed line, and what its tree costs if all that is known of the order is the separation."""
    found = priced(table=table, line=line)
    printed = TABLES[table][line]
    if printed.batches == TREE:
        at = printed.setting
        found["unknown order, auto"] = _unknown_order(float(printed.noise), at.steps, at.per_epoch, at.delta)
    return found


def _unknown_order(noise: float, rounds: int, per_epoch: int, delta: float) -> float:
    """One tree; between two participations of a client are all other rounds of an epoch, in an order nobody knows."""
    square = worst_case_sensitivity(rounds, min_separation=per_epoch - 1)
    return price(trees_plan(noise, [(square, 1)]), delta).epsilon


CURVES: dict[str, str] = SAID["curves"]  # and how they are drawn


def at_goals(*, population: int, goals: Sequence[int]) -> Result:
    """Epsilons of 1600 rounds with so many clients each, whose noise grows with them: the mean keeps its noise."""
    lines = []
    for goal in goals:
        per_epoch = population // goal
        sgd, noise, vanilla = (z * (goal / 100) for z in NOISE.values())
        sampled = repeat(poisson_gaussian(sgd, goal / population), ROUNDS)
        plans = (
            tree_plan(noise, ROUNDS, per_epoch),
            tree_plan(vanilla, ROUNDS, per_epoch),
            tree_plan(noise, ROUNDS, per_epoch, restart_every=1),
        )
        one, one_vanilla, restarted = (price(plan, SO_DELTA).epsilon for plan in plans)
        unknown = _unknown_order(noise, ROUNDS, per_epoch, SO_DELTA)
        planned = _same_noise_in_sums(noise, per_epoch)
        amplified = price(sampled, SO_DELTA, "rdp").epsilon
        lines.append((amplified, one, unknown, one_vanilla, restarted, planned))
    return {name: list(values) for name, values in zip(CURVES, zip(*lines, strict=True), strict=True)}


def _same_noise_in_sums(noise: float, per_epoch: int) -> float:
    """Epsilon of trees that are restarted as often as suits best, and whose running sums have on average the noise that
    those of one tree have: what a tree leaves in the sum when the next one begins is made up for by a larger z."""
    one = Tree(restart_every=None)
    # noise_of_sums is at a price of mu = 1; one tree of node noise z has mu^2 = sensitivity / z^2.
    wanted = noise_of_sums(one, ROUNDS, per_epoch) * noise**2 / fixed_order_sensitivity(ROUNDS, per_epoch)
    planned = Tree().planned(ROUNDS, per_epoch)
    mu = math.sqrt(noise_of_sums(planned, ROUNDS, per_epoch) / wanted)
    return price(gaussian(1 / mu), SO_DELTA).epsilon


def _printed_tables(run: Run) -> list[Table]:
    places = [(number, i) for number in (3, 4, 5) for i in range(len(TABLES[number]))]
    jobs = [Job(TABLES[n][i].name, worst_order, {"table": n, "line": i}) for n, i in places]
    rows: dict[int, list[dict[str, str]]] = {3: [], 4: [], 5: []}
    for (number, i), result in zip(places, run(jobs), strict=True):
        trained = TRAINED[number][i] if number in TRAINED else {}
        rows[number].append(_printed_row(TABLES[number][i], result) | trained)
    also = dict.fromkeys(TRAINED, SAID["trained.also"])
    return [SAID.table("printed", of, number=n, also=also.get(n, "")) for n, of in rows.items()]


def _printed_row(line: Printed, result: Result) -> dict[str, str]:
    costs: dict[str, str] = SAID["costs"]  # the columns, and what they are of the result
    sampled = {"one tree, auto": "Poisson, rdp"} if line.batches == POISSON else {}
    cells = {name: result.get(sampled.get(cost, cost)) for name, cost in costs.items()}
    return {
        "method": line.method,
        "z": line.noise,
        "clients a round": f"{line.setting.batch:,}",
        "population": f"{line.setting.rows:,}",
        "printed": line.epsilon,
        "ours, as printed": as_shown(line, float(result["as printed"])),
        "same digits": str(result["verdict"]),
        **{name: "-" if cell is None else show.upwards(float(cell)) for name, cell in cells.items()},
    }


def _goal_table(population: int, found: Result) -> Table:
    rows = [(f"{goal:,}", *(show.upwards(found[name][i]) for name in CURVES)) for i, goal in enumerate(GOALS)]
    return SAID.table("goals", rows, ("clients a round", *CURVES), population=population)


# Shakespeare's roles --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A rule and its noise."""

    label: str
    rule: str  # sgd or ftrl
    momentum: float
    noise: str  # independent, vanilla or efficient

    def participation(self, clients: int, per_round: int) -> Sampling:
        independent = self.noise == "independent"
        return Poisson(per_round / clients) if independent else Shuffled(per_round, every=None)

    def mechanism(self) -> Mechanism:
        if self.noise == "independent":
            return Gaussian()
        return Tree(efficient=self.noise == "efficient", restart_every=None)


SERVERS = tuple(Server(**who) for who in SAID["servers"])
OURS = SERVERS[-1]  # whose threshold is studied


@dataclass(frozen=True)
class Protocol:
    """A plan on the roles. ``rates`` are server rates without momentum; with it they are a tenth, as 1 / (1 - 0.9)."""

    words: int
    dim: int
    hidden: int
    rounds: int
    per_round: int
    max_examples: int
    epsilons: tuple[float, ...]  # infinity is no noise
    clip: float
    rates: dict[float, tuple[float, ...]]  # by epsilon; the best on test rows is shown
    clips: tuple[float, ...]
    clip_epsilons: tuple[float, ...]
    seeds: tuple[int, ...]
    test_rows: int
    clients: int = 1120
    batch_size: int = 16
    client_rate: float = 1.0
    delta: float = 1e-4  # below 1 / 1120
    evaluations: int = 8

    @property
    def epochs(self) -> float:
        return self.rounds * self.per_round / self.clients

    def noise(self, who: Server, epsilon: float) -> float:
        """The noise multiplier that costs epsilon in all. Momentum has no part in it."""
        if math.isinf(epsilon):
            return 0.0
        return _noise(who.noise, self.clients, self.per_round, self.rounds, epsilon, self.delta)

    def rate(self, who: Server, rate: float) -> float:
        return round(rate * (1 - who.momentum), 10)

    def job(self, who: Server, epsilon: float, rate: float, clip: float, seed: int) -> Job:
        compared = ("epsilons", "rates", "clips", "clip_epsilons", "seeds")
        settings = {name: value for name, value in vars(self).items() if name not in compared}
        settings |= {
            "rule": who.rule,
            "momentum": who.momentum,
            # Without noise there is no tree, so its kind makes no difference and no second job.
            "noise": who.noise if who.noise == "independent" or math.isfinite(epsilon) else "efficient",
            "noise_multiplier": self.noise(who, epsilon),
            "server_rate": self.rate(who, rate),
            "clip": clip,
            "seed": seed,
        }
        return Job(
            f"{who.label} eps={epsilon:g} rate={rate:g} clip={clip:g} seed={seed}", train_roles, settings
        )


@lru_cache(maxsize=64)
def _noise(kind: str, clients: int, per_round: int, rounds: int, epsilon: float, delta: float) -> float:
    who = Server("", "", 0.0, kind)
    releases = who.mechanism().over(who.participation(clients, per_round), clients, rounds)
    return sordino.privacy.noise_for(Budget(epsilon, delta), lambda z: releases.cost(rounds, z, ()))


@lru_cache(maxsize=2)
def roles(words: int) -> Loaded:
    return with_vocabulary(load("shakespeare"), words)


def train_roles(
    *,
    words: int,
    dim: int,
    hidden: int,
    rule: str,
    momentum: float,
    noise: str,
    rounds: int,
    per_round: int,
    clients: int,
    client_rate: float,
    server_rate: float,
    clip: float,
    seed: int,
    evaluations: int,
    test_rows: int,
    **how: Any,
) -> Result:
    """One federated run on Shakespeare's roles: one local epoch, uniform weights, clipped and noised updates."""
    loaded = roles(words)
    assert loaded.users is not None
    assert loaded.test is not None
    found = int(loaded.users.max()) + 1
    if found != clients:
        raise ValueError(
            f"shakespeare has {found:,} roles and not {clients:,}: get the file again, or give --out"
        )
    # Test rows go by roles: take some of all of them.
    some = torch.linspace(0, len(loaded.test[0]) - 1, min(test_rows, len(loaded.test[0]))).long()
    test = loaded.test[0][some], loaded.test[1][some]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = next_word_lstm(loaded.classes, dim, hidden)
        probe = next_word_lstm(loaded.classes, dim, hidden)  # where models of single rounds are measured
    vector = ParameterVector(probe)
    every = max(1, rounds // evaluations)

    def observe(seen: Any) -> dict[str, float]:
        if seen.now.number % every and seen.now.number != rounds:
            return {}
        vector.theta.copy_(seen.theta)
        return {"word_accuracy": next_word_accuracy(probe, test)}

    who = Server("", rule, momentum, noise)
    server = Sgd(momentum=momentum) if rule == "sgd" else Ftrl(momentum=momentum)
    result = federated(
        network,
        next_word_loss,
        loaded.train,
        clients=clients,
        partition=Natural(loaded.users.numpy()),
        algorithm=FedAvg(server=server, server_rate=server_rate, weighted=False),
        rounds=rounds,
        participation=who.participation(clients, per_round),
        local_epochs=1,
        top_up=False,
        rate=client_rate,
        decay=1.0,
        clip=Fixed(clip),
        noise=who.mechanism(),
        seed=seed,
        data=loaded.name,
        observe=observe,
        measure="word_accuracy",
        engine="looped",  # nothing is faster for an LSTM, and nobody waits for clients with more rows
        chunk=1,
        **how,
    )
    kept = {name: result[name] for name in ("scores", "epsilon", "parameters", "seconds")}
    return {**kept, "accuracy": result["scores"][-1][1], "noise_multiplier": how["noise_multiplier"]}


# The report -----------------------------------------------------------------------------------------------------

Key = tuple[Server, float, float]  # who, epsilon, clip


@dataclass(frozen=True)
class Found:
    what: Protocol
    results: dict[
        Key, dict[float, list[Result]]
    ]  # by server, epsilon and threshold, then by rate: one for each seed

    def best(self, who: Server, epsilon: float, clip: float | None = None) -> tuple[float, list[Result]]:
        """The best rate, and its results."""
        by_rate = self.results[who, epsilon, self.what.clip if clip is None else clip]
        rate = show.best({rate: show.mean_accuracy(results) for rate, results in by_rate.items()})
        return rate, by_rate[rate]

    def score(self, who: Server, epsilon: float) -> float:
        return 100 * show.mean_accuracy(self.best(who, epsilon)[1])


def _trained(run: Run, what: Protocol) -> Found:
    wanted = [
        (who, epsilon, what.clip, rate, seed)
        for epsilon in what.epsilons
        for who in SERVERS
        for rate in what.rates[epsilon]
        for seed in what.seeds
    ]
    # The same path length whatever the threshold, where updates are longer than it.
    wanted += [
        (OURS, epsilon, clip, rate, what.seeds[0])
        for epsilon in what.clip_epsilons
        for clip in what.clips
        for rate in what.rates[epsilon]
    ]
    jobs = {key: what.job(key[0], key[1], key[3], key[2], key[4]) for key in wanted}
    unique = {job.key: job for job in jobs.values()}
    results = dict(zip(unique, run(list(unique.values())), strict=True))
    found: dict[Key, dict[float, list[Result]]] = {}
    for (who, epsilon, clip, rate, _), job in jobs.items():
        check_spent(who.label, results[job.key], epsilon)
        found.setdefault((who, epsilon, clip), {}).setdefault(rate, []).append(results[job.key])
    return Found(what, found)


def _servers_table(found: Found) -> Table:
    what, rows = found.what, []
    for epsilon in what.epsilons:
        for who in SERVERS:
            rate, results = found.best(who, epsilon)
            tried = found.results[who, epsilon, what.clip]
            scores = ", ".join(f"{what.rate(who, r):g}: {show.accuracy(rs)}" for r, rs in tried.items())
            plan = f"{what.noise(who, epsilon):.3f} | {what.rate(who, rate):g}"
            rows.append(f"{epsilon:g} | {who.label} | {plan} | {show.accuracy(results)} | {scores}")
    return SAID.table("servers", rows, what=what)


def _clips_table(found: Found) -> Table:
    clips = found.what.clips
    rows = [
        (f"{epsilon:g}", *(show.accuracy(found.best(OURS, epsilon, clip)[1][:1]) for clip in clips))
        for epsilon in found.what.clip_epsilons
    ]
    return SAID.table("clips", rows, ("epsilon", *(f"clip {clip:g}" for clip in clips)))


def _claims(found: Found) -> Table:
    """The paper's statements about StackOverflow, and whether they hold here."""
    _, sgd_m, vanilla, vanilla_m, efficient, efficient_m = SERVERS
    pairs = ((efficient_m, efficient), (vanilla_m, vanilla), (efficient_m, vanilla_m), (efficient_m, sgd_m))
    rows = []
    for claim, (one, other) in zip(SAID["claims"], pairs, strict=True):
        gaps = {e: found.score(one, e) - found.score(other, e) for e in found.what.epsilons}
        rows.append({"claim": claim, **{f"epsilon {e:g}": f"{gap:+.2f}" for e, gap in gaps.items()}})
    return SAID.table("claims", rows)


def _report(run: Run, what: Protocol) -> Report:
    tables = _printed_tables(run)
    jobs = {
        p: [Job(f"report goals of {p}", at_goals, {"population": p, "goals": list(GOALS)})]
        for p in POPULATIONS
    }
    curves = [show.numbers(result) for (result,) in results_of(run, jobs).values()]
    tables += [_goal_table(*pair) for pair in zip(POPULATIONS, curves, strict=True)]
    found = _trained(run, what)
    tables += [_servers_table(found), _claims(found), _clips_table(found)]
    first = found.best(SERVERS[0], what.epsilons[0])[1][0]
    notes = SAID.notes(
        what=what, first=first, number=show.several(len(what.seeds), "seed"), **_of_goals(curves)
    )
    plain = {**vars(what), "rates": {f"{epsilon:g}": rates for epsilon, rates in what.rates.items()}}
    return Report(tables, notes, partial(_draw, curves=curves, found=found), (13.0, 4.2), {"protocol": plain})


def crossing(tree: Sequence[float], sgd: Sequence[float]) -> str:
    """The epsilon above which the tree takes fewer clients a round than SGD.

    >>> crossing((400.0, 40.0, 4.0), (4000.0, 400.0, 0.4)), crossing((4.0, 1.0), (5.0, 2.0))
    ('12.6', 'all shown')
    """
    leads = show.log_ratios(sgd, tree)
    found = show.crossing(tree, leads, rising=False)
    if found is None:
        return "all shown" if min(leads) >= 0 else "none shown"
    return f"{found:.1f}"


def _of_goals(curves: Sequence[dict[str, list[float]]]) -> dict[str, Any]:
    crossings = "; ".join(
        f"{name}: " + ", ".join(crossing(curve[name], curve["SGDM, Poisson"]) for curve in curves)
        for name in CURVES
        if name.startswith("FTRLM")
    )
    return {
        "most": GOALS[-1],
        "least": [math.floor(10 * min(curve["FTRLM, one tree"])) / 10 for curve in curves],
        "planned": [show.upwards(curve["FTRLM, planned trees, same noise in sums"][-1]) for curve in curves],
        "crossings": crossings,
    }


def _draw(figure: Figure, curves: Sequence[Result], found: Found) -> None:
    *goals, last = figure.subplots(1, 3)
    for panel, population, curve in zip(goals, POPULATIONS, curves, strict=True):
        for name, style in CURVES.items():
            panel.plot(GOALS, curve[name], style, label=name)
        trees = [line for line in TABLES[5] if line.setting.rows == population and line.batches == TREE]
        printed = {
            line.setting.batch: float(line.epsilon) for line in trees if line.setting.batch >= GOALS[0]
        }
        panel.plot(list(printed), list(printed.values()), "kx", label="printed, FTRLM (table 5)")
        show.dressed(
            panel, f"population {population:,}", grid=True, xscale="log", yscale="log", ylim=(1, 1000)
        )
        show.dressed(panel, xlabel="clients a round", ylabel="epsilon")
    goals[0].legend(fontsize=6)
    _draw_servers(last, found)


def _draw_servers(axes: Axes, found: Found) -> None:
    finite = [epsilon for epsilon in found.what.epsilons if math.isfinite(epsilon)]
    edge = 4 * max(finite, default=1.0)  # where "no noise" stands on the axis
    places = {min(epsilon, edge): epsilon for epsilon in sorted(found.what.epsilons)}
    for who in SERVERS:
        scores = [found.score(who, epsilon) for epsilon in places.values()]
        axes.plot(list(places), scores, "o--" if who.rule == "sgd" else "o-", label=who.label)
    axes.set_xscale("log")
    axes.set_xticks(list(places))
    axes.set_xticklabels(["no noise" if place == edge else f"{place:g}" for place in places])
    axes.minorticks_off()
    show.dressed(axes, "Shakespeare's roles", xlabel="epsilon", ylabel="accuracy on words, %", legend=6)


FULL, QUICK = (
    Protocol(**of, rates={float(epsilon): rates for epsilon, rates in SAID["rates"][name].items()})
    for name, of in (("full", SAID["full"]), ("quick", SAID["full"] | SAID["quick"]))
)


@recipe("dp-ftrl-federated", SAID["cut"])
def roles_and_epsilons(run: Run, quick: bool) -> Report:
    return _report(run, QUICK if quick else FULL)
