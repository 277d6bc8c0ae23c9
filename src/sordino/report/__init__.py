"""The figure of a run."""

from pathlib import Path
from typing import Any

from sordino.report.federated import draw_federated_report
from sordino.report.figure import draw_report


def drawn(summary: Any, history: Any, clients: Any = None) -> bytes:
    return b""


__all__ = ["Path", "draw_federated_report", "draw_report", "drawn"]
