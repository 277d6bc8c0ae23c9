"""Federated algorithms, each a small file of vector formulas."""

from sordino.federated.algorithms.adabest import AdaBest
from sordino.federated.algorithms.algorithm import Algorithm, Participants, Round, rate_of_round
from sordino.federated.algorithms.fedavg import FedAdam, FedAvg, FedProx
from sordino.federated.algorithms.feddyn import FedDyn
from sordino.federated.algorithms.named import ALGORITHMS, SERVERS, algorithm_named, server_named
from sordino.federated.algorithms.scaffold import Scaffold, ScaffoldM

__all__ = [
    "ALGORITHMS",
    "SERVERS",
    "AdaBest",
    "Algorithm",
    "FedAdam",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "Participants",
    "Round",
    "Scaffold",
    "ScaffoldM",
    "algorithm_named",
    "rate_of_round",
    "server_named",
]
