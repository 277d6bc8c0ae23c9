"""FedDyn (Acar et al., 2021): each client's objective is corrected by what it missed so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.federated.algorithms.algorithm import Algorithm, Participants, Round, State, check_not_negative
from sordino.federated.algorithms.progressive import average_examples, start_average, update_average
from sordino.steps import Plan


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Each client's objective is corrected by what it missed so far.

    ``gradient - h_i - mu (theta - x);  h_i += mu g_i;  h += |P|/|S| mean g;  theta <- mean model - h``

    Unbalanced clients have mu_i = mu / w_i, w_i their examples over the population's mean. (mu_i belongs
    into h_i: only so is h_i the gradient at which the client stopped.)

    Args:
        mu: How strongly clients are drawn back and corrected.
        progressive: Weigh by AdaBest's average size of all participations so far in place of the
            population's mean.

    Reference: Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.

    >>> FedDyn(mu=0.02).client_vectors
    ('h',)
    """

    mu: float = 0.02
    progressive: bool = False
    client_vectors = ("h",)
    told = ("mean_examples",)

    def __post_init__(self) -> None:
        check_not_negative(mu=self.mu)

    def start(self, theta: Tensor, plan: Plan, mean_examples: float | None = None) -> State:
        average = start_average(mean_examples) if self.progressive else {}
        return {"h": torch.zeros_like(theta)} | average

    def pull(self, who: Participants, server: State, now: Round) -> Tensor:
        return self.mu * average_examples(self.progressive, who, server, now) / who.examples

    def offset(self, who: Participants, server: State, now: Round) -> Tensor:
        return -who.states["h"]

    def client_update(
        self, who: Participants, update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
        return {"h": torch.addcmul(who.states["h"], self.pull(who, server, now), update)}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        server["h"].add_(mean["update"], alpha=now.participants / now.clients)
        theta.sub_(mean["update"]).sub_(server["h"])

    def seen(self, server: State, examples: Sequence[float]) -> None:
        if self.progressive:
            update_average(server, examples)
