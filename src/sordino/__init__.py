"""Sordino: training where you get one try, private and federated.

A public name is a line for type checkers and a line that says where it lives; a test compares them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.clipping import Fixed as Fixed
    from sordino.clipping import Normalised as Normalised
    from sordino.clipping import Online as Online
    from sordino.clipping import PerLayer as PerLayer
    from sordino.clipping import Quantile as Quantile
    from sordino.clipping import Unclipped as Unclipped
    from sordino.data import Column as Column
    from sordino.data import Cyclic as Cyclic
    from sordino.data import FixedOrder as FixedOrder
    from sordino.data import Poisson as Poisson
    from sordino.data import Schema as Schema
    from sordino.data import Separated as Separated
    from sordino.data import Shuffled as Shuffled
    from sordino.data import TargetColumn as TargetColumn
    from sordino.data import WithoutReplacement as WithoutReplacement
    from sordino.data import read as read
    from sordino.data.partitions import Dirichlet as Dirichlet
    from sordino.data.partitions import Natural as Natural
    from sordino.data.partitions import Pathological as Pathological
    from sordino.data.partitions import Random as Random
    from sordino.estimators import SordinoClassifier as SordinoClassifier
    from sordino.estimators import SordinoRegressor as SordinoRegressor
    from sordino.estimators import check_pipeline as check_pipeline
    from sordino.exporting import export as export
    from sordino.federated import AdaBest as AdaBest
    from sordino.federated import Conditions as Conditions
    from sordino.federated import FedAdam as FedAdam
    from sordino.federated import FedAvg as FedAvg
    from sordino.federated import FedDyn as FedDyn
    from sordino.federated import FedProx as FedProx
    from sordino.federated import LocalAdam as LocalAdam
    from sordino.federated import LocalExtrapolation as LocalExtrapolation
    from sordino.federated import LocalSgd as LocalSgd
    from sordino.federated import OwnLoop as OwnLoop
    from sordino.federated import Population as Population
    from sordino.federated import Scaffold as Scaffold
    from sordino.federated import ScaffoldM as ScaffoldM
    from sordino.federated import federate as federate
    from sordino.gate import Gate as Gate
    from sordino.gate import Released as Released
    from sordino.gradients import SlowGradients as SlowGradients
    from sordino.gradients import replace_batchnorm as replace_batchnorm
    from sordino.least_squares import LeastSquares as LeastSquares
    from sordino.ledger import Account as Account
    from sordino.ledger import LedgerFile as LedgerFile
    from sordino.live import MLflow as MLflow
    from sordino.live import TensorBoard as TensorBoard
    from sordino.methods import Method as Method
    from sordino.methods import adadp as adadp
    from sordino.methods import adam as adam
    from sordino.methods import adam_wosm as adam_wosm
    from sordino.methods import auto as auto
    from sordino.methods import dp_adam as dp_adam
    from sordino.methods import dp_dog as dp_dog
    from sordino.methods import dp_ftrl as dp_ftrl
    from sordino.methods import dp_sgd as dp_sgd
    from sordino.methods import method as method
    from sordino.methods import oso as oso
    from sordino.methods import sgd as sgd
    from sordino.noise import Banded as Banded
    from sordino.noise import Buffered as Buffered
    from sordino.noise import Gaussian as Gaussian
    from sordino.noise import Tree as Tree
    from sordino.own_loop import PrivateLoop as PrivateLoop
    from sordino.own_loop import make_private as make_private
    from sordino.privacy import Budget as Budget
    from sordino.privacy import Ledger as Ledger
    from sordino.privacy import approximate as approximate
    from sordino.privacy.selection import Stopping as Stopping
    from sordino.rates import Constant as Constant
    from sordino.rates import DistanceOverGradients as DistanceOverGradients
    from sordino.rates import Hypergradient as Hypergradient
    from sordino.rates import Scheduled as Scheduled
    from sordino.rates import Tolerance as Tolerance
    from sordino.rates import Travel as Travel
    from sordino.run_auditing import RunAudit as RunAudit
    from sordino.run_auditing import audit_federation as audit_federation
    from sordino.run_auditing import audit_run as audit_run
    from sordino.runs import Run as Run
    from sordino.runs import Seen as Seen
    from sordino.runs.before import Before as Before
    from sordino.steps import Adam as Adam
    from sordino.steps import AdamWithoutSecondMoments as AdamWithoutSecondMoments
    from sordino.steps import Extrapolation as Extrapolation
    from sordino.steps import Ftrl as Ftrl
    from sordino.steps import Sgd as Sgd
    from sordino.tasks import Metric as Metric
    from sordino.tasks import Task as Task
    from sordino.tasks import classification as classification
    from sordino.tasks import evaluate as evaluate
    from sordino.tasks import next_words as next_words
    from sordino.tasks import reconstruction as reconstruction
    from sordino.tasks import regression as regression
    from sordino.trained import Trained as Trained
    from sordino.trained import load as load
    from sordino.training import train as train
    from sordino.tuning import abandon as abandon
    from sordino.tuning import tune as tune
    from sordino.vector import ParameterVector as ParameterVector
    from sordino.verifying import verify as verify

    __version__: str

# Names load when first used, so that `sordino --help` need not import torch.
_HOMES = {
    "Account": "sordino.ledger",
    "AdaBest": "sordino.federated",
    "Adam": "sordino.steps",
    "AdamWithoutSecondMoments": "sordino.steps",
    "Banded": "sordino.noise",
    "Before": "sordino.runs.before",
    "Budget": "sordino.privacy",
    "Buffered": "sordino.noise",
    "Column": "sordino.data",
    "Conditions": "sordino.federated",
    "Constant": "sordino.rates",
    "Cyclic": "sordino.data",
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
    "LedgerFile": "sordino.ledger",
    "LocalAdam": "sordino.federated",
    "LocalExtrapolation": "sordino.federated",
    "LocalSgd": "sordino.federated",
    "MLflow": "sordino.live",
    "Method": "sordino.methods",
    "Metric": "sordino.tasks",
    "Natural": "sordino.data.partitions",
    "Normalised": "sordino.clipping",
    "Online": "sordino.clipping",
    "OwnLoop": "sordino.federated",
    "ParameterVector": "sordino.vector",
    "Pathological": "sordino.data.partitions",
    "PerLayer": "sordino.clipping",
    "Poisson": "sordino.data",
    "Population": "sordino.federated",
    "PrivateLoop": "sordino.own_loop",
    "Quantile": "sordino.clipping",
    "Random": "sordino.data.partitions",
    "Released": "sordino.gate",
    "Run": "sordino.runs",
    "RunAudit": "sordino.run_auditing",
    "Scaffold": "sordino.federated",
    "ScaffoldM": "sordino.federated",
    "Scheduled": "sordino.rates",
    "Schema": "sordino.data",
    "Seen": "sordino.runs",
    "Separated": "sordino.data",
    "Sgd": "sordino.steps",
    "Shuffled": "sordino.data",
    "SlowGradients": "sordino.gradients",
    "SordinoClassifier": "sordino.estimators",
    "SordinoRegressor": "sordino.estimators",
    "Stopping": "sordino.privacy.selection",
    "TargetColumn": "sordino.data",
    "Task": "sordino.tasks",
    "TensorBoard": "sordino.live",
    "Tolerance": "sordino.rates",
    "Trained": "sordino.trained",
    "Travel": "sordino.rates",
    "Tree": "sordino.noise",
    "Unclipped": "sordino.clipping",
    "WithoutReplacement": "sordino.data",
    "abandon": "sordino.tuning",
    "adadp": "sordino.methods",
    "adam": "sordino.methods",
    "adam_wosm": "sordino.methods",
    "approximate": "sordino.privacy",
    "audit_federation": "sordino.run_auditing",
    "audit_run": "sordino.run_auditing",
    "auto": "sordino.methods",
    "check_pipeline": "sordino.estimators",
    "classification": "sordino.tasks",
    "dp_adam": "sordino.methods",
    "dp_dog": "sordino.methods",
    "dp_ftrl": "sordino.methods",
    "dp_sgd": "sordino.methods",
    "evaluate": "sordino.tasks",
    "export": "sordino.exporting",
    "federate": "sordino.federated",
    "load": "sordino.trained",
    "make_private": "sordino.own_loop",
    "method": "sordino.methods",
    "next_words": "sordino.tasks",
    "oso": "sordino.methods",
    "read": "sordino.data",
    "reconstruction": "sordino.tasks",
    "regression": "sordino.tasks",
    "replace_batchnorm": "sordino.gradients",
    "sgd": "sordino.methods",
    "train": "sordino.training",
    "tune": "sordino.tuning",
    "verify": "sordino.verifying",
}

__all__ = sorted(_HOMES)


if not TYPE_CHECKING:  # who would take every name for granted

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("sordino")
        if name not in _HOMES:
            raise AttributeError(f"module 'sordino' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
