"""Local steps of all participants at once: vector formulas on a matrix of parameter vectors, one row per client.

``field(x)`` gives the gradients of every row on its own next batch, offset and pull of the algorithm included. Rows that
are done (a client with fewer batches) are left as they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]
Field = Callable[[Tensor], Tensor]  # [P, d] -> [P, d]; every call draws a batch


class LocalRule(ABC):
    """A local step rule. Settings are the fields of a frozen dataclass."""

    batches_per_step = 1
    keeps_rate = False  # whether a client has a rate of its own that may outlive a round

    def start(self, x_Pd: Tensor, rates_P1: Tensor) -> State:
        return {"rates": rates_P1.clone()}

    @abstractmethod
    def step(self, field: Field, x_Pd: Tensor, active_P1: Tensor | None, state: State) -> None:
        """Move the active rows of x in place."""


@dataclass(frozen=True)
class LocalSgd(LocalRule):
    """x <- x - rate g, with heavy-ball momentum if asked for."""

    momentum: float = 0.0

    def step(self, field: Field, x_Pd: Tensor, active_P1: Tensor | None, state: State) -> None:
        gradients = field(x_Pd)
        if self.momentum:
            velocity = state.setdefault("velocity", torch.zeros_like(x_Pd))
            gradients = velocity.mul_(self.momentum).add_(gradients)
        rates = state["rates"] if active_P1 is None else state["rates"] * active_P1
        x_Pd.addcmul_(gradients, rates, value=-1)


@dataclass(frozen=True)
class LocalAdam(LocalRule):
    """Adam (Kingma and Ba, 2015), begun anew every round."""

    beta1: float = 0.9
    beta2: float = 0.999
    stability: float = 1e-8

    def step(self, field: Field, x_Pd: Tensor, active_P1: Tensor | None, state: State) -> None:
        gradients = field(x_Pd)
        state["steps"] = count = state.get("steps", 0) + 1
        first = state.setdefault("first", torch.zeros_like(x_Pd)).lerp_(gradients, 1 - self.beta1)
        second = state.setdefault("second", torch.zeros_like(x_Pd))
        second.mul_(self.beta2).addcmul_(gradients, gradients, value=1 - self.beta2)
        scale = math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
        rates = state["rates"] if active_P1 is None else state["rates"] * active_P1
        step = first / second.sqrt().add_(self.stability * math.sqrt(1 - self.beta2**count))
        x_Pd.addcmul_(step, rates, value=-scale)


@dataclass(frozen=True)
class LocalExtrapolation(LocalRule):
    """ADADP's step with a rate of its own for every client (Koskela and Honkela, 2020, adaptive federated averaging).

    A full step against two half steps; their distance, each coordinate relative to max(1, |full|), is the error, and the rate is
    multiplied by tol / error, within [0.9, 1.1]. A step whose error is above tol is taken back if ``discard``.
    """

    tol: float = 0.1
    discard: bool = True
    shrink: float = 0.9
    grow: float = 1.1
    batches_per_step = 2
    keeps_rate = True

    def step(self, field: Field, x_Pd: Tensor, active_P1: Tensor | None, state: State) -> None:
        rates = state["rates"]
        before = x_Pd.clone()
        first = field(x_Pd)
        x_Pd.addcmul_(first, rates, value=-0.5)
        second = field(x_Pd)
        x_Pd.addcmul_(second, rates, value=-0.5)
        full = torch.addcmul(before, first, rates, value=-1)
        size = full.abs().clamp_(min=1)
        error = full.sub_(x_Pd).div_(size).norm(dim=1, keepdim=True)
        factor = (self.tol / error).clamp(self.shrink, self.grow)
        active = torch.ones_like(rates, dtype=torch.bool) if active_P1 is None else active_P1.bool()
        kept = active & ((error <= self.tol) if self.discard else torch.ones_like(active))
        x_Pd.copy_(torch.where(kept, x_Pd, before))
        state["rates"] = torch.where(active, rates * factor.nan_to_num(self.shrink), rates)
