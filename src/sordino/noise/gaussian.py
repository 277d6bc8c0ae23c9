"""Gaussian vectors from the run's key, added in place."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sordino.noise.grid import CHUNK, check_noise, grid_for, rounded_
from sordino.noise.randomness import Reader, Streams

REACH = math.inf  # how many standard deviations noise can have: see ``deepened``
_FRACTION = (1 << 52) - 1  # the bits of a double's fraction
_ONE = 0x3FF << 52  # the bits of 1.0
_FINE = 2.0**-20  # below this a uniform number gets further bits


class GaussianNoise:
    """Adds N(0, std^2) drawn from the stream of (purpose, step) to vectors: Box-Muller on an AES key stream.

    Radius and angle are doubles of 52 random bits each, and make two normals. Where the radius is large (its uniform
    number below 2^-20) it gets 52 bits more, and so on as long as there is need: the tail is as fine as the middle, and
    it has no end. So it does where the radius is nearly 0.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._buffers: dict[int, _Buffers] = {}  # by size: a run needs two

    def add_(self, vector: Tensor, std: float, purpose: str, step: int, grid: float | None = None) -> Tensor:
        """Add noise of standard deviation ``std`` to ``vector`` in place, on a ``grid``.

        Both are rounded to whole multiples of it and added exactly. For a sum it is that of its sensitivity
        (``grid_for``), which has to be priced; without one it is that of the noise.
        """
        if std == 0:
            return vector
        grid = grid_for(std, vector.numel()) if grid is None else grid
        check_noise(std, grid)
        for part, use, noise in self._parts(vector, std / grid, purpose, step):
            whole = rounded_(use.sums[: part.numel()].copy_(part), grid)
            part.copy_(whole.add_(noise.round_()).mul_(grid))
        return vector

    def accumulate_(self, vector: Tensor, std: float, purpose: str, step: int) -> None:
        """Add the noise as it is, to doubles that are noise themselves: for what is rounded later (``meet_``)."""
        assert vector.dtype == torch.float64
        for part, _, noise in self._parts(vector, abs(std), purpose, step):
            part.add_(noise.to(part.device), alpha=math.copysign(1.0, std))

    def _parts(
        self, vector: Tensor, std: float, purpose: str, step: int
    ) -> Iterator[tuple[Tensor, _Buffers, Tensor]]:
        """Parts of a vector that fit the cache, room to work on each, and noise for it."""
        reader, tail = Reader(self._streams, purpose, step), Reader(self._streams, f"tail of {purpose}", step)
        for start in range(0, vector.numel(), CHUNK):
            part = vector[start : start + CHUNK]
            half = -(-part.numel() // 2)
            if half not in self._buffers:
                self._buffers[half] = _Buffers(half)
            use = self._buffers[half]
            yield part, use, use.normals(std, reader, tail)[: part.numel()]


class _Buffers:
    """Room for ``half`` radii and as many angles, reused at every step."""

    def __init__(self, half: int) -> None:
        raw = np.empty(2 * half * 8, dtype=np.uint8)
        self._bytes = raw.data
        self._words = torch.from_numpy(raw).view(torch.int64)
        self._uniforms = self._words.view(torch.float64)
        self._normals, self.sums = (torch.empty(2 * half, dtype=torch.float64) for _ in range(2))

    def normals(self, std: float, reader: Reader, tail: Reader) -> Tensor:
        reader.fill(self._bytes)
        # The fraction of a double in [1, 2): a conversion of whole numbers would cost more.
        self._words.bitwise_and_(_FRACTION).bitwise_or_(_ONE)
        half = len(self._uniforms) // 2
        radius, angle = self._uniforms[:half], self._uniforms[half:]
        radius.neg_().add_(2.0)  # in (0, 1]
        least, most = (float(end) for end in radius.aminmax())
        if least < _FINE:
            for i in (radius < _FINE).nonzero().flatten().tolist():
                radius[i] = deepened(float(radius[i]), tail)
        near = (radius > 1 - _FINE).nonzero().flatten().tolist() if most > 1 - _FINE else []
        tiny = [std * math.sqrt(-2 * math.log1p(-beside_one(float(radius[i]), tail))) for i in near]
        radius.log_().mul_(-2.0 * std * std).sqrt_()
        if near:
            radius[near] = torch.tensor(tiny, dtype=torch.float64)
        angle.mul_(2 * math.pi)  # from one turn to two
        cosine, sine = self._normals[:half], self._normals[half:]
        torch.cos(angle, out=cosine).mul_(radius)
        torch.sin(angle, out=sine).mul_(radius)
        return self._normals


def deepened(uniform: float, tail: Reader) -> float:
    """A multiple k of 2^-52 stands for all of ((k - 1) 2^-52, k 2^-52]: which of those, told by further bits."""
    within = (tail.word() >> 12) + 1  # in 1 .. 2^52
    if uniform > 2.0**-52:
        return uniform - 2.0**-52 + within * 2.0**-104
    fine = within * 2.0**-52
    return 2.0**-52 * (deepened(fine, tail) if fine < _FINE else fine)


def beside_one(uniform: float, tail: Reader) -> float:
    """What is missing to 1 of a number that stands for all of (uniform - 2^-52, uniform], told by further bits.

    Radii near 0 would otherwise have gaps that are wider than the grid of a large model.
    """
    return (1 - uniform) + deepened(2.0**-52, tail)
