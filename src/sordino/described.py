"""Settings as plain data, for run.json: what a run was made of."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor


def described(part: Any) -> Any:
    """A frozen dataclass as plain data, its kind first; functions by name, arrays by their length alone.

    >>> from sordino.steps import Sgd
    >>> described(Sgd(momentum=0.9))
    {'kind': 'Sgd', 'momentum': 0.9, 'by_layer': False}
    """
    if is_dataclass(part) and not isinstance(part, type):
        return {
            "kind": type(part).__name__,
            **{f.name: described(getattr(part, f.name)) for f in fields(part)},
        }
    if isinstance(part, dict):
        return {key: described(value) for key, value in part.items()}
    if callable(part):
        return getattr(part, "__qualname__", type(part).__name__)
    if isinstance(part, (np.ndarray, Tensor)) or (
        isinstance(part, (list, tuple)) and any(isinstance(x, (np.ndarray, Tensor)) for x in part)
    ):
        return f"{len(part)} values"
    if isinstance(part, (list, tuple)):
        return [described(value) for value in part]
    return None if isinstance(part, float) and math.isnan(part) else part
