"""Federated averaging (McMahan et al., 2017), alone, with a proximal term, and with Adam on the server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sordino.federated.algorithms.algorithm import (
    Algorithm,
    Participants,
    Round,
    State,
    check_not_negative,
    check_positive,
)
from sordino.steps import Plan, Sgd, StepRule


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging: ``theta <- theta - server_rate * mean update``.

    Args:
        server: The step rule that takes the mean update for a gradient; with ``Ftrl(momentum=0.9)`` it is
            DP-FTRLM.
        server_rate: The server's rate.
        weighted: Weigh clients by their numbers of examples; under user-level privacy a client counts as a
            client.

    Reference: McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
    AISTATS 2017.

    >>> FedAvg().client_vectors, FedAvg().sent_vectors  # what a client keeps and what it sends
    ((), ('update',))
    """

    server: StepRule = Sgd()  # noqa: RUF009 -- frozen
    server_rate: float = 1.0
    weighted: bool = True

    def __post_init__(self) -> None:
        check_positive(server_rate=self.server_rate)
        if self.server.estimates_error or self.server.scaled_by_noise:
            raise ValueError(
                f"a server has one mean update a round and {type(self.server).__name__} asks for more, a second one or "
                "the size of its noise: use Sgd, Adam or Ftrl"
            )

    @property
    def linear_server(self) -> bool:
        return self.server.linear

    def start(self, theta: Tensor, plan: Plan, mean_examples: float | None = None) -> State:
        return {"step": self.server.start(theta, plan)}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        answer = _MeanUpdate(mean["update"])
        self.server.step(lambda _: answer, theta, lambda _: self.server_rate, server["step"])


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients are drawn back to where they started.

    Args:
        server: The step rule that takes the mean update for a gradient; with ``Ftrl(momentum=0.9)`` it is
            DP-FTRLM.
        server_rate: The server's rate.
        weighted: Weigh clients by their numbers of examples; under user-level privacy a client counts as a
            client.
        mu: How strongly: mu (x - theta) is added to every local gradient.

    Reference: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

    >>> FedProx(mu=0.1).client_vectors
    ()
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(mu=self.mu)

    def pull(self, who: Participants, server: State, now: Round) -> Tensor | None:
        return torch.full_like(who.examples, self.mu)


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """Adam on the server, the mean update for a gradient, without correction of the first steps.

    ``first <- beta1 first + (1 - beta1) g;  second <- beta2 second + (1 - beta2) g^2;``
    ``theta <- theta - server_rate first / (sqrt(second) + stability)``

    Args:
        server_rate: The server's rate.
        beta1: How much of the mean update is kept each round.
        beta2: Likewise of the mean squared update.
        stability: Added to the root of the second moment (tau).
        weighted: Weigh clients by their numbers of examples; under user-level privacy a client counts as a
            client.

    Reference: Reddi et al., "Adaptive federated optimization", ICLR 2021.

    >>> FedAdam(server_rate=0.03).beta2
    0.99
    """

    server_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    stability: float = 1e-3  # tau
    weighted: bool = True
    linear_server = False

    def __post_init__(self) -> None:
        check_positive(server_rate=self.server_rate, stability=self.stability)
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"beta1 and beta2 must be in [0, 1), not {self.beta1:g} and {self.beta2:g}")

    def start(self, theta: Tensor, plan: Plan, mean_examples: float | None = None) -> State:
        return {"first": torch.zeros_like(theta), "second": torch.zeros_like(theta)}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        update = mean["update"]
        first = server["first"].lerp_(update, 1 - self.beta1)
        second = server["second"].mul_(self.beta2).addcmul_(update, update, value=1 - self.beta2)
        theta.addcdiv_(first, second.sqrt().add_(self.stability), value=-self.server_rate)


@dataclass(frozen=True)
class _MeanUpdate:
    """The mean update as what a step rule asks for; its noise and threshold are the gate's business."""

    gradient: Tensor
    noise_std: float = 0.0
    threshold: float = math.inf
    probes: Mapping[str, Any] = field(default_factory=dict)
