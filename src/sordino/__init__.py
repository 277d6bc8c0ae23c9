"""Sordino: training where you get one try, private and federated."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.clipping import Fixed, Normalised, Online, PerLayer, Quantile, Unclipped
    from sordino.data import FixedOrder, Poisson, Separated, Shuffled, WithoutReplacement
    from sordino.data.partitions import Dirichlet, Natural, Pathological, Random
    from sordino.federated import (
        AdaBest,
        Conditions,
        FedAdam,
        FedAvg,
        FedDyn,
        FedProx,
        LocalAdam,
        LocalExtrapolation,
        LocalSgd,
        OwnLoop,
        Population,
        Scaffold,
        ScaffoldM,
        federate,
    )
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
    from sordino.runs import Run
    from sordino.steps import Adam, AdamWithoutSecondMoments, Extrapolation, Ftrl, Sgd
    from sordino.training import train
    from sordino.vector import ParameterVector

# Where each public name lives. Names load when first used, so that `sordino --help` need not import torch.
_HOMES = {
    "AdaBest": "sordino.federated",
    "Adam": "sordino.steps",
    "AdamWithoutSecondMoments": "sordino.steps",
    "Budget": "sordino.privacy",
    "Conditions": "sordino.federated",
    "Constant": "sordino.rates",
    "Dirichlet": "sordino.data.partitions",
    "DistanceOverGradients": "sordino.rates",
    "Extrapolation": "sordino.steps",
    "FedAdam": "sordino.federated",
    "FedAvg": "sordino.federated",
    "FedDyn": "sordino.federated",
    "FedProx": "sordino.federated",
    "Fixed": "sordino.clipping",
    "FixedOrder": "sordino.data",
    "Ftrl": "sordino.steps",
    "Gate": "sordino.gate",
    "Gaussian": "sordino.noise",
    "Hypergradient": "sordino.rates",
    "LeastSquares": "sordino.least_squares",
    "Ledger": "sordino.privacy",
    "LocalAdam": "sordino.federated",
    "LocalExtrapolation": "sordino.federated",
    "LocalSgd": "sordino.federated",
    "Method": "sordino.methods",
    "Natural": "sordino.data.partitions",
    "Normalised": "sordino.clipping",
    "Online": "sordino.clipping",
    "OwnLoop": "sordino.federated",
    "ParameterVector": "sordino.vector",
    "Pathological": "sordino.data.partitions",
    "PerLayer": "sordino.clipping",
    "Poisson": "sordino.data",
    "Population": "sordino.federated",
    "Quantile": "sordino.clipping",
    "Random": "sordino.data.partitions",
    "Released": "sordino.gate",
    "Run": "sordino.runs",
    "Scaffold": "sordino.federated",
    "ScaffoldM": "sordino.federated",
    "Scheduled": "sordino.rates",
    "Separated": "sordino.data",
    "Sgd": "sordino.steps",
    "Shuffled": "sordino.data",
    "SlowGradients": "sordino.gradients",
    "Tolerance": "sordino.rates",
    "Travel": "sordino.rates",
    "Tree": "sordino.noise",
    "Unclipped": "sordino.clipping",
    "WithoutReplacement": "sordino.data",
    "adadp": "sordino.methods",
    "adam": "sordino.methods",
    "adam_wosm": "sordino.methods",
    "auto": "sordino.methods",
    "dp_adam": "sordino.methods",
    "dp_dog": "sordino.methods",
    "dp_ftrl": "sordino.methods",
    "dp_sgd": "sordino.methods",
    "federate": "sordino.federated",
    "method": "sordino.methods",
    "oso": "sordino.methods",
    "replace_batchnorm": "sordino.gradients",
    "sgd": "sordino.methods",
    "train": "sordino.training",
}

__all__ = [
    "AdaBest",
    "Adam",
    "AdamWithoutSecondMoments",
    "Budget",
    "Conditions",
    "Constant",
    "Dirichlet",
    "DistanceOverGradients",
    "Extrapolation",
    "FedAdam",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "Fixed",
    "FixedOrder",
    "Ftrl",
    "Gate",
    "Gaussian",
    "Hypergradient",
    "LeastSquares",
    "Ledger",
    "LocalAdam",
    "LocalExtrapolation",
    "LocalSgd",
    "Method",
    "Natural",
    "Normalised",
    "Online",
    "OwnLoop",
    "ParameterVector",
    "Pathological",
    "PerLayer",
    "Poisson",
    "Population",
    "Quantile",
    "Random",
    "Released",
    "Run",
    "Scaffold",
    "ScaffoldM",
    "Scheduled",
    "Separated",
    "Sgd",
    "Shuffled",
    "SlowGradients",
    "Tolerance",
    "Travel",
    "Tree",
    "Unclipped",
    "WithoutReplacement",
    "adadp",
    "adam",
    "adam_wosm",
    "auto",
    "dp_adam",
    "dp_dog",
    "dp_ftrl",
    "dp_sgd",
    "federate",
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
