"""Adam, and Adam without second moments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.steps.rule import Field, Plan, Rate, State, StepResult, StepRule


@dataclass(frozen=True)
class Adam(StepRule):
    """Kingma and Ba's Adam on released gradients.

    Args:
        beta1: How much of the mean gradient is kept at each step.
        beta2: Likewise of the mean squared gradient.
        eps: Added to the root of the second moment.

    Guarantee: post-processing of released gradients, which costs no privacy.

    Reference: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    >>> from sordino import Fixed, Scheduled, method
    >>> method(clip=Fixed(1.0), step=Adam(), rate=Scheduled(1e-3)).describe()["step"]["beta2"]
    0.999
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    linear = False

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0):
            raise ValueError("Adam needs beta1 and beta2 in [0, 1) and eps > 0")

    def start(self, theta: Tensor, plan: Plan) -> State:
        return {"first": torch.zeros_like(theta), "second": torch.zeros_like(theta), "steps": 0}

    def step(
        self, field: Field, theta: Tensor, rate: Rate, state: State, limit: float = math.inf
    ) -> StepResult:
        released = field(theta)
        g, eta = released.gradient, rate(released)
        state["steps"] += 1
        t = state["steps"]
        first = state["first"].mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        second = state["second"].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        scale = (second / (1 - self.beta2**t)).sqrt_().add_(self.eps)
        direction = torch.div(first, scale.mul_(1 - self.beta1**t))
        theta.add_(direction, alpha=-eta)
        return StepResult((released,), eta, direction)


@dataclass(frozen=True)
class AdamWithoutSecondMoments(StepRule):
    """AdamWOSM: the second moment replaced by what it tends to under noise, its standard deviation.

    ``theta <- theta - rate / (nu C / B + 1e-8) * m_t / (1 - beta1^t)``

    Args:
        beta1: How much of the mean gradient is kept at each step.

    Guarantee: post-processing of released gradients, which costs no privacy.

    Reference: Mohapatra et al., "The role of adaptive optimizers for honest private hyperparameter
    selection", AAAI 2022.

    >>> from sordino import Constant, Quantile, method
    >>> method(clip=Quantile(), step=AdamWithoutSecondMoments(), rate=Constant(1e-3)).describe()["needs"]
    []
    """

    beta1: float = 0.9
    needs_rate = False
    scaled_by_noise = True
    linear = False

    def __post_init__(self) -> None:
        if not 0 <= self.beta1 < 1:
            raise ValueError(f"beta1 must be in [0, 1), not {self.beta1:g}")

    def check(self, noise_multiplier: float) -> None:
        if noise_multiplier == 0:
            raise ValueError(
                "adam_wosm divides its step by the noise and so needs some: without privacy use adam"
            )

    def start(self, theta: Tensor, plan: Plan) -> State:
        return {"first": torch.zeros_like(theta), "steps": 0}

    def step(
        self, field: Field, theta: Tensor, rate: Rate, state: State, limit: float = math.inf
    ) -> StepResult:
        released = field(theta)
        if released.noise_std == 0:
            raise ValueError(
                "adam_wosm divides its step by the noise and so needs some: use adam without privacy"
            )
        state["steps"] += 1
        first = state["first"].mul_(self.beta1).add_(released.gradient, alpha=1 - self.beta1)
        eta = rate(released)
        scale = (released.noise_std + 1e-8) * (1 - self.beta1 ** state["steps"])
        direction = first / scale
        theta.add_(direction, alpha=-eta)
        return StepResult((released,), eta, direction)
