"""From noisy counts and sums to offsets and deviations. All of it is post-processing: no row is seen here."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOWEST, HIGHEST = -48, 48  # exponents of two that magnitudes are counted by
BINS = HIGHEST - LOWEST + 2  # the first holds zero, and what is nearer to it than 2^LOWEST
RARE = 0.01  # of the units: what fewer of them have is beyond the scale of a feature
BEYOND_CHANCE = 1.0  # standard deviations above the largest that the noise of all bins is expected to have
OFFSET_SEEN = 3.0  # standard deviations of its noise: a smaller offset is left at 0
FAR = 0.4  # of the scale: a mean beyond is taken off before deviations are looked at
WINDOW = 3  # bins side by side that hold most of a feature
SURE = 0.9  # how likely the scale of a feature is not taken for too small, where its own counts do not tell
FLOOR = 0.1  # of a deviation, in times of the feature's scale: a feature that hardly moves is not blown up
SPARSE = 0.5  # of the units: where more of them have 0, a feature says whether rather than how much
FLOOR_OF_SPARSE = 0.5  # of its deviation: it keeps about the size that it has where it is not 0
COUNT_SEEN = 4.0  # standard deviations below n, from which on rows that count as nothing are believed in
FEWEST = 0.05  # of the units that are taken to count, whatever the noise says


def scales(counts: Tensor, std: float, units: int) -> Tensor:
    """A power of two for each feature [F], below which nearly all its magnitudes are, from noisy counts [F, BINS].

    The highest bin that holds more than `RARE` of the units and more than noise explains. Where no bin of a feature
    does, as where it is nearly always 0, see `_likely`.
    """
    clear = counts > max(_by_chance(counts.numel()) * std, RARE * units)
    clear[:, 0] = False
    bins = torch.where(clear.any(1), _highest(clear), _likely(counts, std))
    return torch.pow(2.0, (bins + LOWEST).double())  # the upper end of a bin


def looked_at_twice(first: Tensor, second: Tensor, centre: Tensor) -> Tensor:
    """Counts of distances from the centre [F, BINS], with the noise of one release: of features whose centre is 0 both
    releases have counted the same."""
    return torch.where((centre == 0).unsqueeze(1), (first + second) / math.sqrt(2), second)


def _likely(counts: Tensor, std: float) -> Tensor:
    """A bin for each feature that most likely is not below its own.

    Magnitudes of a feature are in a few bins side by side, or in one (categories): what a bin has beyond its noise, or
    a window of `WINDOW` of them, says how likely it is, beside what all features together have there. A feature whose
    scale is taken for too small is blown up, which is worse than the other way round: so it is a high quantile of what
    is likely. Only bins between those where something is seen of one feature or of all; where nothing is, that below 1.
    """
    own = _evidence(counts / std)
    pooled = _evidence(counts.sum(0, keepdim=True) / (std * math.sqrt(len(counts))))[0]
    seen = (pooled > _by_chance(BINS)) | (own > _by_chance(counts.numel())).any(0)
    places = seen.nonzero().flatten()
    if len(places) == 0:
        return torch.full((len(counts),), -LOWEST)
    likely = pooled.clamp(min=1.0).log() + own.clamp(min=0).square() / 2
    likely[:, : int(places[0])] = -math.inf
    likely[:, int(places[-1]) + 1 :] = -math.inf
    return (likely.softmax(1).cumsum(1) < SURE).sum(1).clamp(max=BINS - 1)


def _evidence(counts: Tensor) -> Tensor:
    """In standard deviations, for each bin as the highest of a feature; the first, that of zero, is nobody's."""
    lowest = torch.zeros(len(counts), WINDOW, dtype=counts.dtype)
    windows = torch.cat([lowest, counts[:, 1:]], 1).unfold(1, WINDOW, 1).sum(2) / math.sqrt(WINDOW)
    return torch.cat([lowest[:, :1], windows.maximum(counts.clamp(min=0))[:, 1:]], 1)


def _by_chance(bins: int) -> float:
    return math.sqrt(2 * math.log(bins)) + BEYOND_CHANCE


def _highest(clear: Tensor) -> Tensor:
    return BINS - 1 - clear.flip(1).int().argmax(1)


def counted(noisy: float, std: float, units: int) -> float:
    """How many units count: all, unless the noise does not explain what is missing."""
    return float(units) if noisy > units - COUNT_SEEN * std else max(noisy, FEWEST * units)


def centres(sums: Tensor, std: float, units: int, scale: Tensor) -> Tensor:
    """A rough mean of each feature that is far from 0 for its size, from noisy sums [F + 1] of values over ``scale``;
    the last is that of the rows. Of all others 0: around the mean of a feature that is 0 for nearly all, these would be
    its scale, and what is near 0 is found well enough from there."""
    count = counted(float(sums[-1]), std, units)
    means = sums[:-1] / count
    far = means.abs() > max(FAR, OFFSET_SEEN * std / count)
    return scale * means.where(far, torch.tensor(0.0).double()).clamp(-1, 1)


def floors(counts: Tensor, units: int) -> Tensor:
    """Of the deviation of each feature [F], in times of its scale, from noisy counts of magnitudes [F, BINS].

    A category that few rows have, or a rare word, divided by its deviation would be a large number in those rows.
    """
    dense, sparse = counts.new_tensor([FLOOR, FLOOR_OF_SPARSE])
    return torch.where(counts[:, 0] > SPARSE * units, sparse, dense)


def spreads(
    sums: Tensor, std: float, units: int, centre: Tensor, scale: Tensor, floor: Tensor
) -> tuple[Tensor, Tensor]:
    """Offset and deviation of each feature from noisy sums [2 F + 1] of (x - centre) / scale, of its square, and of the
    rows; the deviation no less than ``floor`` [F] times the scale."""
    features, count = len(scale), counted(float(sums[-1]), std, units)
    mean, square = sums[:features] / count, sums[features:-1] / count
    noise = std / count
    seen = (mean.abs() > OFFSET_SEEN * noise) | (centre != 0)
    mean = mean.where(seen, torch.tensor(0.0).double()).clamp(-1, 1)
    return centre + scale * mean, scale * deviations(
        square - mean.square(), noise * (1 + 2 * mean.abs()), floor
    )


def deviations(variance: Tensor, noise: Tensor, floor: Tensor) -> Tensor:
    """In times of the scale: never less than what the noise lets see, nor than ``floor``, nor more than 1."""
    return variance.clamp(min=0).maximum(noise).maximum(floor.square()).clamp(max=1.0).sqrt()
