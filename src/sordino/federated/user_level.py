"""User-level privacy: the door with clients for units. What a client sends is clipped, summed, noised and paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.clipping.policy import ClippingPolicy, State, clip_factors
from sordino.federated.rounds import Broadcast, Finished
from sordino.gate import ROOM, Door
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
            sent_UD = _rows(part, self._names)
            norms = _norms(sent_UD, self._names).raised(self.room)
            if part.answers is None:
                answers = self.clip.numbers(norms, self.clip_state)
                weights = self.clip.weights(norms, self.clip_state)
            else:  # clipped where it was made: here it is bounded once more, whoever made it, and however
                assert vectors == 1
                answers = self._bounded(part.answers[:, part.fine])
                weights = clip_factors(norms.total_U, self.threshold)[None]
            if numbers:
                totals += answers.sum(1)
            weights = weights.to(sent_UD.dtype)
            for some in range(0, len(sent_UD), MOST_UNITS):
                sums += weights[:, some : some + MOST_UNITS] @ sent_UD[some : some + MOST_UNITS]
        return sums, totals

    def _bounded(self, answers_MU: Tensor) -> Tensor:
        """No client's answer to a scalar probe is further from 0 than the probe's sensitivity; no number is 0."""
        probes = self.clip.probes(self.noise_multiplier, self.expected_batch)
        most = torch.tensor([probe.sensitivity for probe in probes if not probe.vector], dtype=torch.float64)
        return answers_MU.double().nan_to_num(0.0).clamp(-most[:, None], most[:, None])

    def parts(self, released: Tensor) -> dict[str, Tensor]:
        """A released vector, taken apart again."""
        return dict(zip(self._names, released.split(self._size), strict=True))


def clipped(
    part: Finished, names: Sequence[str], clip: ClippingPolicy, state: State, room: bool = True
) -> Finished:
    """What clients send, clipped where they are, with their answers to the policy's scalar probes. ``room`` is for
    rounding, where noise hides a client. Of a client that failed there are zeros: nobody is told.

    >>> from sordino.clipping import Fixed
    >>> nobody = torch.zeros(1, 1)
    >>> sent = {"update": torch.tensor([[3.0, 4.0]])}
    >>> part = clipped(Finished((0,), sent, {}, nobody, nobody), ["update"], Fixed(1.0), {"threshold": 1.0})
    >>> bool(part.sent["update"].norm() < 1), len(part.answers)
    (True, 0)
    """
    fine = part.fine
    rows_UD = _rows(part, names)
    norms = _norms(rows_UD, names)
    norms = norms.raised(ROOM) if room else norms
    rows_UD = rows_UD * clip.weights(norms, state)[0][:, None].to(rows_UD.dtype)
    answers = torch.zeros(len(clip.numbers(norms, state)), len(part.clients), dtype=torch.float64)
    answers[:, fine] = clip.numbers(norms, state).double()
    sent = {name: torch.zeros_like(whole) for name, whole in part.sent.items()}
    for name, block in zip(names, rows_UD.chunk(len(names), dim=1), strict=True):
        sent[name][fine] = block
    return replace(part, sent=sent, answers=answers)


def _rows(part: Finished, names: Sequence[str]) -> Tensor:
    """All that each client sends as one row, [U, D]."""
    return torch.cat([part.sent[name][part.fine] for name in names], dim=1)


def _norms(rows_UD: Tensor, names: Sequence[str]) -> Norms:
    squares_PU = torch.stack([row_squares(block) for block in rows_UD.chunk(len(names), dim=1)])
    return Norms(tuple(names), squares_PU, squares_PU.sum(0).sqrt())
