"""From noisy counts and sums to offsets and deviations. All of it is post-processing: no row is seen here."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOWEST, HIGHEST = -48, 48  # exponents of two that magnitudes are counted by
BINS = HIGHEST - LOWEST + 2  # the first holds zero, and what is nearer to it than 2^LOWEST
CELLS = 64  # equal parts from -scale to scale that places are counted by
RARE = 0.01  # of the units: what fewer of them have is beyond the scale of a feature
BEYOND_CHANCE = 1.0  # standard deviations above the largest that the noise of all bins is expected to have
OFFSET_SEEN = 3.0  # standard deviations of its noise: a smaller offset is left at 0
SIZE_SEEN = 2.0  # likewise of the size that rows have together
FAR = 0.4  # of the scale: what gathers beyond is centred before deviations are looked at
WINDOW = 3  # bins side by side that hold most of a feature
STRETCHES = (1, 2, 4, 8, 16)  # cells side by side in which a feature that is far from 0 may gather
GATHERED = 0.85  # of the units, beyond the noise: what fewer of them have is not all of a feature
SURE = 0.9  # how likely the scale of a feature is not taken for too small, where its own counts do not tell
FLOOR = 0.1  # of a deviation, in times of the feature's scale: a feature that hardly moves is not blown up
SPARSE = 0.5  # of the units: where more of them have 0, a feature says whether rather than how much
FLOOR_OF_SPARSE = 0.5  # of its deviation: it keeps about the size that it has where it is not 0
COUNT_SEEN = 4.0  # standard deviations below n, from which on rows that count as nothing are believed in
FEWEST = 0.05  # of the units that are taken to count, whatever the noise says


def scales(counts: Tensor, std: float, units: int, sparse: Tensor) -> Tensor:
    """A power of two for each feature [F], below which nearly all its magnitudes are, from noisy counts [F, BINS].

    The highest bin that holds more than `RARE` of the units and more than noise explains. Where no bin of a feature
    does, those that are ``sparse`` [F] have what they have together, and of others see `_likely`.
    """
    clear = counts > max(_by_chance(counts.numel()) * std, RARE * units)
    clear[:, 0] = False
    unclear = ~clear.any(1)
    bins = torch.where(unclear, _likely(counts, std), _highest(clear))
    alike = unclear & sparse
    together = _of_all(counts[alike], std)
    bins[alike] = bins[alike] if together is None else together
    return torch.pow(2.0, (bins + LOWEST).double())  # the upper end of a bin


def are_sparse(counts: Tensor, units: int) -> Tensor:
    """Which features [F] are 0 in most units, from noisy counts of magnitudes [F, BINS]."""
    return counts[:, 0] > SPARSE * units


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


def _of_all(counts: Tensor, std: float) -> int | None:
    """The bin up to which nearly all is that these features have together; None where nothing is seen of it.

    Of a rare word or category nothing is seen alone, but one is as large as another.
    """
    pooled = counts.sum(0)
    pooled[0] = 0.0
    pooled = pooled.where(pooled > _by_chance(BINS) * std * math.sqrt(len(counts)), 0.0)
    if len(counts) == 0 or not bool(pooled.any()):
        return None
    return int((pooled.cumsum(0) < SURE * pooled.sum()).sum())


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


def centres(counts: Tensor, std: float, units: int, scale: Tensor) -> Tensor:
    """Where a feature gathers that is far from 0 for its size, from noisy counts of x / scale by cells [F, CELLS].

    The middle of the narrowest stretch of cells that holds nearly all of it. Of all others 0: what is near 0, or wide,
    is found well enough from there. (A mean is as noisy as the scale is wide, which is more than a feature moves that
    is far from 0; and where a part of it gathers is no place to see the rest from.)
    """
    middle = torch.zeros(len(counts), dtype=torch.float64)
    for cells in reversed(STRETCHES):
        most, place = counts.unfold(1, cells, 1).sum(2).max(1)
        here = (place + cells / 2) * (2 / CELLS) - 1
        held = most > GATHERED * units + std * math.sqrt(cells)
        middle = torch.where(held & (here.abs() > FAR), here.double(), middle)
    return scale * middle


def floors(sparse: Tensor) -> Tensor:
    """Of the deviation of each feature [F], in times of its scale.

    A category that few rows have, or a rare word, divided by its deviation would be a large number in those rows.
    """
    dense, rare = torch.tensor([FLOOR, FLOOR_OF_SPARSE], dtype=torch.float64)
    return torch.where(sparse, rare, dense)


def spreads(
    sums: Tensor, std: float, units: int, centre: Tensor, scale: Tensor, floor: Tensor
) -> tuple[Tensor, Tensor]:
    """Offset and deviation of each feature from noisy sums [2 F + 1] of (x - centre) / scale, of its square, and of the
    rows; the deviation no less than ``floor`` [F] times the scale.

    Where floors hold many of them, rows are shorter than standardised ones: then all are divided by what is missing.
    """
    features, count = len(scale), counted(float(sums[-1]), std, units)
    mean, square = sums[:features] / count, sums[features:-1] / count
    noise = std / count
    seen = (mean.abs() > OFFSET_SEEN * noise) | (centre != 0)
    mean = mean.where(seen, torch.tensor(0.0).double()).clamp(-1, 1)
    variance, of_variance = square - mean.square(), noise * (1 + 2 * mean.abs())
    deviation = deviations(variance, of_variance, floor)
    size = _size(variance / deviation.square(), of_variance / deviation.square())
    return centre + scale * mean, scale * deviation * size


def _size(squares: Tensor, noise: Tensor) -> float:
    """The root mean square of numbers in a row, from noisy squares [F]: never less than what the noise lets see, nor
    more than 1."""
    least = max(SIZE_SEEN * float(noise.norm()), 1.0) / len(squares)
    return math.sqrt(min(max(float(squares.mean()), least), 1.0))


def deviations(variance: Tensor, noise: Tensor, floor: Tensor) -> Tensor:
    """In times of the scale: never less than what the noise lets see, nor than ``floor``, nor more than 1."""
    return variance.clamp(min=0).maximum(noise).maximum(floor.square()).clamp(max=1.0).sqrt()
