"""The report as one HTML page: self-contained, without scripts, the same bytes for the same run."""

from __future__ import annotations

from sordino.report.html.kept import Kept
from sordino.report.html.page import comparison_page, recipe_page, run_page

__all__ = ["Kept", "comparison_page", "recipe_page", "run_page"]
