"""A module's trainable parameters as views of one contiguous float32 vector.

To every algorithm a model is one vector ``theta`` in R^d. The parameters stay the objects they were, so
optimisers, state dicts and ordinary training keep working; only their storage moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slot:
    """Where one parameter lives in the vector."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int


class ParameterVector:
    """The trainable parameters of ``model`` as one vector, ``theta``.

    Frozen parameters stay out and tied parameters count once. A parameter that stops being a view (after
    ``model.to(...)``, ``load_state_dict(assign=True)`` or a replaced layer) is an error at the next
    ``check()``, which every gate call makes: training never stops silently.

    Args:
        model: Its trainable parameters become views of ``theta``; they are float32 and on one device.

    >>> model = nn.Linear(2, 3)
    >>> vector = ParameterVector(model)
    >>> vector.theta.shape
    torch.Size([9])
    >>> _ = vector.theta.zero_()
    >>> model.bias.tolist()
    [0.0, 0.0, 0.0]
    """

    def __init__(self, model: nn.Module) -> None:
        named = _trainable(model)
        if not named:
            raise ValueError(
                "the model has no trainable parameters: set requires_grad=True on what should be trained"
            )
        wrong = [name for name, p in named if p.dtype != torch.float32]
        if wrong:
            raise ValueError(
                f"parameter {wrong[0]!r} is {dict(named)[wrong[0]].dtype}, not float32: call model.float() first"
            )
        devices = {p.device for _, p in named}
        if len(devices) > 1:
            raise ValueError(
                "the trainable parameters lie on several devices: move the model to one with model.to(...)"
            )
        self.model = model
        self.slots: list[Slot] = []
        start = 0
        for name, parameter in named:
            self.slots.append(Slot(name, parameter, start, start + parameter.numel()))
            start += parameter.numel()
        existing = _existing_vector(self.slots)
        self.theta = (
            existing
            if existing is not None
            else torch.empty(start, dtype=torch.float32, device=next(iter(devices)))
        )
        if existing is None:
            with torch.no_grad():
                for slot, view in self.split(self.theta):
                    view.copy_(slot.parameter)
                    slot.parameter.data = view
        self._structure = _structure(model)
        self._frozen = [p for p in model.parameters() if not p.requires_grad]

    def __len__(self) -> int:
        return self.theta.numel()

    @property
    def size(self) -> float:
        """A scale for the parameters, from their shapes alone. It is the root mean square of 1/sqrt(fan-in).

        Linear layers and convolutions start at about this size. Vectors (biases, scales) do not count; a model of
        nothing else has size 0.1. An embedding counts as a matrix, though torch starts it at size 1.
        """
        shapes = [slot.parameter.shape for slot in self.slots if slot.parameter.dim() > 1]
        # numel / fan-in is the length of the first dimension.
        return math.sqrt(sum(s[0] for s in shapes) / sum(s.numel() for s in shapes)) if shapes else 0.1

    @property
    def sizes(self) -> tuple[tuple[int, float], ...]:
        """How many numbers each parameter has, and their scale: by it layers of a model are told apart.

        Of weights it is the one they have now, in the measure of ``size`` (torch's layers start at 1/sqrt(fan-in)), so
        that a model with scales of its own keeps them; of those that are all but 0, a tenth of 1/sqrt(fan-in) or
        more. A bias has that of the weights it stands beside, and any other vector that of the smallest weights.
        """
        weights = {slot.name: _scale(slot.parameter) for slot in self.slots if slot.parameter.dim() > 1}
        least = min(weights.values(), default=self.size)
        beside = {name.rpartition(".")[0]: scale for name, scale in reversed(weights.items())}
        return tuple(
            (
                slot.parameter.numel(),
                weights.get(slot.name, beside.get(slot.name.rpartition(".")[0], least)),
            )
            for slot in self.slots
        )

    @property
    def layers(self) -> int:
        """How many parameters are weights, that is not vectors: a bound on how many stand behind one another."""
        return max(1, sum(slot.parameter.dim() > 1 for slot in self.slots))

    def split(self, vector: Tensor) -> Iterator[tuple[Slot, Tensor]]:
        """The parts of ``vector`` in the shape of each parameter, as views."""
        for slot in self.slots:
            yield slot, vector[slot.start : slot.stop].view(slot.parameter.shape)

    def check(self) -> None:
        """Raise if the module's trainable parameters are no longer exactly the views of this vector."""
        base = self.theta.data_ptr()
        for slot in self.slots:
            parameter = slot.parameter
            if parameter.data_ptr() != base + 4 * slot.start or not parameter.is_contiguous():
                raise ValueError(_detached(slot.name))
        if any(len(table) != size for table, size, _ in self._structure) or any(
            table.get(key) is not value for table, _, items in self._structure for key, value in items
        ):
            self._raise_difference()
        for slot in self.slots:
            if not slot.parameter.requires_grad:
                raise ValueError(f"parameter {slot.name!r} was frozen after wrapping: freeze it before")
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise ValueError("a frozen parameter was unfrozen after wrapping: wrap the model again")

    def _raise_difference(self) -> None:
        now = dict(_trainable(self.model))
        for slot in self.slots:
            if now.get(slot.name) is not slot.parameter:
                raise ValueError(_detached(slot.name))
        added = sorted(set(now) - {slot.name for slot in self.slots})
        if added:
            raise ValueError(f"parameter {added[0]!r} was added after wrapping: wrap the model again")
        # Something that holds nothing trainable has changed.
        self._structure = _structure(self.model)
        self._frozen = [p for p in self.model.parameters() if not p.requires_grad]


def _existing_vector(slots: list[Slot]) -> Tensor | None:
    """The vector these parameters are already views of, so that a model can be wrapped twice."""
    first = slots[0].parameter
    storage = first.untyped_storage().data_ptr()
    for slot in slots:
        parameter = slot.parameter
        if (
            not parameter.is_contiguous()
            or parameter.untyped_storage().data_ptr() != storage
            or parameter.storage_offset() != first.storage_offset() + slot.start
        ):
            return None
    return first.detach().as_strided((slots[-1].stop,), (1,))


def _scale(weights: Tensor) -> float:
    """sqrt(3) times the root mean square, which for numbers drawn evenly between -a and a is a."""
    fan_in = max(1, weights.numel()) / max(1, weights.shape[0])
    now = math.sqrt(3 * float(weights.detach().square().mean())) if weights.numel() else 0.0
    if now == 0 or not math.isfinite(now):
        return 1 / math.sqrt(fan_in)
    return max(now, 0.1 / math.sqrt(fan_in))


def _trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    # named_parameters() already counts a tied parameter once.
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def _detached(name: str) -> str:
    return (
        f"parameter {name!r} is no longer part of the training vector (was the model moved with .to(), loaded "
        "with assign=True, or a layer replaced?): do that before wrapping, or wrap the model again"
    )


def _structure(model: nn.Module) -> list[tuple[dict[str, Any], int, list[tuple[str, Any]]]]:
    """Every table of children and parameters below ``model``, and what is in it: cheap to compare each call."""
    tables = [table for module in model.modules() for table in (module._parameters, module._modules)]
    return [(table, len(table), list(table.items())) for table in tables]


@contextmanager
def holding(live: Tensor, theta: Tensor | None) -> Iterator[None]:
    """The live vector at ``theta`` for a while, and then as it was; nothing moves if they are the same or None."""
    if theta is not None and theta.shape != live.shape:
        raise ValueError(f"theta must have shape {tuple(live.shape)}, not {tuple(theta.shape)}")
    if theta is None or theta.data_ptr() == live.data_ptr():
        yield
        return
    saved = live.clone()
    live.copy_(theta)
    try:
        yield
    finally:
        live.copy_(saved)
