"""The grid on which sums and noise meet, so that which numbers come out tells nothing about what went in.

A floating-point sum plus floating-point noise is not a Gaussian mechanism: which numbers it can take depends on the
sum (Mironov, 2012; Jin et al., 2022). So the sum is rounded to whole multiples of a step, the noise is rounded to
whole multiples of the same step, and the two are added as whole numbers, exactly. For whole s, s + round(N) is
round(s + N): a Gaussian release of s, rounded afterwards. docs/security.md has the proof, and what is left.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Rounding moves each of d coordinates by half a step at most, in either of two neighbouring sums: together by
# sqrt(d) steps, which is this fraction of the sensitivity, and part of what a unit is clipped for (``Door``).
ROUNDING = 2.0**-16

CHUNK = 1 << 18  # coordinates per pass: the work buffers stay in the cache
_PASS = 1 << 15  # of which there is room for several
_WHOLE = 2.0**51  # whole numbers up to here, and sums of two, are exact in double precision


def grid_for(sensitivity: float, size: int) -> float:
    """The step for a sum of ``size`` coordinates: a power of two, so that scaling by it is exact.

    >>> grid_for(1.0, 10_000) == 2.0**-23
    True
    """
    return 2.0 ** math.floor(math.log2(sensitivity * ROUNDING / math.sqrt(max(size, 1))))


def check_noise(std: float, grid: float) -> None:
    """Raise unless noise of this size, out to 64 standard deviations, is exact as whole numbers of steps."""
    if std / grid * 64 > _WHOLE:
        raise ValueError("so much noise cannot be added exactly: use a smaller noise multiplier")


def rounded_(values: Tensor, grid: float) -> Tensor:
    """Doubles as whole numbers of steps, in place. Cut off, which moves no two of them apart, where those end."""
    return values.mul_(1 / grid).round_().clamp_(-_WHOLE, _WHOLE)


def meet_(total: Tensor, noise: Tensor, grid: float) -> None:
    """Add doubles of noise to a sum on the grid, in place; what comes out has the precision of the sum's type."""
    rooms = torch.empty(2, min(total.numel(), _PASS), dtype=torch.float64)
    for start in range(0, total.numel(), _PASS):
        part = total[start : start + _PASS]
        whole, steps = rooms[:, : part.numel()]
        rounded_(whole.copy_(part), grid)
        torch.mul(noise[start : start + _PASS], 1 / grid, out=steps).round_()
        part.copy_(whole.add_(steps).mul_(grid))
