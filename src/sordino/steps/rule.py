"""What a step rule is: it calls the field (the gate) at points of its choice and moves theta in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

State = dict[str, Any]  # tensors and numbers: a checkpoint holds it as it is


class Gradient(Protocol):
    """What a field returns; the gate's ``Released`` is one."""

    @property
    def gradient(self) -> Tensor: ...
    @property
    def noise_std(self) -> float: ...
    @property
    def threshold(self) -> float: ...
    @property
    def probes(self) -> Mapping[str, Any]: ...


class Field(Protocol):
    """A noisy gradient at theta, like the vector field an ODE solver calls."""

    def __call__(self, theta: Tensor, *, adapt: bool = True) -> Gradient: ...


@dataclass(frozen=True)
class StepResult:
    """What a step saw, for rate controllers: the released gradients, and an error estimate where there is one."""

    gradients: tuple[Gradient, ...]
    error: float | None = None


class StepRule(ABC):
    """A step rule. Settings are the fields of a frozen dataclass; what moves is a ``State``."""

    calls = 1  # of the field, in each step

    def check(self, noise_multiplier: float) -> None:
        """Raise ValueError if the rule cannot work with this noise."""
        return None

    @abstractmethod
    def start(self, theta: Tensor) -> State: ...

    @abstractmethod
    def step(self, field: Field, theta: Tensor, rate: float, state: State) -> StepResult:
        """Move ``theta`` and ``state`` in place."""
