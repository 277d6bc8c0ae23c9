"""OSO's controller: the rate descends its own derivative (Galli et al., AAAI 2024; Rubio, 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sordino.hypergradient import check_update, factor
from sordino.rates.controller import RateController, State, bounded, check_rate
from sordino.rates.travel import reach
from sordino.steps import Gradient, Plan, StepResult


@dataclass(frozen=True)
class Hypergradient(RateController):
    """OSO's rate: it descends its own derivative.

    The loss of a step falls with the rate of the step before if its gradient points along that step,
    u_(t-1): the gradient itself in SGD, the velocity under momentum.

    Args:
        learning_rate: Where it starts; in T steps it moves by at most e^(speed T). None starts where `Travel`
            does, ``D / (|g| sqrt(T))`` by the first gradient.
        speed: How far it moves in a step.
        update_by: ``"sign"``: rate <- rate * exp(speed * sign<g_t, u_(t-1)>); ``"cosine"``: rate <- rate
            * (1 + speed * cos), the paper's eq. 19.

    Guarantee: post-processing of released gradients, which costs no privacy.

    Reference: Galli, Palamidessi and Cucinotta, "Online sensitivity optimization in differentially private
    learning", AAAI 2024; Rubio, 2017.

    >>> from sordino import Online, Sgd, method
    >>> method(clip=Online(), step=Sgd(), rate=Hypergradient(0.3)).describe()["adapts"]
    ['learning_rate', 'threshold']
    """

    learning_rate: float | None = None  # rho_0
    speed: float = 2.5e-3  # rho_r
    update_by: str = "sign"
    adapts = True
    needs_independent_noise = True

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_rate(self.learning_rate)
        check_update(self.speed, self.update_by)

    @property
    def needs_rate(self) -> bool:  # type: ignore[override]
        return self.learning_rate is not None

    def start(self, plan: Plan, theta: Tensor) -> State:
        return {"reach": reach(plan)} if self.learning_rate is None else {"rate": self.learning_rate}

    def rate(self, step: int, state: State, gradient: Gradient) -> float:
        if "rate" in state:
            return float(state["rate"])
        norm = float(gradient.gradient.norm())
        return bounded(state["reach"] / norm) if norm > 0 and math.isfinite(norm) else 0.0

    def update(self, state: State, result: StepResult, theta: Tensor) -> State:
        rate = result.rate
        if rate == 0 and "rate" not in state:
            return state  # the first gradient was none: begin with the next
        # The last gradient against what was stepped along before it; under extrapolation that is the first half.
        previous = result.gradients[-2].gradient if len(result.gradients) > 1 else state.get("direction")
        if previous is not None:
            rate = bounded(rate * factor(result.gradients[-1].gradient, previous, self.speed, self.update_by))
        direction = result.direction
        if direction is not result.gradients[-1].gradient:
            direction = direction.clone()  # a velocity, which the next step will change
        return {"rate": rate, "direction": direction}
