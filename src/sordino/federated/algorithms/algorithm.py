"""What a federated algorithm is: a handful of vector formulas, for clients and for the server.

All participants of a round are treated at once: client vectors are rows of a matrix [P, d] and numbers of clients are
columns [P, 1]. A local step of every algorithm has the same form,

    x <- x - rate * (gradient + offset + pull * (x - theta)),

where offset [P, d] and pull [P, 1] stay what they are for the round, so engines know nothing of algorithms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

State = dict[str, Any]  # tensors and numbers: a checkpoint holds it as it is


@dataclass(frozen=True)
class Round:
    """The public numbers of a round."""

    number: int  # t, from 1
    clients: int  # |S|, the population
    participants: float  # |P|: how many take part; under privacy the planned number, never the realised one
    rate: float  # eta of this round
    steps: float  # K: planned local steps of a client, on average over the population
    mean_examples: float = 1.0  # of a client, over the population


@dataclass(frozen=True)
class Participants:
    """What the clients of a round bring along, one row each."""

    states: dict[str, Tensor]  # by name, [P, d]; zeros for a client that comes for the first time
    rounds_since: Tensor  # t - t', [P, 1]; t for a client that comes for the first time
    examples: Tensor  # n_i, [P, 1]
    steps: Tensor  # K_i: planned local steps, [P, 1]


class Algorithm(ABC):
    """Settings are the fields of a frozen dataclass."""

    client_vectors: tuple[str, ...] = ()  # what a client keeps between rounds
    sent_vectors: tuple[str, ...] = ("update",)  # what it sends
    weighted = False  # whether the server's mean is by number of examples

    def start(self, theta: Tensor) -> State:
        """What the server keeps, before the first round."""
        return {}

    def offset(self, who: Participants, server: State, now: Round) -> Tensor | None:
        """Added to every local gradient, [P, d]."""
        return None

    def pull(self, who: Participants, server: State, now: Round) -> Tensor | None:
        """How strongly x is drawn back to theta, [P, 1]."""
        return None

    def client_update(self, who: Participants, update: Tensor, server: State, now: Round) -> dict[str, Tensor]:
        """The clients' new states; ``update`` is g_i = theta - x after the last local step, [P, d]."""
        return {}

    def sends(
        self, who: Participants, new: dict[str, Tensor], update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
        """What the clients send, by name, [P, d]."""
        return {"update": update}

    @abstractmethod
    def server_update(self, theta: Tensor, mean: dict[str, Tensor], server: State, now: Round) -> None:
        """Move ``theta`` and ``server`` in place; ``mean`` is that of what was sent, over the participants."""
