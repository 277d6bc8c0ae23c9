"""Clients that tune their own rates (Koskela and Honkela, 2020, figures 1 to 3): ADADP against tuned SGD and Adam.

Five clients, each with two classes, or that and a share of rows dealt at random; all take part in every round. The
paper has curves and no tables, so what stands beside our numbers is what its text claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from sordino.data.partitions import CIFAR_PAIRS
from sordino.recipes.frame import Job, Recipe, Report, Result, Run, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

    from sordino.data import Loaded

# torch is imported inside functions, so that a list of the recipes is quick.

CLIENTS = 5
TOLERANCE = 0.1
# Evaluations whose mean is a run's accuracy: single rounds of clients with two classes go up and down.
LAST = 3
INSENSITIVE = 0.02  # our reading: at most so much between the best and the worst initial rate
MU, BETA = 0.02, 0.9  # of AdaBest

# Two classes that look alike for each client, as there: T-shirt and shirt, pullover and coat, trouser and dress, sandal
# and sneaker, bag and boot.
FASHION_GROUPS = ((0, 6), (2, 4), (1, 3), (5, 7), (8, 9))


@dataclass(frozen=True)
class Protocol:
    data: str
    model: str  # a spec, or ADADP_CNN
    groups: tuple[tuple[int, ...], ...]
    rows: int | None  # of the training set, the first; None is all
    rounds: int
    shares: tuple[float, ...]  # of rows dealt at random, from by class only to at random only
    starts: tuple[float, ...]  # ADADP's initial rates
    sgd_rates: tuple[float, ...]
    adam_rates: tuple[float, ...]
    seeds: int  # of what is compared; the grids are run with the first alone
    evaluations: int
    batch: int = 10
    engine: str = "stacked"


ADADP_CNN = "adadp_cnn"


def _halves(first: float, last: float) -> tuple[float, ...]:
    """10^first, 10^(first + 1/2), ..., 10^last."""
    return tuple(float(f"{10 ** (first + i / 2):.4g}") for i in range(round(2 * (last - first)) + 1))


# 244 trainings of 200 rounds, 1,000 batches of each of five clients in a round: for a cluster, or for months.
FULL = Protocol(
    data="cifar10",
    model=ADADP_CNN,
    groups=CIFAR_PAIRS,
    rows=None,
    rounds=200,
    shares=(0.0, 0.33, 0.67, 1.0),
    starts=_halves(-3, 0)[::2],
    sgd_rates=_halves(-3, -0.5),
    adam_rates=_halves(-5.5, -3),
    seeds=3,
    evaluations=40,
    engine="auto",
)
QUICK = Protocol(
    data="fashion-mnist",
    model="mlp:100",
    groups=FASHION_GROUPS,
    rows=10_000,
    rounds=12,
    shares=(0.0, 0.33, 1.0),
    starts=_halves(-3, 0)[::3],
    sgd_rates=_halves(-2.5, -0.5),
    adam_rates=_halves(-4, -2.5),
    seeds=1,
    evaluations=12,
)

# The contestants, by their names in tables and figures.
KEPT, FRESH = "ADADP, rate kept", "ADADP, rate begun anew each round"
BOLD, TWICE = "ADADP, rate kept, no step taken back", "ADADP, rate kept, two local epochs"
BEST_SGD, BEST_ADAM = "SGD, best rate", "Adam, best rate"
BOTH, ADABEST = "AdaBest with ADADP, rate kept", "AdaBest with SGD, FedAvg's best rate"
SGD, ADAM = "SGD", "Adam"  # at any rate
_ADADP = (KEPT, FRESH, BOTH, BOLD, TWICE)

CLAIMS = (
    "ADADP hardly depends on its initial rate",
    "The more the data goes by class, the more a tuned SGD loses; ADADP keeps its accuracy much better",
    "Adam gives poor results (a third of the data random)",
    "Taking back steps of too large an error makes it considerably more stable",
)


# One training ---------------------------------------------------------------------------------------------------


def train_pairs(
    *,
    data: str,
    model: str,
    groups: Sequence[Sequence[int]],
    rows: int | None,
    rounds: int,
    share: float,
    algorithm: str,
    local: str,
    rate: float,
    keep_rates: bool,
    discard: bool,
    local_epochs: int,
    batch: int,
    evaluations: int,
    engine: str,
    seed: int,
) -> Result:
    """Clients by groups of labels, all of them in every round. ``discard`` is of ADADP: steps may be taken back."""
    import torch

    from sordino.data.partitions import Pathological
    from sordino.federated import AdaBest, FedAvg, LocalAdam, LocalExtrapolation, LocalSgd, federate
    from sordino.recipes.trainings import load_for

    torch.set_num_threads(1)
    loaded = load_for(data)
    inputs, targets = loaded.train
    rules = {"adadp": LocalExtrapolation(TOLERANCE, discard), "sgd": LocalSgd(), "adam": LocalAdam()}
    run = federate(
        network(model, loaded, seed),
        torch.nn.CrossEntropyLoss(reduction="none"),
        (inputs[:rows], targets[:rows]),
        clients=len(groups),
        per_round=len(groups),
        partition=Pathological(tuple(map(tuple, groups)), random=share),
        algorithm=AdaBest(MU, BETA) if algorithm == "adabest" else FedAvg(),
        local=rules[local],
        rounds=rounds,
        local_epochs=local_epochs,
        batch_size=batch,
        rate=rate,
        decay=1.0,  # constant rates, as in the paper
        keep_rates=keep_rates,
        test=loaded.test,
        evaluations=evaluations,
        seed=seed,
        engine=engine,
        progress=False,
        data_name=data,
    )
    scores = [[line["round"], line["test_accuracy"]] for line in run.history if "test_accuracy" in line]
    return {
        "accuracy": fmean(score for _, score in scores[-LAST:]),
        "scores": scores,
        # Least, median and largest of the clients, by round; nothing where they have no rate of their own.
        "rates": [line["client_rates"] for line in run.history if "client_rates" in line],
        # Clients whose numbers overflowed, over all rounds.
        "left_out": sum(len(line.get("left_out", ())) for line in run.history),
        "parameters": run.summary["parameters"],
        "engine": run.summary["engine"],
        "rows": run.summary["rows"],
        "seconds": run.summary["seconds"],
    }


def network(model: str, loaded: Loaded, seed: int) -> nn.Module:
    """A model by its spec, or the paper's for CIFAR-10, with weights drawn from ``seed``."""
    from sordino.recipes.trainings import network_for

    return adadp_cnn(seed) if model == ADADP_CNN else network_for(model, loaded, seed)


def adadp_cnn(seed: int) -> nn.Module:
    """Two convolutions of 64 channels, 3 x 3, pooled 3 x 3 with stride 2, then 1600-500-500-10: 1,093,720 parameters.

    Only this pooling makes the 1600 that the paper states.
    """
    import torch
    from torch import nn

    from sordino.models import cifar_fc

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        *cifar_fc(),
    )


# Jobs -----------------------------------------------------------------------------------------------------------

Key = tuple[str, float, float]  # what, share of random rows, (initial) rate
Results = dict[Key, list[Result]]  # one for each seed that was run


def compare(run: Run, quick: bool) -> Report:
    """The grids first, for the rates of SGD and Adam; then what is compared, with every seed."""
    protocol = QUICK if quick else FULL
    grid = _run(run, protocol, _grid(protocol), seeds=1)
    best = {
        (what, share): max(rates, key=lambda rate: _accuracy(grid[what, share, rate]))
        for share in protocol.shares
        for what, rates in ((SGD, protocol.sgd_rates), (ADAM, protocol.adam_rates))
    }
    compared = _run(run, protocol, _compared(protocol, best), protocol.seeds)
    results = grid | compared
    return Report(
        [
            _claims_table(protocol, results, best),
            _accuracy_table(protocol, results, best),
            _rate_table(protocol, results),
            _client_rates_table(protocol, results, best),
        ],
        _notes(protocol, results, best, quick),
        lambda figure: _draw(figure, protocol, results, best),
        (3.6 * len(protocol.shares), 9.0),
        {**vars(protocol), "tolerance": TOLERANCE, "mu": MU, "beta": BETA},
    )


def _grid(protocol: Protocol) -> Iterator[Key]:
    for share in protocol.shares:
        yield from ((SGD, share, rate) for rate in protocol.sgd_rates)
        yield from ((ADAM, share, rate) for rate in protocol.adam_rates)


def _compared(protocol: Protocol, best: Mapping[tuple[str, float], float]) -> Iterator[Key]:
    for share in protocol.shares:
        yield from ((what, share, start) for what in (KEPT, FRESH, BOTH) for start in protocol.starts)
        yield from ((what, share, _middle(protocol)) for what in (BOLD, TWICE))
        yield BEST_SGD, share, best[SGD, share]
        yield BEST_ADAM, share, best[ADAM, share]
        yield ADABEST, share, best[SGD, share]


def _run(run: Run, protocol: Protocol, keys: Iterator[Key], seeds: int) -> Results:
    wanted = list(keys)
    found = iter(run([_job(protocol, key, seed) for key in wanted for seed in range(seeds)]))
    return {key: [next(found) for _ in range(seeds)] for key in wanted}


def _job(protocol: Protocol, key: Key, seed: int) -> Job:
    what, share, rate = key
    local = "adadp" if what in _ADADP else "adam" if what in (ADAM, BEST_ADAM) else "sgd"
    settings = {
        "data": protocol.data,
        "model": protocol.model,
        "groups": [list(group) for group in protocol.groups],
        "rows": protocol.rows,
        "rounds": protocol.rounds,
        "share": share,
        "algorithm": "adabest" if what in (BOTH, ADABEST) else "fedavg",
        "local": local,
        "rate": rate,
        "keep_rates": local == "adadp" and what != FRESH,
        "discard": what != BOLD,
        "local_epochs": 2 if what == TWICE else 1,
        "batch": protocol.batch,
        "evaluations": protocol.evaluations,
        "engine": protocol.engine,
        "seed": seed,
    }
    return Job(f"{what} {rate:g}, {100 * share:g} % random, seed {seed}", train_pairs, settings)


def _accuracy(runs: Sequence[Result]) -> float:
    return fmean(result["accuracy"] for result in runs)


# What was found -------------------------------------------------------------------------------------------------

Best = Mapping[tuple[str, float], float]


def _middle(protocol: Protocol) -> float:
    """The initial rate that ADADP is shown with where it is shown with one; no choice was made among them."""
    return protocol.starts[len(protocol.starts) // 2]


def _of_starts(protocol: Protocol, results: Results, what: str, share: float) -> list[float]:
    return [_accuracy(results[what, share, start]) for start in protocol.starts]


def _tuned(results: Results, best: Best, what: str, share: float) -> float:
    return _accuracy(results[what, share, best[ADAM if what == BEST_ADAM else SGD, share]])


def _claims_table(protocol: Protocol, results: Results, best: Best) -> Table:
    rows = [
        (CLAIMS[0], *(_insensitive(protocol, results, what) for what in (KEPT, FRESH))),
        (CLAIMS[1], *(_robust(protocol, results, best, what) for what in (KEPT, FRESH))),
        (CLAIMS[2], *(_poor_adam(protocol, results, best, what) for what in (KEPT, FRESH))),
        (CLAIMS[3], _steadier(protocol, results), "not run"),
    ]
    columns = ("the paper's claim", "with rates kept between rounds", "with rates begun anew")
    return Table("Do our runs support the claims? In points of accuracy, by % of random rows", columns, rows)


def _insensitive(protocol: Protocol, results: Results, what: str) -> str:
    held, shown = [], []
    for share in protocol.shares:
        ours = _of_starts(protocol, results, what, share)
        grid = [_accuracy(results[SGD, share, rate]) for rate in protocol.sgd_rates]
        spread = max(ours) - min(ours)
        held.append(spread <= INSENSITIVE)
        shown.append(f"{_percent(share)}: {100 * spread:.1f} (SGD {100 * (max(grid) - min(grid)):.1f})")
    return f"{_verdict(held)} (best minus worst, at {'; '.join(shown)})"


def _robust(protocol: Protocol, results: Results, best: Best, what: str) -> str:
    """How much is lost to the data dealt at random: less than by SGD, tuned for each share?"""
    start, top = _middle(protocol), max(protocol.shares)
    held, shown = [], []
    for share in (share for share in protocol.shares if share < top):
        ours = _accuracy(results[what, top, start]) - _accuracy(results[what, share, start])
        sgd = _tuned(results, best, BEST_SGD, top) - _tuned(results, best, BEST_SGD, share)
        held.append(ours < sgd)
        shown.append(f"{_percent(share)}: {100 * ours:.1f} (SGD {100 * sgd:.1f})")
    return f"{_verdict(held)} (lost, at {'; '.join(shown)})"


def _poor_adam(protocol: Protocol, results: Results, best: Best, what: str) -> str:
    share = min(protocol.shares, key=lambda share: abs(share - 1 / 3))
    adam = _tuned(results, best, BEST_ADAM, share)
    rivals = {
        "ADADP": _accuracy(results[what, share, _middle(protocol)]),
        "SGD": _tuned(results, best, BEST_SGD, share),
    }
    shown = ", ".join(f"{100 * (adam - rival):+.1f} against {name}" for name, rival in rivals.items())
    return f"{_verdict([adam < rival - INSENSITIVE for rival in rivals.values()])} ({shown})"


def _steadier(protocol: Protocol, results: Results) -> str:
    start = _middle(protocol)
    gains = {
        share: _accuracy(results[KEPT, share, start]) - _accuracy(results[BOLD, share, start])
        for share in protocol.shares
    }
    shown = "; ".join(f"{_percent(share)}: {100 * gain:+.1f}" for share, gain in gains.items())
    return f"{_verdict([gain > INSENSITIVE for gain in gains.values()])} (gained, at {shown})"


def _verdict(held: Sequence[bool]) -> str:
    return "yes" if all(held) else "in part" if any(held) else "no"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _cell(runs: Sequence[Result]) -> str:
    """Accuracy in percent, the lowest and highest of several seeds, and how often clients came back with no numbers."""
    values = [100 * result["accuracy"] for result in runs]
    spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    lost = sum(result["left_out"] for result in runs)
    return f"{fmean(values):.1f}{spread}" + (f", {lost} left out" if lost else "")


def _accuracy_table(protocol: Protocol, results: Results, best: Best) -> Table:
    rows: list[tuple[str, ...]] = []
    for what, of in ((BEST_SGD, SGD), (BEST_ADAM, ADAM), (ADABEST, SGD)):
        cells = []
        for share in protocol.shares:
            rate = best[of, share]
            cells.append(f"{_cell(results[what, share, rate])} (rate {rate:.2g})")
        rows.append((what, *cells))
    for what in (KEPT, FRESH, BOTH):
        for start in protocol.starts:
            cells = [_cell(results[what, share, start]) for share in protocol.shares]
            rows.append((f"{what}, from {start:g}", *cells))
    for what in (BOLD, TWICE):
        cells = [_cell(results[what, share, _middle(protocol)]) for share in protocol.shares]
        rows.append((f"{what}, from {_middle(protocol):g}", *cells))
    seeds = "one seed" if protocol.seeds == 1 else f"mean of {protocol.seeds} seeds"
    title = f"Test accuracy (%) after {protocol.rounds} rounds, {seeds}, by random rows"
    return Table(title, ("clients", *map(_percent, protocol.shares)), rows)


def _rate_table(protocol: Protocol, results: Results) -> Table:
    """The grids of SGD and Adam."""
    rows = [
        (what, f"{rate:.2g}", *(_cell(results[what, share, rate]) for share in protocol.shares))
        for what, rates in ((SGD, protocol.sgd_rates), (ADAM, protocol.adam_rates))
        for rate in rates
    ]
    columns = ("clients", "rate", *map(_percent, protocol.shares))
    return Table("Constant rates: test accuracy (%), one seed, by random rows", columns, rows)


def _client_rates_table(protocol: Protocol, results: Results, best: Best) -> Table:
    rows = []
    for what in (KEPT, BOTH):
        for start in protocol.starts:
            ends = [results[what, share, start][0]["rates"][-1] for share in protocol.shares]
            rows.append((what, f"{start:g}", *(" / ".join(f"{rate:.2g}" for rate in end) for end in ends)))
    rows.append(("SGD's best rate", "", *(f"{best[SGD, share]:.2g}" for share in protocol.shares)))
    columns = ("clients", "from", *map(_percent, protocol.shares))
    return Table("The clients' own rates at the end, least / median / largest, by random rows", columns, rows)


def _notes(protocol: Protocol, results: Results, best: Best, quick: bool) -> list[str]:
    one = next(iter(results.values()))[0]
    rows = one["rows"]
    batches = rows // CLIENTS // protocol.batch
    # What is called the best of a grid is of that grid, but for further seeds.
    trained = [
        result for (what, _, _), runs in results.items() for result in runs[what in (BEST_SGD, BEST_ADAM) :]
    ]
    minutes = sum(result["seconds"] for result in trained) / 60
    notes = [
        "The paper has curves only: there are no published accuracies to stand beside ours. 'Hardly depends' is read "
        f"as within {100 * INSENSITIVE:g} points over initial rates from {min(protocol.starts):g} to "
        f"{max(protocol.starts):g}, 'poor' as more than so much behind.",
        f"{protocol.data}, {rows:,} rows, {CLIENTS} clients of two classes each, {one['parameters']:,} parameters; "
        f"batches of {protocol.batch}, about {batches:,} of each client between aggregations, one local epoch; all "
        "clients in every round. ADADP takes two batches for a step, so half as many steps: equal work.",
        f"ADADP: tolerance {TOLERANCE:g}, steps of a larger error taken back, as in the paper, which does not say "
        "whether rates outlive a round: both are shown. Nor does it say whether the E steps of a round take one batch "
        "or two: with two local epochs they take two, and the work is twice that of SGD. Where one initial rate "
        "is shown, it is the middle one, "
        f"{_middle(protocol):g}.",
        f"An accuracy is the mean of the last {LAST} evaluations, {protocol.rounds // protocol.evaluations} round(s) "
        "apart. The rates of SGD and Adam are chosen by it on test rows, for each share of random rows; ADADP's are "
        f"not chosen. AdaBest has mu {MU:g} and beta {BETA:g}, not tuned.",
        f"{len(trained)} trainings, {minutes:.0f} minutes of one core in all.",
    ]
    edges = sorted(
        {
            f"{what} at {_percent(share)}"
            for (what, share), rate in best.items()
            for rates in [protocol.sgd_rates if what == SGD else protocol.adam_rates]
            if rate in (rates[0], rates[-1])
        }
    )
    if edges:
        notes.append(
            f"The best rate is at the edge of its grid, and a better one may lie beyond: {', '.join(edges)}."
        )
    if quick:
        notes.append(
            f"Cut by --quick: {protocol.data} and a network of one hidden layer instead of CIFAR-10 and the paper's "
            f"convolutions; {rows:,} rows instead of 50,000, so {batches:,} batches a round instead of 1,000; "
            f"{protocol.rounds} rounds instead of {FULL.rounds}; one seed instead of {FULL.seeds}. The claims are "
            "looked at early in training, on an easier task."
        )
    return notes


# The figure -----------------------------------------------------------------------------------------------------

_STYLES = {
    KEPT: ("#b8442c", "-"),
    FRESH: ("#e08a3c", "-"),
    BOTH: ("#b8442c", ":"),
    BEST_SGD: ("#1b6ca8", "-"),
    BEST_ADAM: ("#555555", "-."),
    ADABEST: ("#1b6ca8", ":"),
}


def _draw(figure: Figure, protocol: Protocol, results: Results, best: Best) -> None:
    panels = figure.subplots(3, len(protocol.shares), sharey="row", squeeze=False)
    for column, share in enumerate(protocol.shares):
        above, between, below = panels[:, column]
        _draw_rounds(above, protocol, results, best, share)
        _draw_client_rates(between, protocol, results, share)
        _draw_initial_rates(below, protocol, results, share)
        above.set_title(f"{_percent(share)} of the rows random", fontsize=9)
        for axes in (above, between, below):
            axes.grid(alpha=0.3)
    for axes, label in zip(
        panels[:, 0], ("test accuracy, %", "clients' rates", "test accuracy, %"), strict=True
    ):
        axes.set_ylabel(label)
    for axes in panels[:, 0]:
        axes.legend(frameon=False, fontsize=6)


def _draw_rounds(axes: Axes, protocol: Protocol, results: Results, best: Best, share: float) -> None:
    for what, (colour, line) in _STYLES.items():
        start = what in (KEPT, FRESH, BOTH)
        rate = _middle(protocol) if start else best[ADAM if what == BEST_ADAM else SGD, share]
        runs = results[what, share, rate]
        rounds = [number for number, _ in runs[0]["scores"]]
        means = [100 * fmean(at) for at in zip(*([s for _, s in run["scores"]] for run in runs), strict=True)]
        axes.plot(rounds, means, line, color=colour, label=what, linewidth=1.4)
    axes.set_xlabel("round")


def _draw_client_rates(axes: Axes, protocol: Protocol, results: Results, share: float) -> None:
    for start in protocol.starts:
        rates = results[KEPT, share, start][0]["rates"]
        least, median, largest = zip(*rates, strict=True)
        rounds = range(1, len(rates) + 1)
        (drawn,) = axes.plot(rounds, median, linewidth=1.4, label=f"from {start:g}")
        axes.fill_between(rounds, least, largest, alpha=0.2, color=drawn.get_color())
    axes.set(xlabel="round", yscale="log")


def _draw_initial_rates(axes: Axes, protocol: Protocol, results: Results, share: float) -> None:
    lines = (
        (KEPT, protocol.starts, *_STYLES[KEPT]),
        (FRESH, protocol.starts, *_STYLES[FRESH]),
        (SGD, protocol.sgd_rates, *_STYLES[BEST_SGD]),
        (ADAM, protocol.adam_rates, *_STYLES[BEST_ADAM]),
    )
    for what, rates, colour, line in lines:
        values = [100 * _accuracy(results[what, share, rate]) for rate in rates]
        axes.plot(rates, values, line, marker="o", markersize=3, color=colour, label=what)
    axes.set(xlabel="rate, of ADADP the initial one", xscale="log")


RECIPE = Recipe(
    "adadp-federated",
    "ADADP: clients that tune their rates, by class pairs, against tuned SGD and Adam (figures 1 to 3)",
    compare,
    "Fashion-MNIST and a small network, a fifth of the batches, 12 rounds, one seed",
)
