"""dp_accounting, whose names are looked up when they are first used: with scipy behind it, it loads for most of a
second, and much of what imports this package (a method, a wrong option, a figure) prices nothing."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "EpsilonDeltaDpEvent":  # our own
        value = importlib.import_module("sordino.privacy.epsilon_delta").EpsilonDeltaDpEvent
        globals()[name] = value
        return value
    package = importlib.import_module("dp_accounting")
    value = getattr(package, name) if hasattr(package, name) else getattr(package.dp_event, name)
    globals()[name] = value
    return value
