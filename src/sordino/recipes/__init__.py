"""Published experiments beside their published numbers: one file for each, or for a family of them."""

from __future__ import annotations

from sordino.named import RECIPES as RECIPES

SUMMARIES: dict[str, str] = {name: entry.about for name, entry in RECIPES.entries.items()}
LISTED = SUMMARIES
