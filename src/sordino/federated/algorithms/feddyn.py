"""FedDyn (Acar et al., 2021): each client's objective is corrected by what it missed so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.federated.algorithms.algorithm import Algorithm, Participants, Round, State


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """gradient - h_i - mu (theta - x);  h_i += mu g_i;  h += |P|/|S| mean g;  theta <- mean model - h.

    Unbalanced clients have mu_i = mu / w_i, w_i their examples over the population's mean.
    """

    mu: float = 0.02
    client_vectors = ("h",)

    def start(self, theta: Tensor) -> State:
        return {"h": torch.zeros_like(theta)}

    def pull(self, who: Participants, server: State, now: Round) -> Tensor:
        return self.mu * now.mean_examples / who.examples

    def offset(self, who: Participants, server: State, now: Round) -> Tensor:
        return -who.states["h"]

    def client_update(self, who: Participants, update: Tensor, server: State, now: Round) -> dict[str, Tensor]:
        return {"h": who.states["h"] + self.pull(who, server, now) * update}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        server["h"].add_(mean["update"], alpha=now.participants / now.clients)
        theta.sub_(mean["update"]).sub_(server["h"])
