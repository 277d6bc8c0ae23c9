"""User-level DP-FTRL (Kairouz et al., 2021, tables 3 to 5): its epsilons, and a next-word model on a real federation.

StackOverflow is not to be had everywhere, so the trainings are on Shakespeare's roles: 1,120 clients for 342,477. The
epsilons of the published runs need no data and are recomputed as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from sordino.recipes.dp_ftrl_epsilons import CLIENTS, POISSON, ROUNDS, TABLES, TREE, Printed, priced
from sordino.recipes.frame import Job, Recipe, Report, Result, Run, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sordino.data import Loaded, Sampling
    from sordino.noise import Mechanism

# torch is imported inside functions, so that a list of the recipes is quick.

# The published runs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """What a line of tables 3 and 4 says besides its epsilon: accuracies in %, rates and threshold."""

    validation: str
    test: str
    server_rate: str
    clip: str


# Line by line as in TABLES; the client's rate is 0.5 in all of them.
TRAINED = {
    3: [
        Trained("19.62", "20.99", "3", "1"),
        Trained("23.87", "24.89", "3", "1"),
        Trained("19.95", "21.12", "3", "1"),
        Trained("23.89", "25.15", "3", "1"),
        Trained("16.83", "18.25", "3", "0.3"),
        Trained("16.92", "18.27", "0.1", "1"),
        Trained("15.04", "15.46", "3", "0.3"),
        Trained("17.78", "18.86", "1", "0.3"),
    ],
    4: [
        Trained("17.52", "18.89", "1", "0.3"),
        Trained("20.10", "21.33", "0.3", "1"),
        Trained("16.94", "18.30", "0.1", "1"),
        Trained("19.01", "20.22", "1", "0.3"),
        Trained("16.39", "17.94", "0.3", "0.3"),
        Trained("17.34", "18.49", "0.1", "1"),
        Trained("16.08", "17.48", "0.3", "0.3"),
        Trained("16.45", "17.60", "0.1", "1"),
        Trained("15.78", "17.13", "0.3", "0.3"),
        Trained("15.43", "16.52", "0.3", "0.3"),
    ],
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
    from sordino.privacy import price
    from sordino.privacy.trees import trees_plan, worst_case_sensitivity

    square = worst_case_sensitivity(rounds, min_separation=per_epoch - 1)
    return price(trees_plan(noise, [(square, 1)]), delta).epsilon


def at_goals(*, population: int, goals: Sequence[int]) -> Result:
    """Epsilons of 1600 rounds with so many clients each, whose noise grows with them: the mean keeps its noise."""
    from sordino.privacy import poisson_gaussian, price, repeat, tree_plan

    found: Result = {name: [] for name in CURVES}
    for goal in goals:
        per_epoch, times = population // goal, goal / 100
        sgd = repeat(poisson_gaussian(NOISE["SGDM"] * times, goal / population), ROUNDS)
        noise = NOISE["FTRLM"] * times
        vanilla = NOISE["FTRLM, vanilla tree"] * times
        one = tree_plan(noise, ROUNDS, per_epoch)
        found["SGDM, Poisson"].append(price(sgd, SO_DELTA, "rdp").epsilon)
        found["FTRLM, one tree"].append(price(one, SO_DELTA).epsilon)
        found["FTRLM, one tree, unknown order"].append(_unknown_order(noise, ROUNDS, per_epoch, SO_DELTA))
        found["FTRLM, vanilla, one tree"].append(
            price(tree_plan(vanilla, ROUNDS, per_epoch), SO_DELTA).epsilon
        )
        found["FTRLM, a tree an epoch, same z"].append(
            price(tree_plan(noise, ROUNDS, per_epoch, restart_every=1), SO_DELTA).epsilon
        )
        found["FTRLM, planned trees, same noise in sums"].append(_same_noise_in_sums(noise, per_epoch))
    return found


def _same_noise_in_sums(noise: float, per_epoch: int) -> float:
    """Epsilon of trees that are restarted as often as suits best, and whose running sums have on average the noise that
    those of one tree have: what a tree leaves in the sum when the next one begins is made up for by a larger z."""
    from sordino.noise import Tree
    from sordino.noise.tree import noise_of_sums
    from sordino.privacy import gaussian, price
    from sordino.privacy.trees import fixed_order_sensitivity

    one = Tree(restart_every=None)
    # noise_of_sums is at a price of mu = 1; one tree of node noise z has mu^2 = sensitivity / z^2.
    wanted = noise_of_sums(one, ROUNDS, per_epoch) * noise**2 / fixed_order_sensitivity(ROUNDS, per_epoch)
    planned = Tree().planned(ROUNDS, per_epoch)
    mu = math.sqrt(noise_of_sums(planned, ROUNDS, per_epoch) / wanted)
    return price(gaussian(1 / mu), SO_DELTA).epsilon


CURVES = {
    "SGDM, Poisson": "--",
    "FTRLM, one tree": "-",
    "FTRLM, one tree, unknown order": ":",
    "FTRLM, vanilla, one tree": "-",
    "FTRLM, a tree an epoch, same z": "-.",
    "FTRLM, planned trees, same noise in sums": "-",
}


def _printed_tables(run: Run) -> list[Table]:
    lines = [(number, i, line) for number in (3, 4, 5) for i, line in enumerate(TABLES[number])]
    results = run([Job(line.name, worst_order, {"table": n, "line": i}) for n, i, line in lines])
    tables = []
    for number in (3, 4, 5):
        rows = [
            _printed_row(line, result, TRAINED[n][i] if n in TRAINED else None)
            for (n, i, line), result in zip(lines, results, strict=True)
            if n == number
        ]
        trained = number in TRAINED
        columns: tuple[str, ...] = (
            "method",
            "z",
            "clients a round",
            "population",
            "printed",
            "ours, as printed",
            "same digits",
        )
        columns += (
            "one tree, exact / Poisson, rdp",
            "a tree an epoch, exact",
            "one tree, unknown order, exact",
        )
        columns += ("validation", "test", "server rate", "clip") if trained else ()
        tables.append(
            Table(
                f"Table {number}, StackOverflow, {ROUNDS} rounds, delta {SO_DELTA:g}: epsilon printed and true"
                + ("; accuracies (%), rates and thresholds as published" if trained else ""),
                columns,
                rows,
            )
        )
    return tables


def _printed_row(line: Printed, result: Result, trained: Trained | None) -> list[str]:
    at = line.setting
    ours = "Poisson, rdp" if line.batches == POISSON else "one tree, auto"
    others = ("a tree an epoch, auto", "unknown order, auto")
    return [
        line.method,
        line.noise,
        f"{at.batch:,}",
        f"{at.rows:,}",
        line.epsilon,
        _as_printed(line, float(result["as printed"])),
        str(result["verdict"]),
        show(result[ours]),
        *(show(result[other]) if other in result else "-" for other in others),
        *([trained.validation, trained.test, trained.server_rate, trained.clip] if trained else []),
    ]


def _as_printed(line: Printed, epsilon: float) -> str:
    """To the nearest, as the printed ones are."""
    return f"{epsilon:.2e}".replace("e+0", "e") if "e" in line.epsilon else f"{epsilon:.2f}"


def show(epsilon: float | str) -> str:
    """Two decimals, upwards, or a power of ten.

    >>> show(8.501), show(15413800.5), show("inf")
    ('8.51', '1.55e7', 'inf')
    """
    value = float(epsilon)
    if math.isinf(value):
        return "inf"
    if value >= 1e4:
        digits = math.floor(math.log10(value))
        return f"{math.ceil(value / 10 ** (digits - 2)) / 100:.2f}e{digits}"
    return f"{math.ceil(round(value * 100, 6)) / 100:.2f}"


def _goal_table(population: int, found: Result) -> Table:
    return Table(
        f"Epsilon against clients a round, population {population:,}: noise for 24.5 % with 100, grown with them",
        ("clients a round", *CURVES),
        [(f"{goal:,}", *(show(found[name][i]) for name in CURVES)) for i, goal in enumerate(GOALS)],
    )


# Shakespeare's roles --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """A server and its noise; ``rates`` are tried, without and with momentum 0.9."""

    label: str
    rule: str  # sgd or ftrl
    momentum: float
    noise: str  # independent, vanilla or efficient

    def participation(self, clients: int, per_round: int) -> Sampling:
        from sordino.data import Poisson, Shuffled

        return (
            Poisson(per_round / clients) if self.noise == "independent" else Shuffled(per_round, every=None)
        )

    def mechanism(self) -> Mechanism:
        from sordino.noise import Gaussian, Tree

        if self.noise == "independent":
            return Gaussian()
        return Tree(efficient=self.noise == "efficient", restart_every=None)


CONTESTANTS = (
    Contestant("DP-SGD", "sgd", 0.0, "independent"),
    Contestant("DP-SGDM", "sgd", 0.9, "independent"),
    Contestant("DP-FTRL, vanilla tree", "ftrl", 0.0, "vanilla"),
    Contestant("DP-FTRLM, vanilla tree", "ftrl", 0.9, "vanilla"),
    Contestant("DP-FTRL, efficient tree", "ftrl", 0.0, "efficient"),
    Contestant("DP-FTRLM, efficient tree", "ftrl", 0.9, "efficient"),
)
_SAME_FOR_ALL = (
    *("words", "dim", "hidden", "rounds", "per_round", "max_examples", "test_rows"),
    *("clients", "batch_size", "client_rate", "delta", "evaluations"),
)
OURS = CONTESTANTS[-1]  # whose threshold is studied


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

    def noise(self, who: Contestant, epsilon: float) -> float:
        """The noise multiplier that costs epsilon in all. Momentum has no part in it."""
        if math.isinf(epsilon):
            return 0.0
        return _noise(who.noise, self.clients, self.per_round, self.rounds, epsilon, self.delta)

    def rate(self, who: Contestant, rate: float) -> float:
        return round(rate * (1 - who.momentum), 10)

    def job(self, who: Contestant, epsilon: float, rate: float, clip: float, seed: int) -> Job:
        return Job(
            f"{who.label} eps={epsilon:g} rate={rate:g} clip={clip:g} seed={seed}",
            train_roles,
            {
                **{name: getattr(self, name) for name in _SAME_FOR_ALL},
                "rule": who.rule,
                "momentum": who.momentum,
                # Without noise there is no tree, so its kind makes no difference and no second job.
                "noise": who.noise if who.noise == "independent" or math.isfinite(epsilon) else "efficient",
                "noise_multiplier": self.noise(who, epsilon),
                "server_rate": self.rate(who, rate),
                "clip": clip,
                "seed": seed,
            },
        )


@lru_cache(maxsize=64)
def _noise(kind: str, clients: int, per_round: int, rounds: int, epsilon: float, delta: float) -> float:
    from sordino.privacy import Budget, noise_for

    who = Contestant("", "", 0.0, kind)
    releases = who.mechanism().over(who.participation(clients, per_round), clients, rounds)
    return noise_for(Budget(epsilon, delta), lambda z: releases.cost(rounds, z, ()))


@lru_cache(maxsize=2)
def roles(words: int) -> Loaded:
    from sordino.data import load
    from sordino.data.shakespeare import with_vocabulary

    return with_vocabulary(load("shakespeare"), words)


def train_roles(
    *,
    words: int,
    dim: int,
    hidden: int,
    rule: str,
    momentum: float,
    noise: str,
    noise_multiplier: float,
    rounds: int,
    per_round: int,
    clients: int,
    max_examples: int,
    batch_size: int,
    client_rate: float,
    server_rate: float,
    clip: float,
    delta: float,
    seed: int,
    evaluations: int,
    test_rows: int,
) -> Result:
    """One federated run on Shakespeare's roles: one local epoch, uniform weights, clipped and noised updates."""
    import torch

    from sordino.clipping import Fixed
    from sordino.data.partitions import Natural
    from sordino.federated import federate
    from sordino.federated.algorithms import FedAvg
    from sordino.models import next_word_accuracy, next_word_loss, next_word_lstm
    from sordino.steps import Ftrl, Sgd
    from sordino.vector import ParameterVector

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

    who = Contestant("", rule, momentum, noise)
    server = Sgd(momentum=momentum) if rule == "sgd" else Ftrl(momentum=momentum)
    run = federate(
        network,
        next_word_loss,
        loaded.train,
        clients=clients,
        partition=Natural(loaded.users.numpy()),
        algorithm=FedAvg(server=server, server_rate=server_rate, weighted=False),
        rounds=rounds,
        participation=who.participation(clients, per_round),
        local_epochs=1,
        batch_size=batch_size,
        top_up=False,
        max_examples=max_examples,
        rate=client_rate,
        decay=1.0,
        clip=Fixed(clip),
        noise=who.mechanism(),
        noise_multiplier=noise_multiplier,
        delta=delta,
        seed=seed,
        progress=False,
        data_name=loaded.name,
        observe=observe,
        engine="looped",  # nothing is faster for an LSTM, and nobody waits for clients with more rows
        chunk=1,
    )
    scores = [(line["round"], line["word_accuracy"]) for line in run.history if "word_accuracy" in line]
    return {
        "accuracy": scores[-1][1],
        "scores": scores,
        "epsilon": run.epsilon,
        "noise_multiplier": noise_multiplier,
        "parameters": sum(p.numel() for p in network.parameters()),
        "seconds": run.summary.get("seconds"),
    }


# The report -----------------------------------------------------------------------------------------------------

Key = tuple[Contestant, float, float]  # who, epsilon, clip


def _trained(run: Run, what: Protocol) -> dict[Key, dict[float, list[Result]]]:
    """All results: by contestant, epsilon and threshold, and then by rate, one for each seed."""
    jobs: dict[tuple[Key, float, int], Job] = {}
    for epsilon in what.epsilons:
        for who in CONTESTANTS:
            for rate in what.rates[epsilon]:
                for seed in what.seeds:
                    jobs[(who, epsilon, what.clip), rate, seed] = what.job(
                        who, epsilon, rate, what.clip, seed
                    )
    for epsilon in what.clip_epsilons:
        for clip in what.clips:
            for rate in what.rates[epsilon]:
                # The same path length whatever the threshold, where updates are longer than it.
                jobs[(OURS, epsilon, clip), rate, what.seeds[0]] = what.job(
                    OURS, epsilon, rate, clip, what.seeds[0]
                )
    unique = list({job.key: job for job in jobs.values()}.values())
    results = dict(zip((job.key for job in unique), run(unique), strict=True))
    found: dict[Key, dict[float, list[Result]]] = {}
    for (key, rate, _), job in jobs.items():
        result = results[job.key]
        if float(result["epsilon"]) > key[1]:
            raise RuntimeError(
                f"{key[0].label} spent {result['epsilon']} of {key[1]}: this is a bug in Sordino"
            )
        found.setdefault(key, {}).setdefault(rate, []).append(result)
    return found


def _best(by_rate: dict[float, list[Result]]) -> tuple[float, list[Result]]:
    rate = max(by_rate, key=lambda rate: mean(float(r["accuracy"]) for r in by_rate[rate]))
    return rate, by_rate[rate]


def _percent(results: Sequence[Result]) -> str:
    values = [100 * float(r["accuracy"]) for r in results]
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread}"


def _servers_table(what: Protocol, found: dict[Key, dict[float, list[Result]]]) -> Table:
    rows = []
    for epsilon in what.epsilons:
        for who in CONTESTANTS:
            by_rate = found[who, epsilon, what.clip]
            rate, results = _best(by_rate)
            rows.append(
                (
                    f"{epsilon:g}",
                    who.label,
                    f"{what.noise(who, epsilon):.3f}",
                    f"{what.rate(who, rate):g}",
                    _percent(results),
                    ", ".join(f"{what.rate(who, r):g}: {_percent(rs)}" for r, rs in by_rate.items()),
                )
            )
    title = (
        f"Shakespeare's roles, next word: {what.rounds} rounds of {what.per_round} of {what.clients:,} roles, "
        f"threshold {what.clip:g} (accuracy on words, %)"
    )
    return Table(title, ("epsilon", "method", "noise multiplier", "server rate", "accuracy", "tried"), rows)


def _clips_table(what: Protocol, found: dict[Key, dict[float, list[Result]]]) -> Table:
    return Table(
        f"The threshold: {OURS.label} (accuracy on words, %, at the best of the server rates)",
        ("epsilon", *(f"clip {clip:g}" for clip in what.clips)),
        [
            (f"{epsilon:g}", *(_percent(_best(found[OURS, epsilon, clip])[1][:1]) for clip in what.clips))
            for epsilon in what.clip_epsilons
        ],
    )


def _claims(what: Protocol, found: dict[Key, dict[float, list[Result]]]) -> Table:
    """The paper's statements about StackOverflow, and whether they hold here."""

    def score(label: str, epsilon: float) -> float:
        who = next(who for who in CONTESTANTS if who.label == label)
        return 100 * mean(float(r["accuracy"]) for r in _best(found[who, epsilon, what.clip])[1])

    pairs = [
        ("momentum helps FTRL", "DP-FTRLM, efficient tree", "DP-FTRL, efficient tree"),
        ("momentum helps FTRL in the vanilla tree", "DP-FTRLM, vanilla tree", "DP-FTRL, vanilla tree"),
        ("the efficient tree is better", "DP-FTRLM, efficient tree", "DP-FTRLM, vanilla tree"),
        ("DP-FTRLM beats DP-SGDM (published: above epsilon 2.95)", "DP-FTRLM, efficient tree", "DP-SGDM"),
    ]
    columns = ("claim", *(f"epsilon {epsilon:g}" for epsilon in what.epsilons))
    rows = [(claim, *(f"{score(a, e) - score(b, e):+.2f}" for e in what.epsilons)) for claim, a, b in pairs]
    return Table("The paper's claims, here: difference of accuracies, in points", columns, rows)


def _report(run: Run, what: Protocol) -> Report:
    tables = _printed_tables(run)
    goals = run(
        [
            Job(f"report goals of {population}", at_goals, {"population": population, "goals": list(GOALS)})
            for population in POPULATIONS
        ]
    )
    curves = [_numbers(result) for result in goals]
    tables += [_goal_table(*pair) for pair in zip(POPULATIONS, curves, strict=True)]
    found = _trained(run, what)
    tables += [_servers_table(what, found), _claims(what, found), _clips_table(what, found)]
    first = next(iter(next(iter(found.values())).values()))[0]
    notes = [
        "published (tables 3 to 5): StackOverflow, 342,477 users, embedding of 10,004 tokens by 96, LSTM of 670, "
        "4,050,748 parameters. It is not to be had here: we train on Shakespeare's plays, where a role is a user: "
        f"{what.words:,} words, embedding {what.dim}, LSTM {what.hidden}, {first['parameters']:,} parameters. "
        "Accuracies cannot be compared; what can be is who wins",
        f"user-level privacy of {what.clients:,} roles at delta {what.delta:g}. Trees: {what.epochs:g} passes over "
        "the roles, in an order drawn once, and one tree for all rounds; DP-SGD: Poisson samples, amplified. The "
        "vocabulary is public (the first words of GloVe) and not counted in the plays. Seeds void epsilon",
        "accuracy is over words of the last tenth of each role's speeches; ends of sentences and words out of the "
        "vocabulary count neither as targets nor as guesses. Of several rates the best on these rows is shown, "
        "and the tuning is not charged; where one was tried, it was not tuned",
        "without noise DP-FTRL is DP-SGD but for who takes part, and both trees are one: one run stands for both",
        f"{len(what.seeds)} seed{'s' * (len(what.seeds) > 1)}, {what.rounds} rounds: in short runs accuracy moves by a "
        "point or two between evaluations, so smaller differences say nothing. Always guessing one word, the best, is "
        "right in 4.8 % of the cases with a vocabulary of 1,000 words, and in 4.3 % with 2,000",
        *_goal_notes(curves),
    ]
    draw = partial(_draw, what=what, curves=curves, found=found)
    return Report(tables, notes, draw, (13.0, 4.2), {"protocol": _plain(what)})


def _plain(what: Protocol) -> dict[str, Any]:
    plain = {name: getattr(what, name) for name in Protocol.__dataclass_fields__}
    return plain | {"rates": {f"{epsilon:g}": rates for epsilon, rates in what.rates.items()}}


def _numbers(result: Result) -> dict[str, list[float]]:
    """As they were before they were stored: JSON has no infinity."""
    return {name: [float(value) for value in values] for name, values in result.items()}


def crossing(tree: Sequence[float], sgd: Sequence[float]) -> str:
    """The epsilon above which the tree takes fewer clients a round than SGD; between two goals on a line of logarithms.

    >>> crossing((400.0, 40.0, 4.0), (4000.0, 400.0, 0.4)), crossing((4.0, 1.0), (5.0, 2.0))
    ('12.6', 'all shown')
    """
    leads = [math.log(s / t) for s, t in zip(sgd, tree, strict=True)]
    for k in range(1, len(leads)):
        if leads[k] < 0 <= leads[k - 1]:
            share = leads[k - 1] / (leads[k - 1] - leads[k])
            return f"{math.exp(math.log(tree[k - 1]) * (1 - share) + math.log(tree[k]) * share):.1f}"
    return "all shown" if min(leads) >= 0 else "none shown"


def _goal_notes(curves: Sequence[dict[str, list[float]]]) -> list[str]:
    least = [min(curve["FTRLM, one tree"]) for curve in curves]
    planned = [curve["FTRLM, planned trees, same noise in sums"][-1] for curve in curves]
    crossings = "; ".join(
        f"{name}: " + ", ".join(crossing(curve[name], curve["SGDM, Poisson"]) for curve in curves)
        for name in CURVES
        if name.startswith("FTRLM")
    )
    return [
        "a fixed ratio of noise to clients keeps the noise of the mean, and so the trained model, only while the tree "
        "stays one. Then a client below a node several times moves it as often, and more clients a round do not help "
        f"for ever: up to {GOALS[-1]:,} clients epsilon stays above {math.floor(10 * least[0]) / 10:.1f} (population "
        f"{POPULATIONS[0]:,}) and {math.floor(10 * least[1]) / 10:.1f} ({POPULATIONS[1]:,})",
        "table 5 has a tree an epoch at the same z. Its epsilons are right, but every restart leaves noise in the sum "
        "that the run of 100 clients did not have, so that run does not show what accuracy such a run has. "
        "'Planned trees, same noise in sums' restarts as often as suits best, with z raised until the sums have the "
        f"noise of that run: at {GOALS[-1]:,} clients epsilon {show(planned[0])} and {show(planned[1])}",
        "epsilon above which DP-FTRLM takes fewer clients a round than DP-SGDM (published: 3.2 at a million), for both "
        f"populations: {crossings}",
        "'unknown order' assumes only that a client sits out all other rounds of an epoch between two participations",
    ]


def _draw(
    figure: Figure, what: Protocol, curves: Sequence[Result], found: dict[Key, dict[float, list[Result]]]
) -> None:
    panels = figure.subplots(1, 3)
    for panel, population, curve in zip(panels, POPULATIONS, curves, strict=False):
        for name, style in CURVES.items():
            panel.plot(GOALS, curve[name], style, label=name)
        printed = [
            line
            for line in TABLES[5]
            if line.setting.rows == population and line.batches == TREE and line.setting.batch >= GOALS[0]
        ]
        panel.plot(
            [line.setting.batch for line in printed],
            [float(line.epsilon) for line in printed],
            "kx",
            label="printed, FTRLM (table 5)",
        )
        panel.set(xscale="log", yscale="log", ylim=(1, 1000), xlabel="clients a round", ylabel="epsilon")
        panel.set_title(f"population {population:,}")
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=6)
    last = panels[2]
    shown = [epsilon if math.isfinite(epsilon) else None for epsilon in what.epsilons]
    finite = [epsilon for epsilon in shown if epsilon is not None]
    edge = 4 * max(finite, default=1.0)  # where "no noise" stands on the axis
    places = [edge if epsilon is None else epsilon for epsilon in shown]
    for who in CONTESTANTS:
        scores = [
            100 * mean(float(r["accuracy"]) for r in _best(found[who, epsilon, what.clip])[1])
            for epsilon in what.epsilons
        ]
        order = sorted(range(len(places)), key=places.__getitem__)
        style = "o--" if who.rule == "sgd" else "o-"
        last.plot([places[i] for i in order], [scores[i] for i in order], style, label=who.label)
    last.set_xscale("log")
    last.set_xticks(sorted(set(places)))
    last.set_xticklabels(["no noise" if place == edge else f"{place:g}" for place in sorted(set(places))])
    last.minorticks_off()
    last.set(xlabel="epsilon", ylabel="accuracy on words, %", title="Shakespeare's roles")
    last.legend(fontsize=6)


FULL = Protocol(
    words=2000,
    dim=96,
    hidden=128,
    rounds=400,
    per_round=28,
    max_examples=256,
    epsilons=(math.inf, 64.0, 16.0, 4.0),
    clip=0.3,
    rates={math.inf: (1.0, 3.0, 10.0), 64.0: (1.0, 3.0, 10.0), 16.0: (0.3, 1.0, 3.0), 4.0: (0.1, 0.3, 1.0)},
    clips=(0.1, 0.3, 1.0, 3.0),
    clip_epsilons=(math.inf, 16.0),
    seeds=(1,),
    test_rows=7000,
)
QUICK = replace(
    FULL,
    words=1000,
    dim=32,
    hidden=64,
    rounds=80,
    per_round=14,
    max_examples=64,
    epsilons=(math.inf, 16.0, 4.0),
    rates={math.inf: (10.0,), 16.0: (3.0,), 4.0: (1.0,)},
    clips=(0.1, 0.3, 1.0),
    clip_epsilons=(16.0,),
    test_rows=1500,
    evaluations=4,
)


def _recipe(run: Run, quick: bool) -> Report:
    return _report(run, QUICK if quick else FULL)


RECIPE = Recipe(
    "dp-ftrl-federated",
    "DP-FTRL: user-level epsilons of tables 3 to 5, and next words on Shakespeare's roles (Kairouz et al. 2021)",
    _recipe,
    "80 rounds of 14 roles, a small LSTM, without noise and at epsilons 16 and 4, one rate each",
)
