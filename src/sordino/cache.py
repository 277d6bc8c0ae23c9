"""Where this user's programs keep what they can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """`sordino` in XDG_CACHE_HOME, by default in ~/.cache. It need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "sordino"
