"""Independent Gaussian noise, added in place, and how it is split between a gradient and its probes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sordino.noise.randomness import Reader, Streams

_CHUNK = 1 << 17  # coordinates per pass: the work buffers stay in the cache


class GaussianNoise:
    """Adds N(0, std^2) drawn from the stream of (purpose, step) to vectors: Box-Muller on an AES key stream.

    One radius and one angle, 32 bits each, make two normals; the tail ends at 6.7 standard deviations
    (``Tensor.normal_`` has 24 bits and ends at 5.8). With ``secure=True`` radius and angle have 64 bits and are
    computed in double precision, and the tail ends at 9.4. Neither hides which floating-point numbers a sum can
    take (Mironov, 2012): see docs/design.md.
    """

    def __init__(self, streams: Streams, *, secure: bool = False) -> None:
        self._streams = streams
        self._real = torch.float64 if secure else torch.float32
        bits = 64 if secure else 32
        self._bytes = np.empty(_CHUNK * bits // 8, dtype=np.uint8)
        integers = torch.int64 if secure else torch.int32
        self._integers = torch.from_numpy(self._bytes).view(integers)
        self._mask = (1 << (bits - 1)) - 1
        self._unit = 2.0 ** -(bits - 1)
        self._radius = torch.empty(_CHUNK // 2, dtype=self._real)
        self._angle = torch.empty(_CHUNK // 2, dtype=self._real)
        self._cosine = torch.empty(_CHUNK // 2, dtype=self._real)

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
        half = min(-(-count // 32) * 16, _CHUNK // 2)
        used = 2 * half * self._integers.element_size()
        reader.fill(self._bytes.data[:used])
        radius, angle, cosine = self._radius[:half], self._angle[:half], self._cosine[:half]
        bits = self._integers[: 2 * half]
        # A uniform in (0, 1): from a whole number of bits, plus one half, so that its logarithm is finite.
        radius.copy_(bits[:half].bitwise_and_(self._mask)).mul_(self._unit).add_(self._unit / 2)
        radius.log_().mul_(-2.0 * std * std).sqrt_()
        angle.copy_(bits[half:]).mul_(math.pi * self._unit)
        torch.cos(angle, out=cosine)
        angle.sin_()
        rest = count - half
        if part.device.type == "cpu" and part.dtype == self._real:
            part[:half].addcmul_(radius[: min(half, count)], cosine[: min(half, count)])
            if rest > 0:
                part[half:].addcmul_(radius[:rest], angle[:rest])
            return
        noise = torch.cat([radius * cosine, radius * angle])[:count]
        part.add_(noise.to(part.device, part.dtype))


def joint_split(noise_multiplier: float, probe_multipliers: Sequence[float]) -> float:
    """The gradient's own multiplier when probes share one joint Gaussian release of ``noise_multiplier``.

    Scaled by its noise, one unit's contribution has squared norm z_g^-2 + sum z_probe^-2, which must be z^-2
    (Galli et al., Proposition 1; Andrew et al. for the quantile).

    >>> round(joint_split(1.0, [7.124]), 6)
    1.01
    """
    if noise_multiplier == 0:
        return 0.0
    left = noise_multiplier**-2 - sum(z**-2 for z in probe_multipliers)
    if left <= 0:
        raise ValueError(
            f"the probes alone spend more than a noise multiplier of {noise_multiplier:g} allows: give them "
            "more noise"
        )
    return 1 / math.sqrt(left)
