"""A live line on stderr: how far, at which rate and threshold, and what has been spent."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from sordino.privacy import show_epsilon


class TrainingBar:
    """A progress bar for a training run; silent when ``show`` is False."""

    def __init__(self, total: int, show: bool) -> None:
        self._progress = Progress(
            BarColumn(bar_width=12),  # narrow: the figures are what is read
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=len(f"{total}/{total}"))),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
            TextColumn("{task.fields[facts]}"),
            console=Console(file=sys.stderr),
            disable=not show,
            refresh_per_second=5,
        )
        self._task = self._progress.add_task("training", total=total, facts="")

    def update(self, step: int, facts: dict[str, Any] | None = None) -> None:
        if facts is None:
            self._progress.update(self._task, completed=step)
        else:
            shown = "  ".join(f"{name} {value}" for name, value in facts.items())
            self._progress.update(self._task, completed=step, facts=shown)

    def __enter__(self) -> TrainingBar:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)


def shown(line: Mapping[str, Any]) -> dict[str, str]:
    """What of a line of the history goes onto the screen."""
    facts = {name.replace("_", " "): f"{line[name]:.3g}" for name in ("rate", "cloud_norm") if name in line}
    if line.get("threshold") is not None:
        facts["threshold"] = f"{line['threshold']:.3g}"
    if "epsilon" in line:
        spent = float(line["epsilon"])
        shown_epsilon = "inf" if math.isinf(spent) else show_epsilon(spent, 3)
        facts["epsilon"] = shown_epsilon + (" (no guarantee)" if "caveat" in line else "")
    accuracy = next((name for name in line if name.startswith("test_") and name.endswith("accuracy")), None)
    if accuracy is not None:
        facts["accuracy"] = f"{line[accuracy]:.1%}"
    if "loss" in line:
        facts["loss (unprotected)"] = f"{line['loss']:.3g}"
    if "client_rates" in line:
        facts["client rates"] = "{:.2g} to {:.2g}".format(line["client_rates"][0], line["client_rates"][-1])
    if "left_out" in line:
        facts["left out"] = str(len(line["left_out"]))
    return facts
