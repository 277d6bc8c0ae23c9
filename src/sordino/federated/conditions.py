"""How a federation's devices behave: some drop out, some are slow, and a server may ask more than it needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sordino.noise import Streams

Clients = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Conditions:
    """What happens to clients that were asked, drawn from the run's own streams.

    Args:
        drop_out: The probability that a client does not deliver.
        slowness: A client takes as long as its local steps, times a lognormal factor of this spread.
        deadline: Who is not done by then, in times of an average client's work, is left out.
        over_selection: The server asks that many times the clients it wants, and takes those who are done
            first. Refused under user-level privacy.

    >>> Conditions(over_selection=1.3).asked(wanted=10, clients=100)
    13
    """

    drop_out: float = 0.0
    slowness: float = 0.0
    deadline: float | None = None
    over_selection: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.drop_out < 1:
            raise ValueError(f"drop_out is a probability in [0, 1), not {self.drop_out:g}")
        if not 0 <= self.slowness < 10:
            raise ValueError(f"slowness must be in [0, 10), not {self.slowness:g}")
        if self.deadline is not None and not self.deadline > 0:
            raise ValueError(f"a deadline must be positive, not {self.deadline:g}")
        if self.deadline is not None and self.deadline < 1 and not self.slowness:
            raise ValueError(
                "an average client takes 1, so nobody would meet a deadline below: use a later one"
            )
        if not 1 <= self.over_selection < math.inf:
            raise ValueError(f"over_selection must be at least 1, not {self.over_selection:g}")

    def asked(self, wanted: int, clients: int) -> int:
        return min(clients, math.ceil(wanted * self.over_selection))

    def delivered(
        self,
        chosen: Clients,
        wanted: int | None,
        number: int,
        streams: Streams,
        steps: Callable[[int], float],
        typical: float,
    ) -> tuple[Clients, dict[int, str]]:
        """Who of the ``chosen`` delivers, and why the others do not. ``wanted``: no more than so many."""
        why: dict[int, str] = {}
        if self == Conditions() or len(chosen) == 0:
            return chosen, why
        chance = np.random.default_rng(streams.seed_for("conditions", number))
        dropped = chance.random(len(chosen)) < self.drop_out
        why |= {int(c): "dropped out" for c in chosen[dropped]}
        times = np.exp(self.slowness * chance.standard_normal(len(chosen)))
        if self.deadline is not None or self.over_selection > 1:
            times *= [steps(int(client)) / typical for client in chosen]
        late = ~dropped & (times > (math.inf if self.deadline is None else self.deadline))
        why |= {int(c): "missed the deadline" for c in chosen[late]}
        there = np.flatnonzero(~dropped & ~late)
        if wanted is not None and len(there) > wanted:
            order = there[np.lexsort((chance.random(len(there)), times[there]))]  # ties by lot
            why |= {int(c): "was not needed" for c in chosen[order[wanted:]]}
            there = order[:wanted]
        return np.sort(chosen[there]), why
