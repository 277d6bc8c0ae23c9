"""DP-FTRL's printed epsilons (Kairouz et al., 2021, tables 3 to 7), as printed and as they really are. No training.

The tables of the image experiments price several epochs in one tree by a formula that is wrong (their authors say so
since). What is printed can be reproduced to the last digit, and the same runs can be priced correctly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sordino.recipes import show
from sordino.recipes.frame import Job, Report, Result, Run, Table, recipe, results_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from matplotlib.figure import Figure

# The orders of the accountants of the time begin at 1.1: too high where epsilon is large.
PRINTED_ORDERS = tuple(
    [1 + x / 10 for x in range(1, 100)] + [float(x) for x in range(12, 64)] + [128.0, 256.0, 512.0]
)
TREE, POISSON, SHUFFLED = "tree", "Poisson", "shuffled"


@dataclass(frozen=True)
class Setting:
    """Data, batches and steps of one run, and how the paper turns its RDP into epsilon."""

    data: str
    rows: int
    batch: int
    steps: int
    delta: float
    conversion: str
    printed_with_restarts: bool = False

    @property
    def per_epoch(self) -> int:
        return self.rows // self.batch

    @property
    def epochs(self) -> int:
        """How often a unit takes part."""
        return math.ceil(self.steps / self.per_epoch)

    @property
    def label(self) -> str:
        return f"{self.data}, b {self.batch:,}, {self.epochs} epoch" + "s" * (self.epochs > 1)


@dataclass(frozen=True)
class Printed:
    """One epsilon as it stands in a table. `noise` and `epsilon` are text, as their digits say how they are rounded."""

    table: int
    method: str
    batches: str  # TREE, POISSON or SHUFFLED
    setting: Setting
    noise: str
    epsilon: str

    @property
    def name(self) -> str:
        return f"table {self.table}, {self.method}, {self.setting.label}, z {self.noise}"


# The published numbers ----------------------------------------------------------------------------------

CLIENTS, ROUNDS = 342_477, 1600  # StackOverflow


def _stackoverflow(goal: int, clients: int = CLIENTS, restarts: bool = False) -> Setting:
    data = "StackOverflow" if clients == CLIENTS else "1M users"
    return Setting(data, clients, goal, ROUNDS, 1e-6, "basic", restarts)


def _images(data: str, batch: int, epochs: int) -> Setting:
    rows, delta = {"MNIST": (60_000, 1e-5), "CIFAR-10": (50_000, 1e-5), "EMNIST": (697_932, 1e-6)}[data]
    return Setting(data, rows, batch, epochs * (rows // batch), delta, "improved")


_FEDERATED = {POISSON: "DP-SGDM", TREE: "DP-FTRLM"}
_HUNDRED = _stackoverflow(100)
TABLE_3 = [
    Printed(3, method, batches, _HUNDRED, noise, epsilon)
    for batches, noise, epsilon in [
        (POISSON, "0", "inf"),
        (TREE, "0", "inf"),
        (POISSON, "0.4", "8.53"),
        (TREE, "2.33", "8.50"),
    ]
    for method in (_FEDERATED[batches].removesuffix("M"), _FEDERATED[batches])
]
_TABLE_4 = {  # noise and epsilons, line by line
    POISSON: ("0.3 0.4 0.5 0.6 0.7", "19.74 8.53 4.66 2.95 2.05"),
    TREE: ("1.13 2.33 4.03 6.21 8.83", "19.74 8.50 4.66 2.95 2.04"),
}
TABLE_4 = [
    Printed(4, _FEDERATED[batches], batches, _HUNDRED, noises.split()[i], epsilons.split()[i])
    for i in range(5)
    for batches, (noises, epsilons) in _TABLE_4.items()
]
TABLE_5 = [
    Printed(5, _FEDERATED[batches], batches, _stackoverflow(goal, clients, restarts=True), noise, epsilon)
    for batches, noise, epsilon, goal, clients in [
        (POISSON, "0.007", "1.78e7", 100, CLIENTS),
        (TREE, "0.149", "364.74", 100, CLIENTS),
        (POISSON, "0.07", "7.71e4", 1000, CLIENTS),
        (TREE, "1.49", "33.80", 1000, CLIENTS),
        (POISSON, "23.97", "10.16", CLIENTS, CLIENTS),
        (TREE, "7.53", "10.53", 5060, CLIENTS),
        (TREE, "24.29", "4.57", 16_300, CLIENTS),
        (POISSON, "0.67", "8.98", 9560, 1_000_000),
        (TREE, "5.73", "8.24", 3850, 1_000_000),
        (POISSON, "1.20", "4.17", 17_100, 1_000_000),
        (TREE, "15.29", "4.00", 10_300, 1_000_000),
    ]
]
_TABLE_6 = {
    ("MNIST", 250, 20): {
        TREE: ("4 7 20 50", "26.21 12.76 3.70 1.34"),
        POISSON: ("0.42 0.52 0.74 1.14", "26.90 12.26 3.75 1.35"),
        SHUFFLED: ("1.08 1.89 5.48 13.7", "27.15 13.19 3.75 1.35"),
    },
    ("MNIST", 1000, 80): {
        TREE: ("8 14 40 100", "26.21 12.76 3.70 1.34"),
        POISSON: ("0.62 0.8 1.61 3.67", "26.48 13.12 3.71 1.34"),
        SHUFFLED: ("2.2 3.67 11.06 27.68", "26.50 13.68 3.71 1.34"),
    },
    ("CIFAR-10", 500, 100): {
        TREE: ("10 12.1 18.1 27 50", "23.73 18.51 11.17 6.91 3.40"),
        POISSON: ("0.61 0.66 0.79 0.98 1.51", "23.81 18.60 11.29 6.98 3.43"),
        SHUFFLED: ("2.66 3.22 4.79 7.15 13.26", "23.88 18.61 11.30 6.99 3.43"),
    },
    ("CIFAR-10", 2000, 400): {
        TREE: ("20 24.2 36.2 54 100", "23.73 18.51 11.17 6.91 3.40"),
        POISSON: ("1.26 1.46 2.06 2.98 5.4", "23.89 18.67 11.22 6.92 3.41"),
        SHUFFLED: ("5.4 6.42 9.63 14.4 26.68", "23.42 18.68 11.23 6.93 3.41"),
    },
    ("EMNIST", 500, 50): {
        TREE: ("8 16 30 100", "24.64 10.46 5.06 1.35"),
        POISSON: ("0.41 0.5 0.6 0.97", "25.34 10.50 5.08 1.36"),
        SHUFFLED: ("1.89 3.86 7.24 24.06", "25.50 10.53 5.08 1.36"),
    },
    ("EMNIST", 2000, 200): {
        TREE: ("16 32 60 200", "24.64 10.46 5.06 1.35"),
        POISSON: ("0.56 0.73 1.02 2.69", "25.58 10.63 5.07 1.35"),
        SHUFFLED: ("3.77 7.65 14.5 48.42", "25.59 10.64 5.08 1.35"),
    },
}
_IMAGE_METHODS = {TREE: "DP-FTRL(M)", POISSON: "DP-SGD(M)", SHUFFLED: "DP-SGD, unamplified"}
TABLE_6 = [
    Printed(6, _IMAGE_METHODS[batches], batches, _images(*setting), noise, epsilon)
    for setting, lines in _TABLE_6.items()
    for batches, (noises, epsilons) in lines.items()
    for noise, epsilon in zip(noises.split(), epsilons.split(), strict=True)
]
# Table 7 prints no epochs: these are the only whole numbers that reproduce both of its columns.
TABLE_7 = [
    Printed(7, "DP-FTRLM" if batches == TREE else "DP-SGD", batches, _images(*setting), noise, epsilon)
    for setting, tree, poisson in [
        (("MNIST", 500, 40), ("14", "8.37"), ("1.04", "3.40")),
        (("MNIST", 1000, 80), ("28", "5.57"), ("2.08", "2.64")),
        (("CIFAR-10", 100, 20), ("2.42", "55.44"), ("0.132", "2389.37")),
        (("CIFAR-10", 1000, 200), ("24.2", "11.96"), ("1.32", "9.35")),
        (("EMNIST", 100, 10), ("3.2", "28.51"), ("0.1", "10051.63")),
        (("EMNIST", 1000, 100), ("32", "6.97"), ("1.0", "2.44")),
    ]
    for batches, (noise, epsilon) in ((TREE, tree), (POISSON, poisson))
]
TABLES = {3: TABLE_3, 4: TABLE_4, 5: TABLE_5, 6: TABLE_6, 7: TABLE_7}


# Their epsilons and ours --------------------------------------------------------------------------------


def as_printed(line: Printed, noise_multiplier: float) -> float:
    """Epsilon the way the table has it: not a guarantee for trees over several epochs."""
    from sordino.privacy.loss_distribution import squared_mu
    from sordino.privacy.renyi import epsilon_from_rdp, rdp_of
    from sordino.privacy.trees import as_printed_trees, trees_plan

    at = line.setting
    if line.batches == TREE:
        restart = 1 if at.printed_with_restarts else None
        steps = at.steps if at.epochs == 1 else at.epochs * at.per_epoch  # begun epochs count whole
        event = trees_plan(noise_multiplier, as_printed_trees(steps, at.per_epoch, restart))
    else:
        event = _events(line)[line.batches](noise_multiplier)
    plain = squared_mu(event)
    if at.conversion == "basic" and plain is not None:  # tables 3 to 5 have the best of all orders here
        return plain / 2 + math.sqrt(2 * plain * math.log(1 / at.delta))
    return epsilon_from_rdp(rdp_of(event, PRINTED_ORDERS), at.delta, at.conversion, PRINTED_ORDERS)


def _events(line: Printed) -> dict[str, Callable[[float], DpEvent]]:
    """What such a run really is, by noise multiplier: for trees and for SGD, each in two ways."""
    from sordino.privacy import gaussian, poisson_gaussian, repeat, tree_plan

    at = line.setting
    if line.batches == TREE:
        tree = partial(tree_plan, steps=at.steps, per_epoch=at.per_epoch)
        return {"one tree": tree, "a tree an epoch": partial(tree, restart_every=1)}
    shuffled: Callable[[float], DpEvent] = lambda z: repeat(gaussian(z), at.epochs)  # noqa: E731
    if line.batches == SHUFFLED:
        return {SHUFFLED: shuffled}
    return {POISSON: lambda z: repeat(poisson_gaussian(z, at.batch / at.rows), at.steps), SHUFFLED: shuffled}


def priced(*, table: int, line: int) -> Result:
    """All epsilons of one line of a table."""
    from sordino.privacy import price

    printed = TABLES[table][line]
    z = float(printed.noise)
    found: Result = {"as printed": as_printed(printed, z), "verdict": verdict(printed)}
    for name, event in _events(printed).items():
        for accountant in ("rdp",) if name == POISSON else ("rdp", "auto"):  # PLD would take most of a minute
            found[f"{name}, {accountant}"] = price(event(z), printed.setting.delta, accountant).epsilon
    return found


def verdict(line: Printed) -> str:
    """Whether the printed digits come out, if need be for another noise multiplier with the same printed digits."""
    printed, half = float(line.epsilon), rounding(line.epsilon)
    z = float(line.noise)
    ours = as_printed(line, z)
    if ours == printed or abs(ours - printed) <= half:
        return "yes"
    least, most = (as_printed(line, z + sign * rounding(line.noise)) for sign in (1, -1))
    return "z is rounded" if least - half <= printed <= most + half else "no"


def rounding(number: str) -> float:
    """Half a unit of the last digit of a printed number.

    >>> rounding("1.78e7"), rounding("0.5")
    (50000.0, 0.05)
    """
    digits, _, exponent = number.partition("e")
    decimals = len(digits.partition(".")[2])
    return 0.5 * float(f"1e{int(exponent or 0) - decimals}")


# The report ---------------------------------------------------------------------------------------------

Found = list[tuple[Printed, Result]]
_ONE, _AN_EPOCH = "one tree, rdp", "a tree an epoch, rdp"


@recipe("dp-ftrl-epsilons", "the same as the whole, which trains nothing: seconds")
def epsilons(run: Run, quick: bool) -> Report:
    lines = [(table, i, line) for table, lines in TABLES.items() for i, line in enumerate(lines)]
    jobs = {line: [Job(line.name, priced, {"table": table, "line": i})] for table, i, line in lines}
    found = [(line, show.numbers(result)) for line, (result,) in results_of(run, jobs).items()]
    tables = []
    for number in TABLES:
        trees, others = (
            [
                (line, result)
                for line, result in found
                if line.table == number and (line.batches == TREE) == tree
            ]
            for tree in (True, False)
        )
        tables += [_trees_table(number, trees), _sgd_table(number, others)]
    return Report(tables, _notes(found), partial(_draw, found=found), (10.0, 4.6))


def _trees_table(number: int, found: Found) -> Table:
    what = "DP-FTRL: epsilon printed, and what the run costs in one tree or in a tree an epoch"
    columns = (_ONE, "one tree, auto", _AN_EPOCH, "a tree an epoch, auto")
    return _table(f"Table {number}, {what}", "ours, as printed (not a guarantee)", columns, found)


def _sgd_table(number: int, found: Found) -> Table:
    what = "and what the run costs with Poisson batches (amplified) or with shuffled ones (not)"
    columns = ("Poisson, rdp", "shuffled, rdp", "shuffled, auto")
    return _table(f"Table {number}, DP-SGD: epsilon printed, {what}", "ours, as printed", columns, found)


def _table(title: str, ours: str, columns: tuple[str, ...], found: Found) -> Table:
    settings = {line.setting.data: line.setting for line, _ in found}
    data = "; ".join(f"{name}: n = {at.rows:,}, delta {at.delta:g}" for name, at in settings.items())
    rows = [
        {
            "run": line.setting.label,
            "method": line.method,
            "z": line.noise,
            "printed": line.epsilon,
            ours: as_shown(line, result["as printed"]),
            "same digits": result["verdict"],
            **{column: show.upwards(result[column], 3) if column in result else "-" for column in columns},
        }
        for line, result in found
    ]
    return Table.of(f"{title} ({data})", rows)


def as_shown(line: Printed, epsilon: float) -> str:
    """To the nearest, as the printed ones are."""
    return f"{epsilon:.2e}".replace("e+0", "e") if "e" in line.epsilon else f"{epsilon:.2f}"


def _notes(found: Found) -> list[str]:
    images = [(line, result) for line, result in found if line.batches == TREE and line.table >= 6]
    factors = [result[_ONE] / float(line.epsilon) for line, result in images]
    worst, of_worst = images[factors.index(max(factors))]
    costs = [show.upwards(of_worst[name], 3) for name in (_ONE, "one tree, auto")]
    rounded, missed = ([line for line, r in found if r["verdict"] == said] for said in ("z is rounded", "no"))
    return [
        f"{len(found) - len(missed) - len(rounded)} of {len(found)} printed epsilons come out to the last digit, and "
        f"{len(rounded)} more for another z that rounds to the printed one ({_names(rounded)}). "
        + (f"These do not: {_names(missed)}." if missed else "None is left."),
        "The trees of tables 6 and 7 hold several epochs, and their printed epsilons are no guarantee. The formula "
        "counts E ceil(log2 steps) nodes; but a node above c participations moves by c, and counts c^2. In one tree, "
        f"with the same order every epoch, these runs cost {min(factors):.2f} to {max(factors):.1f} times what is "
        f"printed: {worst.setting.label}, z {worst.noise}, is printed as {worst.epsilon} and costs "
        f"{costs[0]} (rdp, improved conversion; {costs[1]} exactly). "
        "A new tree every epoch costs less than printed.",
        "No version covers the runs behind these tables: in the authors' first code every batch comes from a fresh "
        "permutation, so that a unit may take part more than E times, and in steps next to each other.",
        "The trees of tables 3 and 4 hold one participation, those of table 5 one each (a tree an epoch): what is "
        "printed there holds. Table 5 counts the last, shorter tree as a whole one, so it really costs a little less; "
        "'one tree' is what its runs would cost without restarts.",
        "Tables 3 to 5 use the basic conversion, tables 6 and 7 the improved one. Sampled batches have orders from 1.1 "
        "in all of them, and where epsilon is large the best order is smaller: 7.71e4 and 1.78e7 (table 5), 2389.37 "
        "and 10051.63 (table 7) are above what the same runs cost. Our 'rdp' has the improved conversion and smaller "
        "orders; 'auto' is exact for trees and shuffled batches, which are plain Gaussians. Compare rdp with rdp.",
        "A printed DP-SGD epsilon that claims amplification assumes Poisson batches, and the authors' code draws none. "
        "'Shuffled' is what disjoint batches, one participation an epoch, cost with the same noise; the paper calls "
        "that unamplified, and has lines with noise of their own for it.",
        f"The text's 2.06e4 clients a round for epsilon < 10 does not fit table 5: {_left_over()}. It is left over "
        "from the version without the efficient tree. Table 7 prints no epochs: 40, 80, 20, 200, 10 and 100 are the "
        "only ones that fit both of its columns. No training: --quick and --full are the same.",
    ]


def _names(lines: list[Printed]) -> str:
    return "; ".join(f"table {line.table}, {line.method}, z {line.noise}: {line.epsilon}" for line in lines)


def _left_over() -> str:
    """Table 5's z grows with the clients of a round: 0.149 for each 100, or 0.067 with the vanilla tree."""
    setting = _stackoverflow(20_600, restarts=True)
    efficient, vanilla = (
        as_printed(Printed(5, "DP-FTRLM", TREE, setting, "", ""), z * 206) for z in (0.149, 0.067)
    )
    return f"with its z that gives {efficient:.2f}, with the z of the vanilla tree {vanilla:.2f}"


def _draw(figure: Figure, found: Found) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    images = [(line, result) for line, result in found if line.batches == TREE and line.table == 6]
    settings = list(dict.fromkeys(line.setting for line, _ in images))
    titles = {_ONE: "In one tree, the same order every epoch", _AN_EPOCH: "With a new tree every epoch"}
    for axes, (column, title) in zip(panels, titles.items(), strict=True):
        for setting, colour in zip(settings, show.shades("viridis", len(settings), 0.0, 0.9), strict=True):
            pairs = [(float(line.epsilon), r[column]) for line, r in images if line.setting == setting]
            label = f"{setting.data}, b = {setting.batch:,}, {setting.epochs} epochs"
            axes.plot(*zip(*pairs, strict=True), "o-", color=colour, label=label)
        axes.plot([1, 30], [1, 30], color="black", linewidth=0.8, label="as printed (not a guarantee)")
        show.dressed(axes, title, grid=True, open_frame=True, xlabel="epsilon printed (table 6)")
        axes.set(xscale="log", yscale="log")
    show.dressed(panels[0], ylabel="epsilon, same noise (rdp)", legend=8, boxed=False)
