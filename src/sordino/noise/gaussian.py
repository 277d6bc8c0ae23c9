"""Gaussian vectors from the run's key, added in place."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sordino.noise.randomness import Reader, Streams

_CHUNK = 1 << 18  # coordinates per pass: the work buffers stay in the cache


class GaussianNoise:
    """Adds N(0, std^2) drawn from the stream of (purpose, step) to vectors: Box-Muller on an AES key stream.

    One radius and one angle, 32 bits each, make two normals; the tail ends at 6.5 standard deviations
    (``Tensor.normal_`` has 24 bits and ends at 5.8). With ``secure=True`` radius and angle have 64 bits and are
    computed in double precision, and the tail ends at 9.3. Neither hides which floating-point numbers a sum can
    take (Mironov, 2012): see docs/design.md.
    """

    def __init__(self, streams: Streams, *, secure: bool = False) -> None:
        self._streams = streams
        self._real = torch.float64 if secure else torch.float32
        self._secure = secure
        self._buffers: dict[int, _Buffers] = {}  # by size: a run needs two

    def add_(self, vector: Tensor, std: float, purpose: str, step: int) -> Tensor:
        """Add noise of standard deviation ``std`` to ``vector`` in place."""
        if std == 0:
            return vector
        reader = Reader(self._streams, purpose, step)
        for start in range(0, vector.numel(), _CHUNK):
            self._add_chunk(vector[start : start + _CHUNK], std, reader)
        return vector

    def _add_chunk(self, part: Tensor, std: float, reader: Reader) -> None:
        count = part.numel()
        half = -(-count // 32) * 16
        if half not in self._buffers:
            self._buffers[half] = _Buffers(half, self._secure)
        use = self._buffers[half]
        reader.fill(use.bytes)
        # u, uniform in (-1, 1), is an odd multiple of a power of two, so that its logarithm is finite; the radius
        # is sqrt(-2 ln |u|) = sqrt(-ln u^2).
        torch.mul(use.radius_bits.bitwise_or_(1), use.unit, out=use.radius)
        use.radius.mul_(use.radius).log_().neg_().sqrt_()
        torch.mul(use.angle_bits, use.half_turn, out=use.angle)
        torch.cos(use.angle, out=use.cosine)
        use.angle.sin_()
        if part.device.type == "cpu" and part.dtype == self._real and count == 2 * half:
            part[:half].addcmul_(use.radius, use.cosine, value=std)
            part[half:].addcmul_(use.radius, use.angle, value=std)
            return
        use.radius.mul_(std)
        one, two = use.cosine.mul_(use.radius), use.angle.mul_(use.radius)
        first = min(half, count)
        part[:first].add_(one[:first].to(part.device, part.dtype))
        part[first:].add_(two[: count - first].to(part.device, part.dtype))


class _Buffers:
    """Room for ``half`` radii and as many angles, reused at every step."""

    def __init__(self, half: int, secure: bool) -> None:
        bits = 64 if secure else 32
        raw = np.empty(2 * half * bits // 8, dtype=np.uint8)
        words = torch.from_numpy(raw).view(torch.int64 if secure else torch.int32)
        real = torch.float64 if secure else torch.float32
        self.bytes = raw.data
        self.radius_bits, self.angle_bits = words[:half], words[half:]
        self.radius, self.angle, self.cosine = (torch.empty(half, dtype=real) for _ in range(3))
        # As tensors: a Python number would make the product of integers with it single precision.
        self.unit = torch.tensor(2.0 ** -(bits - 1), dtype=real)
        self.half_turn = torch.tensor(math.pi * 2.0 ** -(bits - 1), dtype=real)
