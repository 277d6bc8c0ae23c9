"""Figures of runs."""

from sordino.report.federated import draw_federated_report
from sordino.report.figure import draw_report

__all__ = ["draw_federated_report", "draw_report"]
