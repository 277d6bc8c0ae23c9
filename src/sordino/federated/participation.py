"""Who takes part in a round: a public rule, and a stream of randomness that is a function of (key, round)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sordino.data.sampling import Words

Clients = npt.NDArray[np.int64]


class Participation(ABC):
    """Settings are the fields of a frozen dataclass; ``number`` counts rounds from 0, ``clients`` is the population."""

    @abstractmethod
    def chosen(self, number: int, clients: int, source: Words) -> Clients:
        """The clients of a round, in increasing order."""

    @abstractmethod
    def expected(self, clients: int) -> float:
        """How many take part on average: what formulas and divisors use under privacy."""


@dataclass(frozen=True)
class FixedNumber(Participation):
    """So many clients, drawn without replacement; time and memory do not depend on the population."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"at least one client has to take part in a round, not {self.count}")

    def chosen(self, number: int, clients: int, source: Words) -> Clients:
        if self.count > clients:
            raise ValueError(f"{self.count} clients cannot be drawn from {clients}: use at most {clients}")
        # Floyd's algorithm: exactly `count` draws, whatever the population.
        found: set[int] = set()
        words = source.words("participants", number, self.count)
        for last, word in zip(range(clients - self.count, clients), words.tolist(), strict=True):
            drawn = (word * (last + 1)) >> 64
            found.add(last if drawn in found else drawn)
        return np.array(sorted(found), dtype=np.int64)

    def expected(self, clients: int) -> float:
        return float(self.count)


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Every client takes part with probability ``rate``, independently: Poisson sampling, which privacy can amplify."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"the rate of participation must be in (0, 1], not {self.rate:g}")

    def chosen(self, number: int, clients: int, source: Words) -> Clients:
        if self.rate == 1:
            return np.arange(clients)
        drawn = source.words("participants", number, clients) < np.uint64(math.floor(self.rate * 2.0**64))
        return np.flatnonzero(drawn)

    def expected(self, clients: int) -> float:
        return self.rate * clients


@dataclass(frozen=True)
class InOrder(Participation):
    """So many clients a round, one after the other through the population, in the order of their numbers or shuffled
    once (``shuffled``): the same order in every pass. Left-overs are in no round."""

    count: int
    shuffled: bool = True

    def chosen(self, number: int, clients: int, source: Words) -> Clients:
        if self.count > clients:
            raise ValueError(f"{self.count} clients cannot be drawn from {clients}: use at most {clients}")
        place = number % (clients // self.count)
        order = np.arange(clients)
        if self.shuffled:
            order = np.argsort(source.words("order", 0, clients), kind="stable")
        return np.sort(order[place * self.count : (place + 1) * self.count])

    def expected(self, clients: int) -> float:
        return float(self.count)
