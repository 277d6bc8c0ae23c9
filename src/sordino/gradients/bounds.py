"""Norms that bound what is really added, in the arithmetic in which it is added.

A privacy guarantee holds for the numbers that were computed. So the norm of a unit must not be smaller than that of
what it adds to a sum, whatever the unit does to the arithmetic: values that vanish when squared, vectors so long that
their squares no longer count beside their sum, parts that cancel in the norm but not in the sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

ROUND_OFF = 2.0**-24  # of single precision
MOST_UNITS = 256  # that are added up in single precision; beyond, sums of so many are added in double

# A square of a number below 2^-63 has lost bits or is 0. Beside a norm above this, a million of them do not count.
_SMALL = 2.0**-30
_LENGTH = 1024  # of the pieces whose squares are added up in single precision: errs by less than 1e-5

# A unit that consists of parts may not have parts whose norms add up to more than this many times its own: then no
# partial sum is larger than so many thresholds, however the parts cancel in the end.
CANCELLING = 30.0


def rounding_of_sums(units: int) -> float:
    """How far, in thresholds, rounding can move two neighbouring single-precision sums of ``units`` vectors apart.

    Each vector has norm at most C. A partial sum of k of them has norm at most k C, and rounding moves it by the
    round-off times that; over the additions of a sum, in whatever order, k adds up to at most n^2 / 2 + n / 2. Weighing
    a vector, and computing its entries, are three more roundings each. There are two sums.

    >>> round(rounding_of_sums(256), 4)
    0.004
    """
    return 2 * ROUND_OFF * (units**2 / 2 + 4 * units)


def row_norms(x_BN: Tensor) -> Tensor:
    """Norms over the last dimension, at the speed of single precision: doubles, never too small by more than 1e-5."""
    size = x_BN.shape[-1]
    whole = size - size % _LENGTH
    if size <= _LENGTH:
        norms: Tensor = torch.linalg.vector_norm(x_BN, dim=-1).double()
    else:
        pieces = torch.linalg.vector_norm(x_BN[..., :whole].unflatten(-1, (-1, _LENGTH)), dim=-1).double()
        squares = pieces.square_().sum(-1)
        if whole < size:
            squares += torch.linalg.vector_norm(x_BN[..., whole:], dim=-1).double().square_()
        norms = squares.sqrt_()
    small = norms < _SMALL
    if bool(small.any()):
        norms[small] = torch.linalg.vector_norm(x_BN[small], dim=-1, dtype=torch.float64)
    return norms


def row_squares(x_BN: Tensor) -> Tensor:
    return row_norms(x_BN).square_()


class BlockSums:
    """Sums over units: in single precision over at most ``MOST_UNITS`` of them, in double from there."""

    def __init__(self, count: int, size: int, device: torch.device) -> None:
        self._block = torch.empty(count, size, device=device)
        self._units = 0  # in the block
        self._total: Tensor | None = None

    def blocks(self, units: int) -> Iterator[tuple[int, int, Tensor, bool]]:
        """Where to add up so many units: from which to which, the block [count, size], and whether that is fresh."""
        start = 0
        while start < units:
            if self._units == MOST_UNITS:
                self._total = self._block.double() if self._total is None else self._total.add_(self._block)
                self._units = 0
            stop = min(units, start + MOST_UNITS - self._units)
            yield start, stop, self._block, self._units == 0
            self._units += stop - start
            start = stop

    def total(self) -> Tensor:
        return self._block if self._total is None else self._total.add_(self._block)
