"""User-level privacy: the door with clients for units. What a client sends is clipped, summed, noised and paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.federated.rounds import Broadcast, Finished
from sordino.gate import Door
from sordino.gradients import MOST_UNITS, Norms, row_squares
from sordino.noise import Streams
from sordino.privacy import Ledger
from sordino.terms import Terms

# Of these clients with what the server hands out, in chunks.
LocalWork = Callable[[npt.NDArray[np.int64], Broadcast], Iterator[Finished]]


class UserGate(Door):
    """Clipped, noised, accounted sums of what clients send: a client is the unit.

    The vectors of a client (SCAFFOLD sends two) are clipped together, to norm C. A client that fails or drops out
    contributes zero: the divisor is the expected number of clients whatever happens, and nobody is named.
    """

    unit = "user"

    def __init__(
        self,
        work: LocalWork,
        names: Sequence[str],
        size: int,
        terms: Terms,
        streams: Streams,
        ledger: Ledger | None = None,
    ) -> None:
        super().__init__(names, terms, streams, ledger)
        self._work, self._names, self._size = work, tuple(names), size
        self.somebody_failed = (
            False  # in the last call, who may not fail if it is repeated: for no eyes but ours
        )

    def _sums_at(self, at: Broadcast, vectors: int, numbers: int, step: int) -> tuple[Tensor, Tensor]:
        sums = torch.zeros(vectors, len(self._names) * self._size, dtype=torch.float64)
        totals = torch.zeros(numbers, dtype=torch.float64)
        self.somebody_failed = False
        for part in self._work(self.sampling.units(step, self.units, self.streams), at):
            self.somebody_failed |= bool(part.failed)
            if not part.fine:
                continue
            sent_UD = torch.cat([part.sent[name][part.fine] for name in self._names], dim=1)
            squares_PU = torch.stack([row_squares(block) for block in sent_UD.split(self._size, dim=1)])
            norms = self._with_room(Norms(self._names, squares_PU, squares_PU.sum(0).sqrt()))
            if numbers:
                totals += self.clip.numbers(norms, self.clip_state).sum(1)
            weights = self.clip.weights(norms, self.clip_state).to(sent_UD.dtype)
            for some in range(0, len(sent_UD), MOST_UNITS):
                sums += weights[:, some : some + MOST_UNITS] @ sent_UD[some : some + MOST_UNITS]
        return sums, totals

    def parts(self, released: Tensor) -> dict[str, Tensor]:
        """A released vector, taken apart again."""
        return dict(zip(self._names, released.split(self._size), strict=True))
