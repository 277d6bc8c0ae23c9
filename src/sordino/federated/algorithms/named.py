"""Federated algorithms and servers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.federated.algorithms.algorithm import Algorithm
from sordino.named import ALGORITHMS as ALGORITHMS
from sordino.named import SERVERS as SERVERS
from sordino.steps import StepRule


def algorithm_named(name: str, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """The algorithm called ``name`` with some settings changed; unknown names and settings raise and say what there is.

    >>> algorithm_named("adabest", {"beta": 0.95})
    AdaBest(mu=0.02, beta=0.95)
    >>> algorithm_named("fedavg", {"server": "ftrlm"}).server
    Ftrl(momentum=0.9, radius=None, fresh_start=False)
    """
    found: Algorithm = ALGORITHMS.named(name, settings)
    return found


def server_named(name: str, settings: Mapping[str, Any] | None = None) -> StepRule:
    """The server's step rule of this name; ``dp-ftrlm`` is ``ftrlm``, as privacy is no matter of the step."""
    found: StepRule = SERVERS.named(name, settings)
    return found
