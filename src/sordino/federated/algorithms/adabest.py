"""AdaBest (Varno et al., 2022): a bias correction that forgets, on the clients and on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.federated.algorithms.algorithm import Algorithm, Participants, Round, State, check_not_negative
from sordino.federated.algorithms.progressive import start_average, update_average
from sordino.steps import Plan


@dataclass(frozen=True)
class AdaBest(Algorithm):
    """A bias correction that forgets, on the clients and on the server.

    ``gradient - mu_i h_i;  h_i <- h_i / (t - t'_i) + g_i;  h = beta (last mean model - mean model);``
    ``theta <- mean model - h``

    mu_i = mu nbar / n_i, nbar the average size of all participations so far. The paper has mu inside of
    h_i, which is the same as long as mu_i stays what it is. But nbar moves, and of the first round it is
    unknown; multiplied with when h_i is used, as in the authors' first release, that does no harm, as h_i
    is 0 then and holds all of the first round afterwards.

    Args:
        mu: How strongly clients are corrected; 0 for not at all.
        beta: How much of the server's correction is kept, in [0, 1].

    Reference: Varno et al., "AdaBest: minimizing client drift in federated learning via adaptive bias
    estimation", ECCV 2022.

    >>> AdaBest(beta=0.95).client_vectors, AdaBest().sent_vectors
    (('h',), ('update',))
    """

    mu: float = 0.02
    beta: float = 0.9
    client_vectors = ("h",)
    told = ("mean_examples",)

    def __post_init__(self) -> None:
        check_not_negative(mu=self.mu)
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must be in [0, 1], not {self.beta:g}")

    def start(self, theta: Tensor, plan: Plan, mean_examples: float | None = None) -> State:
        vectors = {"mean_model": theta.clone(), "h": torch.zeros_like(theta)}
        return vectors | start_average(mean_examples)

    def offset(self, who: Participants, server: State, now: Round) -> Tensor | None:
        if self.mu == 0:
            return None
        mean_examples: float = server["mean_examples"]
        return who.states["h"] * (-self.mu * mean_examples / who.examples)

    def client_update(
        self, who: Participants, update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
        return {"h": torch.addcdiv(update, who.states["h"], who.rounds_since)}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        mean_model = theta.sub_(mean["update"])
        torch.sub(server["mean_model"], mean_model, out=server["h"]).mul_(self.beta)
        server["mean_model"].copy_(mean_model)
        theta.sub_(server["h"])

    def seen(self, server: State, examples: Sequence[float]) -> None:
        update_average(server, examples)
