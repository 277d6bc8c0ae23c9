"""report.png: how accuracy, privacy, and what tuned itself went over training."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = list[dict[str, Any]]
BLUE, RED, GREEN, GREY = "#1b6ca8", "#b8442c", "#2f7d4f", "#777777"


def draw_report(summary: dict[str, Any], history: History, path: Path) -> None:
    """Draw the figure of one run: a panel for each thing that was measured or that moved."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: list[Callable[[Axes, dict[str, Any], History], None]] = [_score, _score_for_epsilon, _spent]
    panels += [_rate]
    if any(line["threshold"] is not None for line in history):
        panels += [_threshold]
    if any("error" in line for line in history):
        panels += [_error]
    columns = 2 if len(panels) == 4 else 3
    rows = -(-len(panels) // columns)
    size = 4 * columns, 3.3 * rows
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        panel(axes, summary, history)
        axes.set_title(axes.get_title(), fontsize=10)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    void = "  (seeded: not a guarantee)" if summary.get("seeded") else ""
    if "caveat" in summary:
        void += "\n" + summary["caveat"]
    figure.suptitle(f"{summary['data']}: {summary['method']['name']}{void}")
    save_figure(figure, path)
    pyplot.close(figure)


def save_figure(figure: Figure, path: Path) -> None:
    """Whole or not at all: half a figure on a full disk would pass for one that is there."""
    from sordino.runs import replace_file

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    replace_file(path, drawn.getvalue())


def _score(axes: Axes, summary: dict[str, Any], history: History) -> None:
    measure, scored = _scored(history)
    _plot(axes, scored, "epoch", measure, marker="o", color=BLUE)
    axes.set(xlabel="epoch", ylabel=measure.replace("_", " "), title="On held-out rows (not covered)")
    if not scored:
        say(axes, "no test set")
    elif measure == "test_accuracy":
        axes.set_ylim(0, 1)


def _score_for_epsilon(axes: Axes, summary: dict[str, Any], history: History) -> None:
    measure, scored = _scored(history)
    axes.set(xlabel="epsilon", ylabel=measure.replace("_", " "), title="What epsilon bought")
    if not scored:
        say(axes, "no test set")
    elif _infinite(history):
        say(axes, "not private\n(epsilon is infinite)")
    else:
        _plot(axes, scored, "epsilon", measure, marker="o", color=BLUE)
        axes.set_xlim(left=0)


def _spent(axes: Axes, summary: dict[str, Any], history: History) -> None:
    delta = summary.get("delta")
    title = "Privacy spent" if delta is None else f"Privacy spent, delta = {delta:g}, per {summary['unit']}"
    axes.set(xlabel="epoch", ylabel="epsilon", title=title)
    if _infinite(history):
        say(axes, "not private\n(epsilon is infinite)")
    else:
        _plot(axes, history, "epoch", "epsilon", color=RED)
        axes.set_ylim(bottom=0)


def _rate(axes: Axes, summary: dict[str, Any], history: History) -> None:
    _plot(axes, history, "epoch", "rate", color=GREEN)
    axes.set(xlabel="epoch", ylabel="learning rate", title="Learning rate")
    on_a_log_axis(axes, [line["rate"] for line in history])


def _threshold(axes: Axes, summary: dict[str, Any], history: History) -> None:
    moved = [line for line in history if line["threshold"] is not None]
    _plot(axes, moved, "epoch", "threshold", color=GREEN)
    axes.set(xlabel="epoch", ylabel="threshold", title="Clipping threshold")
    on_a_log_axis(axes, [line["threshold"] for line in moved])


def _error(axes: Axes, summary: dict[str, Any], history: History) -> None:
    known = [line for line in history if "error" in line]
    _plot(axes, known, "epoch", "error", color=GREEN, label="error estimate")
    if all("tolerance" in line for line in known):
        _plot(axes, known, "epoch", "tolerance", color=GREY, linestyle="--", label="tolerance")
    axes.set(xlabel="epoch", ylabel="error of a step", title="Error estimate", yscale="log")
    axes.legend(frameon=False)


def _scored(history: History) -> tuple[str, History]:
    measure = "test_accuracy" if any("test_accuracy" in line for line in history) else "test_loss"
    return measure, [line for line in history if measure in line]


def _infinite(history: History) -> bool:
    return any(isinstance(line["epsilon"], str) for line in history)  # JSON has no infinity


def _plot(axes: Axes, lines: History, x: str, y: str, **style: Any) -> None:
    axes.plot([line[x] for line in lines], [line[y] for line in lines], **style)


def on_a_log_axis(axes: Axes, values: list[float]) -> None:
    """Plain numbers, and at least a factor of four from end to end: what hardly moved looks like that."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    low, high = min(values), max(values)
    if not 0 < low <= high:
        return
    axes.set_yscale("log")
    if high < 4 * low:
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / 2, middle * 2)
    if high < 1000 * low:
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(ScalarFormatter() if high < 10 * low else NullFormatter())


def say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
