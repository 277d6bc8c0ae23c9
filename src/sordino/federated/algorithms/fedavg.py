"""Federated averaging (McMahan et al., 2017), alone, with a proximal term, and with Adam on the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.federated.algorithms.algorithm import Algorithm, Participants, Round, State


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """theta <- theta - server_rate * mean update, the mean weighted by numbers of examples."""

    server_rate: float = 1.0
    weighted: bool = True

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        theta.sub_(mean["update"], alpha=self.server_rate)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients are drawn back to where they started (Li et al., 2020)."""

    mu: float = 0.01

    def pull(self, who: Participants, server: State, now: Round) -> Tensor | None:
        return torch.full_like(who.examples, self.mu)


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """Adam on the server, the mean update for a gradient (Reddi et al., 2021)."""

    server_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    stability: float = 1e-3  # tau
    weighted: bool = True

    def start(self, theta: Tensor) -> State:
        return {"first": torch.zeros_like(theta), "second": torch.zeros_like(theta)}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        update = mean["update"]
        first = server["first"].lerp_(update, 1 - self.beta1)
        second = server["second"].mul_(self.beta2).addcmul_(update, update, value=1 - self.beta2)
        theta.addcdiv_(first, second.sqrt().add_(self.stability), value=-self.server_rate)
