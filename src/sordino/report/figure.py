"""report.png: how accuracy and epsilon went over training."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw_report(summary: dict[str, Any], history: list[dict[str, Any]], path: Path) -> None:
    """Draw the figure of one run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    epochs = [line["epoch"] for line in history]
    scored = [line for line in history if "test_accuracy" in line]
    measure = "test_accuracy" if scored else "test_loss"
    scored = [line for line in history if measure in line]
    left.plot(
        [line["epoch"] for line in scored], [line[measure] for line in scored], marker="o", color="#1b6ca8"
    )
    left.set(xlabel="epoch", ylabel=measure.replace("_", " "), title="On held-out rows (not covered)")
    if measure == "test_accuracy":
        left.set_ylim(0, 1)
    if not scored:
        left.text(0.5, 0.5, "no test set", ha="center", va="center", transform=left.transAxes)
    spent = [line["epsilon"] for line in history]
    if any(isinstance(value, str) for value in spent):
        right.text(
            0.5,
            0.5,
            "not private\n(epsilon is infinite)",
            ha="center",
            va="center",
            transform=right.transAxes,
        )
    else:
        right.plot(epochs, spent, color="#b8442c")
        right.set_ylim(bottom=0)
    delta = summary.get("delta")
    title = "Privacy spent" if delta is None else f"Privacy spent, delta = {delta:g}, per {summary['unit']}"
    right.set(xlabel="epoch", ylabel="epsilon", title=title)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    void = "  (seeded: not a guarantee)" if summary.get("seeded") else ""
    if "caveat" in summary:
        void += "\n" + summary["caveat"]
    figure.suptitle(f"{summary['data']}: {summary['method']['name']}{void}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
