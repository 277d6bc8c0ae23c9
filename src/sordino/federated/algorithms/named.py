"""Federated algorithms by name, for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sordino.federated.algorithms.adabest import AdaBest
from sordino.federated.algorithms.algorithm import Algorithm
from sordino.federated.algorithms.fedavg import FedAdam, FedAvg, FedProx
from sordino.federated.algorithms.feddyn import FedDyn
from sordino.federated.algorithms.scaffold import Scaffold, ScaffoldM
from sordino.steps import Adam, Ftrl, Sgd, StepRule

ALGORITHMS: dict[str, type[Algorithm]] = {
    "adabest": AdaBest,
    "fedadam": FedAdam,
    "fedavg": FedAvg,
    "feddyn": FedDyn,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "scaffold-m": ScaffoldM,
}

SERVERS: dict[str, StepRule] = {
    "adam": Adam(),
    "ftrl": Ftrl(),
    "ftrlm": Ftrl(momentum=0.9),
    "sgd": Sgd(),
    "sgdm": Sgd(momentum=0.9),
}


def algorithm_named(name: str, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """The algorithm called ``name`` with some settings changed; unknown names and settings raise and say what there is.

    >>> algorithm_named("adabest", {"beta": 0.95})
    AdaBest(mu=0.02, beta=0.95)
    >>> algorithm_named("fedavg", {"server": "ftrlm"}).server
    Ftrl(momentum=0.9, radius=None, fresh_start=False)
    """
    key = name.replace("_", "-")
    if key not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {name!r}: choose one of {', '.join(sorted(ALGORITHMS))}")
    kinds = {each.name: str(each.type) for each in fields(ALGORITHMS[key])}  # type: ignore[arg-type]
    found = dict(settings or {})
    for setting, value in found.items():
        if setting not in kinds:
            raise ValueError(f"{key} has no setting {setting!r}: it has {', '.join(kinds) or 'none'}")
        if setting == "server":
            found[setting] = server_named(value)
        elif kinds[setting] == "bool" and not isinstance(value, bool):
            raise ValueError(f"{setting} must be true or false, not {value!r}")
        elif kinds[setting] == "float" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{setting} must be a number, not {value!r}")
    return ALGORITHMS[key](**found)


def server_named(name: str | StepRule) -> StepRule:
    """The server's step rule of this name; ``dp-ftrlm`` is ``ftrlm``, as privacy is no matter of the step."""
    if isinstance(name, StepRule):
        return name
    key = str(name).removeprefix("dp-")
    if key not in SERVERS:
        raise ValueError(f"there is no server {name!r}: choose one of {', '.join(sorted(SERVERS))}")
    return SERVERS[key]
