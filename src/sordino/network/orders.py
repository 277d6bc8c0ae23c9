"""What a node has to know to do a client's work: all of it public, and plain data on the wire.

Parts are told by name (`sordino.named`) and settings, and made again on the node: no code crosses the network.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from sordino.clipping.policy import ClippingPolicy
from sordino.data.inputs import Inputs, inputs_from_json
from sordino.federated.algorithms import Algorithm
from sordino.federated.local import LocalRule, OwnLoop
from sordino.federated.options import LocalTraining
from sordino.models import build_model, runs_code
from sordino.named import ALGORITHMS, CLIPS, LOCAL_RULES
from sordino.network.wire import Refused
from sordino.registry import Registry
from sordino.tasks import Task, classification, regression

_CLIPS = ("fixed", "quantile")  # what a client can do alone, and answer with a number
_TRAINING = ("local_epochs", "batch_size", "top_up", "max_examples", "rate", "decay", "keep_rates")


@dataclass(frozen=True)
class Orders:
    """How clients of a federation work. ``clip`` is None where nothing is promised."""

    model: str  # its name, as on the command line
    inputs: Inputs
    algorithm: Algorithm
    training: LocalTraining
    clip: ClippingPolicy | None

    def to_json(self) -> dict[str, Any]:
        """As plain data; raises ValueError for what has no name, and so cannot be told."""
        if isinstance(self.training.rule, OwnLoop):
            raise ValueError(
                "a loop of one's own cannot be told to nodes: choose a local rule that has a name"
            )
        return {
            "model": self.model,
            "inputs": self.inputs.to_json(),
            "algorithm": _told(ALGORITHMS, self.algorithm),
            "local": _told(LOCAL_RULES, self.training.rule),
            "training": {name: getattr(self.training, name) for name in _TRAINING},
            "clip": None if self.clip is None else _told(CLIPS, self.clip, _CLIPS),
        }

    @staticmethod
    def from_json(said: Any) -> Orders:
        """The inverse; anything that it could not have written raises `Refused`."""
        try:
            training = LocalTraining(local=_made(LOCAL_RULES, said["local"]), **dict(said["training"]))
            training.plan  # noqa: B018  # or refuse
            found = Orders(
                str(said["model"]),
                inputs_from_json(said["inputs"]),
                _made(ALGORITHMS, said["algorithm"]),
                training,
                None if said["clip"] is None else _made(CLIPS, said["clip"], _CLIPS),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise Refused("orders that this version does not know") from None
        if not isinstance(found.algorithm, Algorithm) or not isinstance(training.rule, LocalRule):
            raise Refused("orders that this version does not know")
        return found

    @property
    def runs_code(self) -> bool:
        """Whether building the model would import what its name says."""
        return runs_code(self.model)

    def built(self) -> nn.Module:
        return build_model(self.model, self.inputs.shape, self.inputs.target.outputs)

    @property
    def task(self) -> Task:
        return task_of(self.inputs)


def task_of(inputs: Inputs) -> Task:
    """What is learnt from such rows."""
    target = inputs.target
    return classification() if target.labels else regression(scale=target.half_range, limit=1.0)


def _told(registry: Registry, part: Any, names: tuple[str, ...] | None = None) -> list[Any]:
    """Name and settings of a part; settings that are no plain values stay where they are (a server's step rule)."""
    plain = {each.name: getattr(part, each.name) for each in fields(part)}
    settings = {
        name: value for name, value in plain.items() if isinstance(value, bool | int | float | str | None)
    }
    for name in names or tuple(registry):
        if type(part) is _class_of(registry[name]):
            return [name, settings]
    there = ", ".join(names or tuple(registry))
    raise ValueError(
        f"a {registry.kind} {type(part).__name__} cannot be told to nodes: choose one of {there}"
    )


def _made(registry: Registry, said: Any, names: tuple[str, ...] | None = None) -> Any:
    name, settings = said
    if (
        not isinstance(name, str)
        or name not in (names or tuple(registry))
        or not isinstance(settings, Mapping)
    ):
        raise ValueError(name)
    return registry.named(name, settings)


def _class_of(home: Any) -> Any:
    return home.func if isinstance(home, functools.partial) else home
