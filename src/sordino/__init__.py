"""Sordino: training where you get one try, private and federated."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.clipping import Fixed, PerLayer, Quantile, Unclipped
    from sordino.data import FixedOrder, Poisson, Shuffled
    from sordino.gate import Gate, Released
    from sordino.gradients import SlowGradients, replace_batchnorm
    from sordino.methods import Method, adam, adam_wosm, dp_adam, dp_sgd, sgd
    from sordino.privacy import Budget, Ledger
    from sordino.training import Run, train
    from sordino.vector import ParameterVector

# Where each public name lives. Names load when first used, so that `sordino --help` need not import torch.
_HOMES = {
    "Budget": "sordino.privacy",
    "Fixed": "sordino.clipping",
    "FixedOrder": "sordino.data",
    "Gate": "sordino.gate",
    "Ledger": "sordino.privacy",
    "Method": "sordino.methods",
    "ParameterVector": "sordino.vector",
    "PerLayer": "sordino.clipping",
    "Poisson": "sordino.data",
    "Quantile": "sordino.clipping",
    "Released": "sordino.gate",
    "Run": "sordino.training",
    "Shuffled": "sordino.data",
    "SlowGradients": "sordino.gradients",
    "Unclipped": "sordino.clipping",
    "adam": "sordino.methods",
    "adam_wosm": "sordino.methods",
    "dp_adam": "sordino.methods",
    "dp_sgd": "sordino.methods",
    "replace_batchnorm": "sordino.gradients",
    "sgd": "sordino.methods",
    "train": "sordino.training",
}

__all__ = [
    "Budget",
    "Fixed",
    "FixedOrder",
    "Gate",
    "Ledger",
    "Method",
    "ParameterVector",
    "PerLayer",
    "Poisson",
    "Quantile",
    "Released",
    "Run",
    "Shuffled",
    "SlowGradients",
    "Unclipped",
    "adam",
    "adam_wosm",
    "dp_adam",
    "dp_sgd",
    "replace_batchnorm",
    "sgd",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
