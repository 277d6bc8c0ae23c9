"""What a step rule is: it calls the field (the gate) at points of its choice and moves theta in place."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

State = dict[str, Any]  # tensors and numbers: a checkpoint holds it as it is


@dataclass(frozen=True)
class Plan:
    """The public numbers of a run, laid down before it starts: what rules and controllers may depend on."""

    parameters: int  # d
    steps: int  # of the step rule
    batches: int  # gate calls of all the steps together
    batches_per_epoch: float
    expected_batch: float  # B
    noise_multiplier: float
    size: float = 0.1  # of a typical parameter, see ParameterVector.size
    restart_steps: int | None = None  # after so many steps the noise begins anew
    sizes: tuple[tuple[int, float], ...] = ()  # of the parameters one by one: how many numbers, how large
    layers: int = 1  # weights behind one another, at most
    gathered: float | None = None  # noise in the sum of all gradients over that of one; None if independent


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


Field = Callable[[Tensor], Gradient]  # a noisy gradient at theta, like the vector field an ODE solver calls
Rate = Callable[[Gradient], float]  # the learning rate of the step whose first gradient this is


@dataclass(frozen=True)
class StepResult:
    """What a step saw and did, for rate controllers and thresholds: all of it is released already."""

    gradients: tuple[Gradient, ...]
    rate: float
    direction: Tensor  # theta moved by -rate times this, unless the step was taken back
    error: float | None = None  # where the rule can estimate one


class StepRule(ABC):
    """A step rule. Settings are the fields of a frozen dataclass; what moves is a ``State``."""

    estimates_error = False
    needs_rate = True  # False if the rule scales its own steps, so that its rate is a constant of the method
    scaled_by_noise = False  # the size of a step follows from the noise of a single release
    sums_gradients = (
        False  # theta follows the sum of all gradients so far, in which tree noise nearly cancels
    )
    linear = True  # a step is linear in the gradients, so that OSO's q is its derivative by the threshold

    @property
    def plain(self) -> bool:
        """Whether theta moves along the gradients of this step alone."""
        return self.linear

    @property
    def uses_every_gradient(self) -> bool:
        """Whether theta moves by all the gradients that were asked for."""
        return True

    def check(self, noise_multiplier: float) -> None:
        """Raise ValueError if the rule cannot work with this noise."""
        return None

    def steps(self, batches: int, batches_per_epoch: float) -> tuple[int, int]:
        """How many steps about ``batches`` batches make, and how many batches exactly those will draw."""
        return batches, batches

    @abstractmethod
    def start(self, theta: Tensor, plan: Plan) -> State: ...

    @abstractmethod
    def step(
        self, field: Field, theta: Tensor, rate: Rate, state: State, limit: float = math.inf
    ) -> StepResult:
        """Move ``theta`` and ``state`` in place; a step whose error is above ``limit`` is taken back."""
