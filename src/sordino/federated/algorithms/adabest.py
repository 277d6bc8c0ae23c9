"""AdaBest (Varno et al., 2022): a bias correction that forgets, on the clients and on the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.federated.algorithms.algorithm import Algorithm, Participants, Round, State


@dataclass(frozen=True)
class AdaBest(Algorithm):
    """gradient - h_i;  h_i <- h_i / (t - t'_i) + mu g_i;  h = beta (last mean model - mean model);
    theta <- mean model - h.

    Unbalanced clients have mu_i = mu nbar / n_i, nbar the average size of all participations so far.
    """

    mu: float = 0.02
    beta: float = 0.9
    client_vectors = ("h",)

    def start(self, theta: Tensor) -> State:
        return {"mean_model": theta.clone(), "h": torch.zeros_like(theta), "mean_examples": 0.0}

    def offset(self, who: Participants, server: State, now: Round) -> Tensor:
        return -who.states["h"]

    def client_update(self, who: Participants, update: Tensor, server: State, now: Round) -> dict[str, Tensor]:
        mu = self.mu * server["mean_examples"] / who.examples
        return {"h": who.states["h"] / who.rounds_since + mu * update}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        mean_model = theta.sub_(mean["update"])
        server["h"] = (server["mean_model"] - mean_model).mul_(self.beta)
        server["mean_model"] = mean_model.clone()
        theta.sub_(server["h"])
