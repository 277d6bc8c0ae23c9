"""SCAFFOLD (Karimireddy et al., 2020): control variates; and SCAFFOLD/m, whose clients send one vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.federated.algorithms.algorithm import Algorithm, Participants, Round, State
from sordino.federated.algorithms.progressive import average_examples, start_average, update_average
from sordino.steps import Plan


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates.

    ``gradient - h_i + h;  h_i <- h_i - h + g_i / (K eta);  h += |P|/|S| mean change of h_i``

    eta is the rate of the round, decay included. Unbalanced clients see h / w_i and count w_i times, w_i
    their examples over the population's mean.

    Args:
        progressive: Weigh by AdaBest's average size of all participations so far in place of the
            population's mean.

    Reference: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML
    2020.

    >>> Scaffold().sent_vectors
    ('update', 'change')
    """

    progressive: bool = False
    needs_sums_of_gradients = True
    client_vectors = ("h",)
    told = ("h", "mean_examples")
    sent_vectors: ClassVar[tuple[str, ...]] = ("update", "change")

    def start(self, theta: Tensor, plan: Plan, mean_examples: float | None = None) -> State:
        average = start_average(mean_examples) if self.progressive else {}
        return {"h": torch.zeros_like(theta)} | average

    def offset(self, who: Participants, server: State, now: Round) -> Tensor:
        of_server: Tensor = server["h"] / self._weights(who, server, now)
        return of_server.sub_(who.states["h"])

    def client_update(
        self, who: Participants, update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
        if who.length is None:
            return {"h": update / (who.steps * now.rate) - self.offset(who, server, now)}
        # Whoever took back all of its steps saw no gradient to put in place of the old one.
        moved = update / who.length - self.offset(who, server, now)
        return {"h": torch.where(who.length > 0, moved, who.states["h"])}

    def sends(
        self, who: Participants, new: dict[str, Tensor], update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
        return {"update": update, "change": (new["h"] - who.states["h"]) * self._weights(who, server, now)}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        server["h"].add_(mean["change"], alpha=now.participants / now.clients)
        theta.sub_(mean["update"])

    def seen(self, server: State, examples: Sequence[float]) -> None:
        if self.progressive:
            update_average(server, examples)

    def _weights(self, who: Participants, server: State, now: Round) -> Tensor:
        return who.examples / average_examples(self.progressive, who, server, now)


@dataclass(frozen=True)
class ScaffoldM(Scaffold):
    """SCAFFOLD/m: the server works the change of its h out of the mean update, so that clients send one
    vector.

    ``h <- (1 - |P|/|S|) h + |P| / (|S| K eta) mean g``, which is SCAFFOLD where all clients are of one size
    and take K steps of the rate eta (the paper's ``(|S| - 1)/|S|`` is right for one participant only).

    Args:
        progressive: Weigh by AdaBest's average size of all participations so far in place of the
            population's mean.

    Reference: Varno et al., "AdaBest: minimizing client drift in federated learning via adaptive bias
    estimation", ECCV 2022, supplement.

    >>> ScaffoldM().sent_vectors
    ('update',)
    """

    sent_vectors = ("update",)
    needs_planned_rates = True

    def sends(
        self, who: Participants, new: dict[str, Tensor], update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
        return {"update": update}

    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        share = now.participants / now.clients
        server["h"].mul_(1 - share).add_(mean["update"], alpha=share / (now.steps * now.rate))
        theta.sub_(mean["update"])
