"""Axes that show the curve, and do not make much of little."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.report.account import Account, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_LETTER = 9.5  # points, from one line of small text to the next


def over_the_run(axes: Axes, run: Account) -> None:
    """The whole run from left to right, and the same for all panels."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(run.along)
    if run.end > 0 and math.isfinite(run.end):
        axes.set_xlim(0, 1.02 * run.end)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=run.federated or run.end >= 2))


def fit(axes: Axes, values: list[float], percent: bool = False) -> None:
    """Limits from the data, with a margin, and a range that is never so small that noise looks like a trend: ten
    percentage points, or a tenth of the value."""
    if percent:
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        # No steps of 2.5: ticks are at whole percents, since the range is never below five of them.
        axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    if not values:
        return
    low, high = min(values), max(values)
    if not percent and 0 < 30 * low < high:
        by_factors(axes, values)
        return
    least = 0.1 if percent else 0.1 * max(abs(low), abs(high)) or 1.0
    middle, reach = (low + high) / 2, 0.63 * max(high - low, least)
    bottom, top = middle - reach, middle + reach
    if percent and low >= 0 and high <= 1:
        bottom, top = max(bottom, -0.02), min(top, 1.02)
    axes.set_ylim(bottom, top)


def by_factors(axes: Axes, values: list[float]) -> None:
    """A log axis with plain numbers, and at least a factor of four from end to end: what hardly moved looks like it.
    Numbers that have no logarithm stay on a plain axis."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, ScalarFormatter

    if not values:
        return
    low, high = min(values), max(values)
    if not 0 < low <= high:
        return
    axes.set_yscale("log")
    name_the_y_axis(axes, ", ".join(filter(None, (axes.get_ylabel(), "log scale"))))
    middle, reach = math.sqrt(low * high), max(2.0, 1.1 * math.sqrt(high / low) ** 1.15)
    axes.set_ylim(middle / reach, middle * reach)
    axes.yaxis.set_minor_formatter(NullFormatter())
    if high < 1000 * low:
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
        axes.yaxis.set_minor_locator(NullLocator())
    if low > 1e-4 and high < 1e5:
        plain = ScalarFormatter()
        plain.set_scientific(False)
        axes.yaxis.set_major_formatter(plain)


def whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def name_the_y_axis(axes: Axes, text: str) -> None:
    axes.set_ylabel(text, fontsize=8, color="#777777")


@dataclass(frozen=True)
class End:
    """A curve, and what stands at its end."""

    course: Series
    color: str
    shown: str | None = None


def name_the_ends(axes: Axes, *ends: End) -> None:
    """The last values, to the right of the last points, where no line is, and not upon each other.

    Called when the limits are what they will be.
    """
    below = -math.inf
    for end in sorted((end for end in ends if end.course.y), key=lambda end: end.course.y[-1]):
        place = (end.course.x[-1], end.course.y[-1])
        height = float(axes.transData.transform(place)[1]) * 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
        below = max(height, below + _LETTER)
        axes.annotate(
            end.shown or f"{end.course.y[-1]:.3g}",
            place,
            xytext=(5, below - height),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=end.color,
        )


def say_what_is_missing(axes: Axes, not_finite: int) -> None:
    if not_finite:
        what = "value is" if not_finite == 1 else "values are"
        text = f"{not_finite} {what} not finite"
        free = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        axes.text(
            0.98, 0.92, text, ha="right", color="#b8442c", fontsize=8, bbox=free, transform=axes.transAxes
        )


def say(axes: Axes, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, ha="center", va="center", color="#777777", transform=axes.transAxes)
