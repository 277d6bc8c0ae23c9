"""Federated learning: algorithms, clients that tune themselves, user-level privacy, in one fast simulation."""

from sordino.federated.algorithms import AdaBest, FedAdam, FedAvg, FedDyn, FedProx, Scaffold, ScaffoldM
from sordino.federated.conditions import Conditions
from sordino.federated.federation import federate
from sordino.federated.local import LocalAdam, LocalExtrapolation, LocalSgd, OwnLoop
from sordino.federated.population import Population
from sordino.federated.process import SeenRound

__all__ = [
    "AdaBest",
    "Conditions",
    "FedAdam",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "LocalAdam",
    "LocalExtrapolation",
    "LocalSgd",
    "OwnLoop",
    "Population",
    "Scaffold",
    "ScaffoldM",
    "SeenRound",
    "federate",
]
