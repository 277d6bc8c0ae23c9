"""Warnings that point at the line of the user's that called us."""

from __future__ import annotations

import sys
import warnings


def warn(text: str) -> None:
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("sordino.", "contextlib")
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
