"""Sordino: training where you get one try, private and federated."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.clipping import Fixed, Normalised, Online, PerLayer, Quantile, Unclipped
    from sordino.data import FixedOrder, Poisson, Shuffled
    from sordino.gate import Gate, Released
    from sordino.gradients import SlowGradients, replace_batchnorm
    from sordino.least_squares import LeastSquares
    from sordino.methods import (
        Method,
        adadp,
        adam,
        adam_wosm,
        auto,
        dp_adam,
        dp_dog,
        dp_ftrl,
        dp_sgd,
        method,
        oso,
        sgd,
    )
    from sordino.noise import Gaussian, Tree
    from sordino.privacy import Budget, Ledger
    from sordino.rates import Constant, DistanceOverGradients, Hypergradient, Scheduled, Tolerance, Travel
    from sordino.steps import Adam, AdamWithoutSecondMoments, Extrapolation, Ftrl, Sgd
    from sordino.training import Run, train
    from sordino.vector import ParameterVector

# Where each public name lives. Names load when first used, so that `sordino --help` need not import torch.
_HOMES = {
    "Adam": "sordino.steps",
    "AdamWithoutSecondMoments": "sordino.steps",
    "Budget": "sordino.privacy",
    "Constant": "sordino.rates",
    "DistanceOverGradients": "sordino.rates",
    "Extrapolation": "sordino.steps",
    "Fixed": "sordino.clipping",
    "FixedOrder": "sordino.data",
    "Ftrl": "sordino.steps",
    "Gate": "sordino.gate",
    "Gaussian": "sordino.noise",
    "Hypergradient": "sordino.rates",
    "LeastSquares": "sordino.least_squares",
    "Ledger": "sordino.privacy",
    "Method": "sordino.methods",
    "Normalised": "sordino.clipping",
    "Online": "sordino.clipping",
    "ParameterVector": "sordino.vector",
    "PerLayer": "sordino.clipping",
    "Poisson": "sordino.data",
    "Quantile": "sordino.clipping",
    "Released": "sordino.gate",
    "Run": "sordino.training",
    "Scheduled": "sordino.rates",
    "Sgd": "sordino.steps",
    "Shuffled": "sordino.data",
    "SlowGradients": "sordino.gradients",
    "Tolerance": "sordino.rates",
    "Travel": "sordino.rates",
    "Tree": "sordino.noise",
    "Unclipped": "sordino.clipping",
    "adadp": "sordino.methods",
    "adam": "sordino.methods",
    "adam_wosm": "sordino.methods",
    "auto": "sordino.methods",
    "dp_adam": "sordino.methods",
    "dp_dog": "sordino.methods",
    "dp_ftrl": "sordino.methods",
    "dp_sgd": "sordino.methods",
    "method": "sordino.methods",
    "oso": "sordino.methods",
    "replace_batchnorm": "sordino.gradients",
    "sgd": "sordino.methods",
    "train": "sordino.training",
}

__all__ = [
    "Adam",
    "AdamWithoutSecondMoments",
    "Budget",
    "Constant",
    "DistanceOverGradients",
    "Extrapolation",
    "Fixed",
    "FixedOrder",
    "Ftrl",
    "Gate",
    "Gaussian",
    "Hypergradient",
    "LeastSquares",
    "Ledger",
    "Method",
    "Normalised",
    "Online",
    "ParameterVector",
    "PerLayer",
    "Poisson",
    "Quantile",
    "Released",
    "Run",
    "Scheduled",
    "Sgd",
    "Shuffled",
    "SlowGradients",
    "Tolerance",
    "Travel",
    "Tree",
    "Unclipped",
    "adadp",
    "adam",
    "adam_wosm",
    "auto",
    "dp_adam",
    "dp_dog",
    "dp_ftrl",
    "dp_sgd",
    "method",
    "oso",
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
