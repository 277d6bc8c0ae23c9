"""Figures of runs."""

from sordino.report.figure import draw_report

__all__ = ["draw_report"]
