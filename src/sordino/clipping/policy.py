"""What a threshold policy is: how units are clipped, what else is asked about them, and how it adapts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sordino.gradients import Norms

State = dict[str, Any]  # numbers and tensors: a checkpoint holds it as it is


class Answer(Protocol):
    """What a policy may learn from: a released gradient and the probes released with it."""

    @property
    def gradient(self) -> Tensor: ...
    @property
    def probes(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Probe:
    """A further question about the batch, released beside the gradient; how they share noise is the mechanism's matter.

    A ``vector`` probe is one more weighted sum of gradients; otherwise it is a sum of one number per unit.
    The noise on the sum has standard deviation ``multiplier * sensitivity``.
    """

    name: str
    sensitivity: float
    multiplier: float
    vector: bool = False


class ClippingPolicy(ABC):
    """A threshold policy. Settings are the fields of a frozen dataclass; what moves is a ``State``."""

    adapts = False  # the threshold moves with what was released
    has_threshold = True  # False if gradients are scaled in another way
    needs_threshold = True  # the user has to give one (a mere starting point does not count)
    needs_linear_steps = False  # it follows the derivative of a step by the threshold
    compares_gradients = False  # of different batches, to move the threshold
    bounds = True  # every unit's contribution, so that noise can hide it
    by_layer = False  # it tells the layers of a model apart

    @abstractmethod
    def start(self, names: Sequence[str]) -> State:
        """The state before the first step, for parameters of these names."""

    @abstractmethod
    def sensitivity(self, state: State) -> float:
        """C: the largest norm one unit's clipped contribution can have. Infinity if it is unbounded."""

    @abstractmethod
    def weights(self, norms: Norms, state: State) -> Tensor:
        """Weights [K, U] or [K, P, U]; the first row clips, one further row for each vector probe."""

    def probes(self, noise_multiplier: float, expected_batch: float) -> tuple[Probe, ...]:
        return ()

    def numbers(self, norms: Norms, state: State) -> Tensor:
        """One row per scalar probe: each unit's number, [M, U]."""
        return norms.total_U.new_zeros(0, len(norms.total_U))

    def update(self, state: State, released: Sequence[Answer]) -> State:
        """The state for the next step, from what this step released: one answer, or several at one threshold."""
        return state


def clip_factors(norms_U: Tensor, threshold: float) -> Tensor:
    """min(1, C / norm), without dividing by zero."""
    return torch.clamp(norms_U, min=threshold).reciprocal_().mul_(threshold)


# Outside of these, squares and reciprocals of single-precision numbers vanish or overflow.
SMALLEST, LARGEST = 1e-12, 1e12


def bounded(threshold: float) -> float:
    return min(LARGEST, max(SMALLEST, threshold))


def check_threshold(threshold: float) -> None:
    if not SMALLEST <= threshold <= LARGEST:
        raise ValueError(f"a clipping threshold must be in [{SMALLEST:g}, {LARGEST:g}], not {threshold:g}")
