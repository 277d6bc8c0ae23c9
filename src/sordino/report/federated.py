"""report.png of a federation: accuracy, the size of the cloud model, clients and their rates, and what was spent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.report.figure import BLUE, GREEN, GREY, RED, History, on_a_log_axis, save_figure, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = 60  # clients in the figure of labels


def draw_federated_report(summary: dict[str, Any], history: History, folder: Path) -> None:
    """Draw report.png into the directory of a run, from what lies there."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    about = folder / "clients.json"
    clients = json.loads(about.read_text()) if about.exists() else {}
    panels: list[Callable[[Axes], None]] = [
        lambda axes: _accuracy(axes, history),
        lambda axes: _cloud_norm(axes, history),
    ]
    if any("epsilon" in line for line in history):
        panels += [lambda axes: _spent(axes, summary, history), lambda axes: _threshold(axes, history)]
    if any("client_rates" in line for line in history):
        panels.append(lambda axes: _rates(axes, history))
    if clients.get("rates"):
        panels.append(lambda axes: _rates_of_clients(axes, clients))
    if clients.get("sizes"):
        panels.append(lambda axes: _sizes(axes, clients))
    if clients.get("labels"):
        panels.append(lambda axes: _labels(axes, clients))
    columns = 2 if len(panels) in (2, 4) else 3
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 3.3 * rows), layout="constrained", squeeze=False
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        panel(axes)
        axes.set_title(axes.get_title(), fontsize=10)
        if axes.get_xlabel() in ("round", "rows of a client"):
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if axes.get_ylabel() == "clients":
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    void = "  (seeded: not a guarantee)" if summary.get("seeded") and summary["private"] else ""
    if "caveat" in summary:
        void += "\n" + summary["caveat"]
    local = summary["local"]["kind"].removeprefix("Local")
    figure.suptitle(
        f"{summary['data']}: {summary['algorithm']['kind']}, {local}, {summary['clients']} clients{void}"
    )
    save_figure(figure, folder / "report.png")
    pyplot.close(figure)


def _accuracy(axes: Axes, history: History) -> None:
    measures = {
        "test_accuracy": (BLUE, "test rows"),
        "holdout_accuracy": (GREY, "held-out clients"),
        "next_word_accuracy": (GREEN, "next words"),
    }
    for name, (color, label) in measures.items():
        lines = [line for line in history if name in line]
        if lines:
            axes.plot(
                [x["round"] for x in lines], [x[name] for x in lines], "o-", ms=3, color=color, label=label
            )
    axes.set(xlabel="round", ylabel="accuracy", title="Accuracy (not covered by any guarantee)")
    if axes.lines:
        axes.legend(frameon=False)
        axes.set_ylim(bottom=0)
    else:
        say(axes, "no test set")


def _cloud_norm(axes: Axes, history: History) -> None:
    norms = [float(line["cloud_norm"]) for line in history]
    axes.plot([line["round"] for line in history], norms, color=RED)
    axes.set(xlabel="round", ylabel="norm", title="Norm of the cloud parameters")
    if 0 < 30 * min(norms) < max(norms) < float("inf"):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def _spent(axes: Axes, summary: dict[str, Any], history: History) -> None:
    lines = [line for line in history if "epsilon" in line]
    axes.set(xlabel="round", ylabel="epsilon", title=f"Privacy spent, delta = {summary['delta']}, per user")
    if any(isinstance(line["epsilon"], str) for line in lines):
        say(axes, "not private\n(epsilon is infinite)")
        return
    axes.plot([line["round"] for line in lines], [line["epsilon"] for line in lines], color=RED)
    axes.set_ylim(bottom=0)


def _threshold(axes: Axes, history: History) -> None:
    lines = [line for line in history if "threshold" in line]
    axes.plot([line["round"] for line in lines], [line["threshold"] for line in lines], color=GREEN)
    axes.set(xlabel="round", ylabel="threshold", title="Clipping threshold")
    on_a_log_axis(axes, [line["threshold"] for line in lines])


def _rates(axes: Axes, history: History) -> None:
    lines = [line for line in history if "client_rates" in line]
    rounds = [line["round"] for line in lines]
    low, middle, high = zip(*(line["client_rates"] for line in lines), strict=True)
    axes.fill_between(rounds, low, high, color=GREEN, alpha=0.2, label="least to largest")
    axes.plot(rounds, middle, color=GREEN, label="median")
    axes.set(xlabel="round", ylabel="rate", title="Rates of the clients of a round")
    on_a_log_axis(axes, [*low, *high])
    axes.legend(frameon=False)


def _rates_of_clients(axes: Axes, clients: dict[str, Any]) -> None:
    axes.hist([float(rate) for rate in clients["rates"].values()], bins=12, color=GREEN)
    axes.set(xlabel="last rate", ylabel="clients", title="Rates of the clients at the end")


def _sizes(axes: Axes, clients: dict[str, Any]) -> None:
    axes.hist(clients["sizes"], bins=12, color=BLUE)
    axes.set(xlabel="rows of a client", ylabel="clients", title="Sizes of the clients")


def _labels(axes: Axes, clients: dict[str, Any]) -> None:
    import numpy as np

    counts = np.array(clients["labels"][:_SHOWN], dtype=float)
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    axes.grid(visible=False)
    axes.imshow(shares.T, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0, vmax=1)
    more = f", the first {_SHOWN}" if clients["clients"] > _SHOWN else ""
    axes.set(xlabel=f"client{more}", ylabel="label", title="Share of each label")
