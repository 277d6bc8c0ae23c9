"""The vocabulary of panels: each draws one thing onto axes, if the run has it and it says something."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sordino.privacy.certificate import show_epsilon
from sordino.report import axes as scale
from sordino.report.account import HARDLY, Account, Series, mapping, number
from sordino.report.words import settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, GREEN, GREY = "#1b6ca8", "#b8442c", "#2f7d4f", "#777777"
_COLOR_OF_ROWS = {"test rows": BLUE, "held-out clients": GREY, "training rows": GREEN}
_CLIENTS_SHOWN = 60  # in the figure of labels
_RESTARTS_SHOWN = 40
_BINS = 12


@dataclass(frozen=True)
class Panel:
    title: str
    draw: Callable[[Axes], None]


def panels(run: Account) -> list[Panel]:
    """All that there is to say about a run, what matters most first."""
    return [
        *_measured(run),
        *_bought(run),
        *_spent(run),
        *_course(run, "rate", "Learning rate", GREEN),
        *_course(run, "threshold", "Clipping threshold", GREEN),
        *_error(run),
        *_noise_of_the_sum(run),
        *_course(run, "cloud_norm", "Norm of the cloud model", RED),
        *_client_rates(run),
        *_participants(run),
        *_about_clients(run),
        _settings(run),
    ]


# How good it became.


def _measured(run: Account) -> Iterator[Panel]:
    """A panel for each measure (accuracy, error, ...) with a line for each kind of rows; losses come last."""
    kinds = dict.fromkeys(sorted((_measure(name) for name in run.measures), key=lambda kind: kind == "loss"))
    cover = " (not covered)" if run.private else ""
    for kind in kinds:
        names = [name for name in run.measures if _measure(name) == kind]
        yield Panel(f"{kind.replace('_', ' ').capitalize()}{cover}", _drawing_measures(run, names, kind))
    if not run.measures:
        yield Panel(
            "On held-out rows",
            lambda axes: scale.say(axes, _why_nothing_is_measured(run)),
        )


def _why_nothing_is_measured(run: Account) -> str:
    """What is under way does not say whether it has a test set, and may look at it later."""
    if not run.history:
        return "nothing logged yet"
    return "no test set" if run.finished else "no evaluation yet"


def _measure(name: str) -> str:
    return name.removeprefix("test_").removeprefix("holdout_")


def _drawing_measures(run: Account, names: list[str], kind: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        courses = {name: run.series(name) for name in names}
        for name, course in courses.items():
            color = _COLOR_OF_ROWS[_rows(name)]
            axes.plot(course.x, course.y, "o-", ms=3, color=color, label=_rows(name))
        scale.fit(
            axes, [y for course in courses.values() for y in course.y], percent=kind.endswith("accuracy")
        )
        scale.say_what_is_missing(axes, sum(course.not_finite for course in courses.values()))
        scale.over_the_run(axes, run)
        percent = _percent if kind.endswith("accuracy") else lambda course: None
        ends = [
            scale.End(course, _COLOR_OF_ROWS[_rows(name)], percent(course))
            for name, course in courses.items()
        ]
        scale.name_the_ends(axes, *ends)
        if len(names) > 1:
            axes.legend(frameon=False)

    return draw


def _percent(course: Series) -> str | None:
    return f"{100 * course.y[-1]:.1f} %" if course.y else None


def _rows(name: str) -> str:
    if name == "loss":
        return "training rows"
    return "held-out clients" if name.startswith("holdout_") else "test rows"


def _bought(run: Account) -> Iterator[Panel]:
    """The main measure over epsilon, where epsilon has grown between evaluations."""
    main = next((name for name in run.measures if _measure(name) != "loss"), None)
    if main is None or not run.private:
        return
    course = _last_for_each(run.series(main, over="epsilon"))
    if len(course.x) < 2:
        return

    def draw(axes: Axes) -> None:
        axes.plot(course.x, course.y, "o-", ms=3, color=BLUE)
        scale.name_the_y_axis(axes, f"{_measure(main).replace('_', ' ')}, {_rows(main)}")
        scale.fit(axes, course.y, percent=main.endswith("accuracy"))
        axes.set_xlim(left=0)
        axes.set_xlabel("epsilon")

    yield Panel("What epsilon bought (not covered)", draw)


def _last_for_each(course: Series) -> Series:
    """Of all values at the same place the last: a tree is paid for once, and then used."""
    last = dict(zip(course.x, course.y, strict=True))
    return Series(list(last), list(last.values()))


# What it cost.


def _spent(run: Account) -> Iterator[Panel]:
    course = run.series("epsilon")
    if not run.private or not course.y:
        return
    tree = run.noise.get("kind") == "Tree"

    def draw(axes: Axes) -> None:
        # From nothing at the start. A tree is paid for when it is opened; what is sampled, step by step.
        style = (
            {"drawstyle": "steps-pre"} if tree else {"marker": "o", "ls": ""} if len(course.y) == 1 else {}
        )
        start = [0.0] if tree or len(course.y) > 1 else []
        axes.plot([*start, *course.x], [*start, *course.y], color=RED, ms=3, **style)  # type: ignore[arg-type]
        axes.set_ylim(0, 1.12 * max(course.y))
        scale.over_the_run(axes, run)
        least = "" if run.settled else "at least "
        scale.name_the_ends(axes, scale.End(course, RED, least + show_epsilon(course.y[-1], 2)))
        for at in _restarts(run)[:_RESTARTS_SHOWN]:
            axes.axvline(at, color=GREY, lw=0.8, ls=":")
        if tree:
            paid = "a tree is paid for when it opens"
            axes.text(0.98, 0.05, paid, ha="right", fontsize=8, color=GREY, transform=axes.transAxes)

    yield Panel(f"Epsilon spent, for each {run.summary.get('unit', 'unit')}", draw)


def _restarts(run: Account) -> list[float]:
    """Where a new tree begins, in what the run is counted in."""
    every = number(run.noise.get("restart_every"))
    if run.federated:
        sampled = mapping(run.summary.get("participation"))
        every *= max(1.0, number(run.summary.get("n")) // number(sampled.get("batch_size", math.nan)))
    if not (every > 0 and math.isfinite(run.end)):
        return []
    return [every * tree for tree in range(1, math.ceil(run.end / every))]


def _noise_of_the_sum(run: Account) -> Iterator[Panel]:
    """DP-FTRL steps by the sum of all gradients so far: what noise that has, and what other noise would have."""
    made, clip = mapping(run.summary.get("method")), run.series("threshold")
    steps, per_epoch = run.summary.get("steps"), run.summary.get("steps_per_epoch")
    if (
        run.noise.get("kind") != "Tree"
        or not run.private
        or clip.moved
        or not clip.y
        or not made
        or not per_epoch
    ):
        return
    from sordino.noise.tree import Tree, noise_in_running_sum

    shape = {name: run.noise[name] for name in ("efficient", "restart_every", "completion")}
    std = number(run.summary["noise_multiplier"]) * clip.y[0]
    tree = [std * each for each in noise_in_running_sum(Tree(**shape), int(steps or 0), int(per_epoch))]
    epochs = [step / per_epoch for step in range(1, len(tree) + 1)]
    price = number(run.summary.get("gdp_mu"))

    def draw(axes: Axes) -> None:
        axes.plot(epochs, tree, color=GREEN, lw=1, label="tree")
        if (
            price > 0
        ):  # a unit takes part once an epoch, so independent noise of this price has this multiplier
            anew = math.sqrt(math.ceil(epochs[-1])) / price * clip.y[0]
            others = [anew * math.sqrt(step) for step in range(1, len(tree) + 1)]
            axes.plot(epochs, others, color=GREY, ls="--", label="drawn anew each step, same epsilon")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)
        scale.over_the_run(axes, run)

    yield Panel("Noise in the sum of gradients (std)", draw)


# What moved.


def _course(run: Account, name: str, title: str, color: str) -> Iterator[Panel]:
    course = run.series(name)
    if not (course.moved_by(HARDLY) or course.not_finite):
        return

    def draw(axes: Axes) -> None:
        axes.plot(course.x, course.y, color=color)
        scale.by_factors(axes, course.y)
        scale.say_what_is_missing(axes, course.not_finite)
        scale.over_the_run(axes, run)
        scale.name_the_ends(axes, scale.End(course, color))

    yield Panel(title, draw)


def _error(run: Account) -> Iterator[Panel]:
    """The error estimate of a step against what is tolerated."""
    error, tolerance = run.series("error"), run.series("tolerance")
    if not error.y and not error.not_finite:
        return

    def draw(axes: Axes) -> None:
        axes.plot(error.x, error.y, color=GREEN, label="error estimate")
        axes.plot(tolerance.x, tolerance.y, color=GREY, ls="--", label="tolerance")
        scale.by_factors(axes, [*error.y, *tolerance.y])
        scale.say_what_is_missing(axes, error.not_finite)
        axes.legend(frameon=False)
        scale.over_the_run(axes, run)

    yield Panel("Error of a step", draw)


# Clients.


def _client_rates(run: Account) -> Iterator[Panel]:
    lines = [(run.place(line, i), _triple(line.get("client_rates"))) for i, line in enumerate(run.history)]
    known = [(x, rates) for x, rates in lines if rates is not None]
    if not known:
        return
    low, middle, high = zip(*(rates for _, rates in known), strict=True)
    if not Series([], [*low, *high]).moved:
        return

    def draw(axes: Axes) -> None:
        rounds = [x for x, _ in known]
        axes.fill_between(rounds, low, high, color=GREEN, alpha=0.2, lw=0, label="least to largest")
        axes.plot(rounds, middle, "o-" if len(known) == 1 else "-", ms=3, color=GREEN, label="median")
        scale.by_factors(axes, [*low, *high])
        axes.legend(frameon=False)
        scale.over_the_run(axes, run)

    yield Panel("Rates of the clients of a round", draw)


def _triple(rates: Any) -> tuple[float, float, float] | None:
    if not isinstance(rates, list | tuple) or len(rates) != 3:
        return None
    low, middle, high = (number(rate) for rate in rates)
    return (low, middle, high) if all(map(math.isfinite, (low, middle, high))) else None


def _participants(run: Account) -> Iterator[Panel]:
    course = run.series("participants")
    if not course.moved_by(HARDLY):
        return

    def draw(axes: Axes) -> None:
        axes.plot(course.x, course.y, "o", ms=3, color=BLUE, label="delivered")
        expected = run.expected_clients
        if expected is not None:
            axes.axhline(expected, color=GREY, ls="--", label="drawn on average")
            axes.legend(frameon=False, fontsize=8)
        axes.set_ylim(0, 1.1 * max(*course.y, expected or 0.0))
        scale.whole_numbers(axes.yaxis)
        scale.over_the_run(axes, run)

    yield Panel("Clients that delivered in a round", draw)


def _about_clients(run: Account) -> Iterator[Panel]:
    rates = [r for r in map(number, mapping(run.clients.get("rates")).values()) if math.isfinite(r)]
    if Series([], rates).moved:
        yield Panel("Rates of the clients at the end", lambda axes: _histogram(axes, rates, "rate", GREEN))
    if run.sizes.moved_by(HARDLY):
        yield Panel("Sizes of the clients", lambda axes: _histogram(axes, run.sizes.y, "rows", BLUE))
    shares = _shares(run.clients.get("labels") or [])
    if shares:
        yield Panel("Share of each label (dark: all)", lambda axes: _heat(axes, shares, run))


def _histogram(axes: Axes, values: list[float], what: str, color: str) -> None:
    axes.hist(values, bins=_bins(values), color=color)
    axes.set_xlabel(what)
    axes.set_ylabel("clients")
    if _whole(values):
        scale.whole_numbers(axes.xaxis)
    else:
        axes.locator_params("x", nbins=5)
    scale.whole_numbers(axes.yaxis)


def _whole(values: list[float]) -> bool:
    return all(value.is_integer() for value in values)


def _bins(values: list[float]) -> int | list[float]:
    """About a dozen; of whole numbers each holds as many as the next, or empty bins would come and go."""
    if not _whole(values):
        return _BINS
    low, high = min(values), max(values)
    width = math.ceil((high - low + 1) / _BINS)
    return [low - 0.5 + width * edge for edge in range(math.ceil((high - low + 1) / width) + 1)]


def _shares(labels: list[Any]) -> list[list[float]]:
    """For each client, how its rows are shared out among the labels."""
    counts = [[number(count) for count in row] for row in labels[:_CLIENTS_SHOWN] if isinstance(row, list)]
    if not counts or len({len(row) for row in counts}) != 1 or not counts[0]:
        return []
    return [[count / max(1.0, sum(row)) for count in row] for row in counts]


def _heat(axes: Axes, shares: list[list[float]], run: Account) -> None:
    axes.grid(visible=False)
    by_label = list(zip(*shares, strict=True))
    axes.imshow(by_label, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0, vmax=1)
    more = number(run.clients.get("clients")) > _CLIENTS_SHOWN
    axes.set_xlabel(f"client, the first {_CLIENTS_SHOWN}" if more else "client")
    axes.set_ylabel("label")
    scale.whole_numbers(axes.xaxis)
    scale.whole_numbers(axes.yaxis)


# What stood still.


def _settings(run: Account) -> Panel:
    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        said = settings(run)
        step = min(0.1, 1 / max(1, len(said)))
        for line, (name, value) in enumerate(said):
            at = 0.97 - step * line
            axes.text(0.0, at, name, color=GREY, fontsize=8.5, va="top", transform=axes.transAxes)
            axes.text(0.42, at, value, fontsize=8.5, va="top", transform=axes.transAxes)

    return Panel("Settings", draw)
