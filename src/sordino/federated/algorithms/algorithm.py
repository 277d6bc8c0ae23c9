"""What a federated algorithm is: a handful of vector formulas, for clients and for the server.

All participants of a round are treated at once: client vectors are rows of a matrix [P, d] and numbers of clients are
columns [P, 1]. A local step of every algorithm has the same form,

    x <- x - rate * (gradient + offset + pull * (x - theta)),

where offset [P, d] and pull [P, 1] stay what they are for the round, so engines know nothing of algorithms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from sordino.steps import Plan

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
    # The sum of the rates of the local steps a client took, [P, 1], where that is not K_i eta: clients that tune their
    # rates or take steps back. It is known after the local work, so for client_update and sends only.
    length: Tensor | None = None


class Algorithm(ABC):
    """Settings are the fields of a frozen dataclass."""

    client_vectors: ClassVar[tuple[str, ...]] = ()  # what a client keeps between rounds
    sent_vectors: ClassVar[tuple[str, ...]] = ("update",)  # what it sends
    told: ClassVar[tuple[str, ...]] = ()  # what of the server's state clients work with, where there is such
    weighted = False  # whether the server's mean is by number of examples
    needs_planned_rates = (
        False  # whether the server counts on local steps of the round's rate, as many as planned
    )

    needs_sums_of_gradients = False  # whether it takes a client's update for a sum of gradients times rates

    @property
    def linear_server(self) -> bool:
        """Whether the server's step is linear in what was sent."""
        return True

    @property
    def corrects_gradients(self) -> bool:
        """Whether local gradients get an offset or a pull."""
        kind = type(self)
        return kind.offset is not Algorithm.offset or kind.pull is not Algorithm.pull

    def start(self, theta: Tensor, plan: Plan, mean_examples: float | None = None) -> State:
        """What the server keeps, before the first round.

        ``mean_examples`` is a public number of examples of a client, in place of averages over those that take part.
        """
        return {}

    def offset(self, who: Participants, server: State, now: Round) -> Tensor | None:
        """Added to every local gradient, [P, d]."""
        return None

    def pull(self, who: Participants, server: State, now: Round) -> Tensor | None:
        """How strongly x is drawn back to theta, [P, 1]."""
        return None

    def client_update(
        self, who: Participants, update: Tensor, server: State, now: Round
    ) -> dict[str, Tensor]:
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

    def seen(self, server: State, examples: Sequence[float]) -> None:
        """Called after the server's update with the numbers of examples of those who took part."""
        return None


def rate_of_round(rate: float, decay: float, number: int) -> float:
    """The local learning rate after ``number`` rounds: round t, counted from 1, trains at that of t - 1.

    >>> f"{rate_of_round(0.1, 0.998, 100):.10f}"
    '0.0818566805'
    """
    return rate * decay**number


def check_not_negative(**settings: float) -> None:
    for name, value in settings.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number of at least 0, not {value:g}")


def check_positive(**settings: float) -> None:
    for name, value in settings.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, not {value:g}")
