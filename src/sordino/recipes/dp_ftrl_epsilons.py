"""DP-FTRL's printed epsilons (Kairouz et al., 2021, tables 3 to 7), as printed and as they really are. No training.

The tables of the image experiments price several epochs in one tree by a formula that is wrong (their authors say so
since). What is printed can be reproduced to the last digit, and the same runs can be priced correctly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from dp_accounting import DpEvent
from matplotlib.figure import Figure

from sordino.privacy import gaussian, poisson_gaussian, price, repeat, tree_plan
from sordino.privacy.loss_distribution import squared_mu
from sordino.privacy.renyi import epsilon_from_rdp, rdp_of
from sordino.privacy.trees import as_printed_trees, trees_plan
from sordino.recipes import show
from sordino.recipes.frame import Job, Report, Result, Run, Table, recipe, results_of
from sordino.recipes.paper import Published

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

SAID = Published(__name__)
CLIENTS, ROUNDS = 342_477, 1600  # StackOverflow


def _setting(data: str, batch: int, epochs: int, restarts: bool) -> Setting:
    of = SAID["data"][data]
    steps = epochs * (of["rows"] // batch) if epochs else ROUNDS
    return Setting(data, of["rows"], batch, steps, of["delta"], of["conversion"], restarts)


TABLES = {
    int(table): [
        Printed(int(table), method, batches, _setting(data, batch, epochs, table == "5"), noise, epsilon)
        for data, batch, epochs, method, batches, noises, epsilons in lines
        for noise, epsilon in zip(noises.split(), epsilons.split(), strict=True)
    ]
    for table, lines in SAID["printed"].items()
}


# Their epsilons and ours --------------------------------------------------------------------------------


def as_printed(line: Printed, noise_multiplier: float) -> float:
    """Epsilon the way the table has it: not a guarantee for trees over several epochs."""
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
    for number, kind in product(TABLES, ("trees", "sgd")):
        shown = [of for of in found if of[0].table == number and (of[0].batches == TREE) == (kind == "trees")]
        tables.append(_table(number, kind, shown))
    return Report(tables, _notes(found), partial(_draw, found=found), (10.0, 4.6))


def _table(number: int, kind: str, found: Found) -> Table:
    settings = {line.setting.data: line.setting for line, _ in found}
    data = "; ".join(f"{name}: n = {at.rows:,}, delta {at.delta:g}" for name, at in settings.items())
    costs = SAID[f"tables.{kind}.columns"].split(" | ")[-SAID[f"tables.{kind}.costs"] :]
    rows = [
        {
            "line": line,
            "result": result,
            "ours": as_shown(line, result["as printed"]),
            "costs": " | ".join(show.upwards(result[c], 3) if c in result else "-" for c in costs),
        }
        for line, result in found
    ]
    return SAID.table(kind, rows, number=number, data=data)


def as_shown(line: Printed, epsilon: float) -> str:
    """To the nearest, as the printed ones are."""
    return f"{epsilon:.2e}".replace("e+0", "e") if "e" in line.epsilon else f"{epsilon:.2f}"


def _notes(found: Found) -> list[str]:
    images = [(line, result) for line, result in found if line.batches == TREE and line.table >= 6]
    factors = [result[_ONE] / float(line.epsilon) for line, result in images]
    worst, of_worst = images[factors.index(max(factors))]
    costs = [show.upwards(of_worst[name], 3) for name in (_ONE, "one tree, auto")]
    rounded, missed = ([line for line, r in found if r["verdict"] == said] for said in ("z is rounded", "no"))
    efficient, vanilla = _left_over()
    return SAID.notes(
        exact=len(found) - len(missed) - len(rounded),
        all=len(found),
        count=len(rounded),
        rounded=_names(rounded),
        rest=f"These do not: {_names(missed)}." if missed else "None is left.",
        least=min(factors),
        most=max(factors),
        worst=worst,
        costs=costs,
        efficient=efficient,
        vanilla=vanilla,
    )


def _names(lines: list[Printed]) -> str:
    return "; ".join(f"table {line.table}, {line.method}, z {line.noise}: {line.epsilon}" for line in lines)


def _left_over() -> list[float]:
    """Table 5's z grows with the clients of a round: 0.149 for each 100, or 0.067 with the vanilla tree."""
    line = Printed(5, "DP-FTRLM", TREE, _setting("StackOverflow", 20_600, 0, restarts=True), "", "")
    return [as_printed(line, z * 206) for z in (0.149, 0.067)]


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
