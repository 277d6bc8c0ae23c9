"""How what clients send comes together: their plain mean, or with a promise through the door with clients for units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from sordino.data import Sampling
from sordino.federated.algorithms import Algorithm
from sordino.federated.rounds import Broadcast, Finished, mean_of
from sordino.federated.simulator import Clients
from sordino.federated.user_level import UserGate
from sordino.noise import Streams


@dataclass(eq=False)
class Tally:
    """What is known of a round besides its mean, where nobody was promised anything."""

    left_out: dict[int, str]  # client: why
    clients: list[int] = field(default_factory=list)  # that delivered
    examples: list[float] = field(default_factory=list)  # of each
    rates: list[float] = field(default_factory=list)  # of each

    def counted(self, parts: Iterator[Finished]) -> Iterator[Finished]:
        """The same, noted down as they pass."""
        for part in parts:
            self.left_out |= part.failed
            self.clients += [part.clients[row] for row in part.fine]
            self.examples += part.examples[part.fine].flatten().tolist()
            self.rates += part.rates[part.fine].flatten().tolist()
            yield part

    def to_state(self) -> dict[str, Any]:
        left_out = {str(client): why for client, why in self.left_out.items()}
        return {
            "left_out": left_out,
            **{name: getattr(self, name) for name in ("clients", "examples", "rates")},
        }

    @staticmethod
    def from_state(state: dict[str, Any]) -> Tally:
        return Tally(**{**state, "left_out": {int(client): why for client, why in state["left_out"].items()}})

    @property
    def all_raised(self) -> bool:
        """Nobody delivered, and each for an error of the program: nothing will come of it."""
        reasons = list(self.left_out.values())
        return not self.clients and bool(reasons) and all(why.startswith("raised") for why in reasons)


@dataclass(frozen=True, eq=False)
class Gathered:
    """What has come together in a round."""

    mean: dict[str, Tensor] | None  # of what was sent, by name; None if nobody sent anything
    participants: float  # under privacy the planned number
    tally: Tally | None = None  # under privacy None
    threshold: float | None = None  # without privacy None
    repeatable: bool = True  # nobody failed that might not fail the next time


class Crowd(Protocol):
    """The clients of a federation, wherever they are: simulated, or across a network."""

    @property
    def streams(self) -> Streams: ...
    @property
    def algorithm(self) -> Algorithm: ...
    def __call__(self, chosen: Clients, sent: Broadcast) -> Iterator[Finished]: ...
    def delivering(self, chosen: Clients, sent: Broadcast) -> tuple[Clients, dict[int, str]]: ...
    def finished(self, there: Clients, sent: Broadcast) -> Iterator[Finished]: ...


class Aggregate(Protocol):
    @property
    def door(self) -> UserGate | None: ...  # what it releases through, if anything is promised
    def __call__(self, sent: Broadcast) -> Gathered: ...


@dataclass(frozen=True, eq=False)
class OpenMean:
    """The mean over whoever delivers; nothing is promised."""

    crowd: Crowd
    sampling: Sampling
    clients: int
    size: int
    door: None = None

    def __call__(self, sent: Broadcast) -> Gathered:
        chosen = self.sampling.units(sent.now.number - 1, self.clients, self.crowd.streams)
        there, left_out = self.crowd.delivering(chosen, sent)
        tally, algorithm = Tally(left_out), self.crowd.algorithm
        parts = tally.counted(self.crowd.finished(there, sent))
        mean, present = mean_of(parts, algorithm.sent_vectors, self.size, algorithm.weighted)
        return Gathered(mean, float(present), tally)


@dataclass(frozen=True, eq=False)
class PrivateMean:
    """Clipped, summed, noised and divided by the planned number of clients, whoever delivers."""

    door: UserGate

    def __call__(self, sent: Broadcast) -> Gathered:
        released = self.door(sent)
        if self.door.journal is not None:
            self.door.journal.sync()  # the code of clients sees what follows from it, in the next round
        mean = self.door.parts(released.gradient)
        return Gathered(
            mean,
            sent.now.participants,
            threshold=released.threshold,
            repeatable=not self.door.somebody_failed,
        )
