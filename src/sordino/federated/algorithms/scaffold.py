"""SCAFFOLD (Karimireddy et al., 2020): control variates; and SCAFFOLD/m, whose clients send one vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.federated.algorithms.algorithm import Algorithm, Participants, Round, State


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """gradient - h_i + h;  h_i <- h_i - h + g_i / (K eta);  h += |P|/|S| mean change of h_i.

    eta is the rate of the round, decay included. Unbalanced clients see h / w_i and count w_i times, w_i their examples
    over the population's mean.
    """

    client_vectors = ("h",)
    sent_vectors = ("update", "change")

    def start(self, theta: Tensor) -> State:
        return {"h": torch.zeros_like(theta)}

    def _server(self, who: Participants, server: State, now: Round) -> Tensor:
        return server["h"] * (now.mean_examples / who.examples)

    def offset(self, who: Participants, server: State, now: Round) -> Tensor:
        return self._server(who, server, now) - who.states["h"]

    def client_update(self, who: Participants, update: Tensor, server: State, now: Round) -> dict[str, Tensor]:
        return {"h": update / (who.steps * now.rate) - self.offset(who, server, now)}

    def sends(
        self, who: Participants, new: dict[str, Tensor], update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
        weight = who.examples / now.mean_examples
        return {"update": update, "change": (new["h"] - who.states["h"]) * weight}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        server["h"].add_(mean["change"], alpha=now.participants / now.clients)
        theta.sub_(mean["update"])


@dataclass(frozen=True)
class ScaffoldM(Scaffold):
    """SCAFFOLD/m: the server works the change of its h out of the mean update, so that clients send one vector.

    h <- (1 - |P|/|S|) h + |P| / (|S| K eta) mean g, which is SCAFFOLD where all clients take K steps (the paper's
    (|S| - 1)/|S| is right for one participant only).
    """

    sent_vectors = ("update",)

    def sends(
        self, who: Participants, new: dict[str, Tensor], update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
        return {"update": update}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        share = now.participants / now.clients
        server["h"].mul_(1 - share).add_(mean["update"], alpha=share / (now.steps * now.rate))
        theta.sub_(mean["update"])
