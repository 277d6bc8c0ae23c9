"""User-level privacy: the door with clients for units. What a client sends is clipped, summed, noised and paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.clipping.policy import ClippingPolicy
from sordino.data import Sampling
from sordino.federated.rounds import Finished
from sordino.gate import Door
from sordino.gradients import MOST_UNITS, Norms, row_squares
from sordino.noise import Mechanism, Streams
from sordino.privacy import Ledger

LocalWork = Callable[[npt.NDArray[np.int64]], Iterator[Finished]]  # of these clients in this round, in chunks


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
        clients: int,
        *,
        clip: ClippingPolicy,
        noise_multiplier: float,
        sampling: Sampling,
        noise: Mechanism,
        steps: int,
        ledger: Ledger,
        secure: bool,
        streams: Streams,
    ) -> None:
        super().__init__(
            names,
            clients,
            clip=clip,
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            noise=noise,
            steps=steps,
            ledger=ledger,
            secure=secure,
            streams=streams,
        )
        self._work, self._names, self._size = work, tuple(names), size

    def _sums_at(self, theta: Tensor | None, vectors: int, numbers: int, step: int) -> tuple[Tensor, Tensor]:
        sums = torch.zeros(vectors, len(self._names) * self._size, dtype=torch.float64)
        totals = torch.zeros(numbers, dtype=torch.float64)
        for part in self._work(self.sampling.units(step, self.units, self.streams)):
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
