"""The two-dimensional scattering transform: wavelets, moduli and averages, with nothing learnt and nothing to leak."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from sordino.features.frozen import Frozen

_ANGLES = 8  # L
_SCALES = 2  # J: what is averaged over is 2^J pixels wide
_COARSE: int = 2**_SCALES
_CHANNELS = 1 + _SCALES * _ANGLES + _ANGLES**2  # of order 0, 1 and 2: 81 for each colour
_GROUPS = 27  # of channels that are normalised together, of all colours: 3 channels each in grey images, 9 in others
_LEAST = 8  # pixels of a side: the border is mirrored around an image
_PI = 3.1415  # as kymatio has it in the height of its filters


@dataclass(frozen=True)
class Scattering(Frozen):
    """Wavelet scattering of order 2 over 4 by 4 pixels and 8 angles: 28x28 becomes 81x7x7 for each colour.

    Each image is then normalised by itself: in each of 27 groups of channels that follow one another mean 0 and
    variance 1 over channels and places, so that no statistics of other rows are needed (Tramèr and Boneh's group
    normalisation).

    Guarantee: no row's features depend on another row, so what a run promises of rows it promises of images.

    Reference: Bruna and Mallat (2013), Invariant scattering convolution networks; Oyallon and Mallat (2015); in front
    of private models Tramèr and Boneh (2021), Differentially private learning needs better features.

    Args:
        normalised: Whether each image's features are normalised by themselves.
        mirrored: Whether left and right are the same, as in photographs: then the features are the mean of those of
            the image and of its mirror image, and their left half is all there is to know.

    >>> Scattering()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    normalised: bool = True
    mirrored: bool = False
    dtype: ClassVar[torch.dtype] = (
        torch.float16
    )  # of what is kept: numbers about 1, of which three digits are enough
    batch: ClassVar[int] = 32  # which stay in a processor's cache
    takes: ClassVar[str] = "images"

    @property
    def name(self) -> str:
        said = ["scattering"]
        said += [] if self.normalised else ["normalised=false"]
        said += ["mirrored=true"] if self.mirrored else []
        return ",".join(said)

    def shape(self, row: tuple[int, ...]) -> tuple[int, ...]:
        colours, height, width = _image(row)
        return colours * _CHANNELS, _outer(height), _left(_outer(width)) if self.mirrored else _outer(width)

    def __call__(self, rows: Tensor) -> Tensor:
        if not self.mirrored:
            return self._of(rows)
        left = self.shape(tuple(rows.shape[1:]))[2]
        found: Tensor = (self._of(rows) + self._of(rows.flip(-1)))[..., :left] / 2
        return found

    def _of(self, rows: Tensor) -> Tensor:
        colours, height, width = _image(tuple(rows.shape[1:]))
        found = scattered(rows.reshape(-1, height, width).to(torch.float32))
        found = found.reshape(len(rows), colours * _CHANNELS, *found.shape[2:])
        if self.normalised:
            # of each image by itself: nothing is learnt from the rows
            found = torch.nn.functional.group_norm(found, _GROUPS)
        return found


def _left(width: int) -> int:
    return -(-width // 2)


def _image(row: tuple[int, ...]) -> tuple[int, int, int]:
    shape = (1, *row) if len(row) == 2 else row
    if len(shape) != 3 or min(shape[1:]) < _LEAST:
        raise ValueError(
            f"scattering is for images (channels, height, width) of at least {_LEAST}x{_LEAST}, not rows of shape {row}"
        )
    return shape[0], shape[1], shape[2]


def scattered(images: Tensor) -> Tensor:
    """Coefficients (B, 81, height/4, width/4) of grey images (B, height, width), in the order of kymatio."""
    height, width = images.shape[1:]
    filters = _filters(height, width)
    top, left = (filters.height - height) // 2, (filters.width - width) // 2
    border = (left, filters.width - width - left, top, filters.height - height - top)
    padded = torch.nn.functional.pad(images.unsqueeze(1), border, mode="reflect")
    spectrum = torch.fft.fft2(padded)  # (B, 1, H, W)
    fine = _modulus(torch.fft.ifft2(spectrum * filters.fine))  # |x * psi_0|, one for each angle
    coarse = _modulus(
        torch.fft.ifft2(_halved(spectrum, filters.coarse))
    )  # |x * psi_1|, at every second pixel
    again = _halved(torch.fft.fft2(fine).unsqueeze(2), filters.coarse)
    second = _modulus(torch.fft.ifft2(again)).flatten(1, 2)  # ||x * psi_0| * psi_1|
    averages = [_averaged(each, filters.low) for each in (padded, fine)]
    averages += [_averaged(each, filters.low_halved) for each in (coarse, second)]
    return torch.cat(averages, 1)


def _halved(spectrum: Tensor, filters: Tensor) -> Tensor:
    """The filtered spectrum of every second pixel: a quarter of each of four aliases. They are added as they are made,
    since what all of them take together is more than a processor's cache."""
    height, width = filters.shape[1] // 2, filters.shape[2] // 2
    total = None
    for rows in (slice(height), slice(height, None)):
        for columns in (slice(width), slice(width, None)):
            alias, filtering = spectrum[..., rows, columns], filters[:, rows, columns] / 4
            total = alias * filtering if total is None else total.addcmul_(alias, filtering)
    assert total is not None
    return total


def _modulus(waves: Tensor) -> Tensor:
    parts = torch.view_as_real(
        waves
    )  # torch's own abs guards against overflow, and takes three times as long
    return (parts[..., 0] ** 2 + parts[..., 1] ** 2).sqrt_()


def _averaged(fields: Tensor, low: tuple[Tensor, Tensor]) -> Tensor:
    """The Gaussian average at every fourth pixel, without the border. It separates into rows and columns, so that it is
    two small products of matrices and needs no transform."""
    return low[0] @ fields @ low[1]


@dataclass(frozen=True, eq=False)
class _Filters:
    height: int  # with the border
    width: int
    fine: Tensor  # (8, H, W): wavelets of scale 0, as spectra
    coarse: Tensor  # of scale 1
    low: tuple[Tensor, Tensor]  # averages over rows and over columns
    low_halved: tuple[Tensor, Tensor]  # of fields at every second pixel


def _padded(size: int) -> int:
    return ((size + _COARSE) // _COARSE + 1) * _COARSE


def _outer(size: int) -> int:
    return _padded(size) // _COARSE - 2


@lru_cache(maxsize=4)
def _filters(height: int, width: int) -> _Filters:
    height, width = _padded(height), _padded(width)
    fine, coarse = (
        torch.stack([_wavelet(height, width, scale, angle) for angle in range(_ANGLES)])
        for scale in range(_SCALES)
    )
    low, low_halved = (
        (_average(height, halved), _average(width, halved).T.contiguous()) for halved in (False, True)
    )
    return _Filters(height, width, fine, coarse, low, low_halved)


def _wavelet(height: int, width: int, scale: int, angle: int) -> Tensor:
    """The spectrum of a Morlet wavelet: g(u) (e^(i xi u) - beta), beta such that its mean is zero; real."""
    theta = (_ANGLES // 2 - 1 - angle) * math.pi / _ANGLES
    deviation, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / _ANGLES
    wave = _gabor(height, width, deviation, theta, frequency, slant)
    envelope = _gabor(height, width, deviation, theta, 0.0, slant)
    morlet = wave - wave.sum() / envelope.sum() * envelope
    spectrum: Tensor = torch.fft.fft2(morlet).real
    return spectrum.to(torch.complex64)  # the type of what it is multiplied with


def _gabor(height: int, width: int, deviation: float, theta: float, frequency: float, slant: float) -> Tensor:
    """A Gaussian, longer across its waves, times a plane wave; periodic, from five periods each way."""
    down = torch.arange(-2 * height, 3 * height, dtype=torch.float64).reshape(-1, 1)
    right = torch.arange(-2 * width, 3 * width, dtype=torch.float64)
    along = math.cos(theta) * down + math.sin(theta) * right
    across = -math.sin(theta) * down + math.cos(theta) * right
    decay = (along**2 + slant**2 * across**2) / (2 * deviation**2)
    whole = torch.exp(torch.complex(-decay, frequency * along))
    once = whole.reshape(5, height, 5, width).sum((0, 2))
    scaled: Tensor = once / (2 * _PI * deviation**2 / slant)
    return scaled


def _average(size: int, halved: bool) -> Tensor:
    """The matrix (size / 4 - 2, size) of averages along one side, or (size / 4 - 2, size / 2) of every second pixel."""
    deviation = 0.8 * 2 ** (_SCALES - 1)
    places = torch.arange(-2 * size, 3 * size, dtype=torch.float64)
    gaussian = torch.exp(-(places**2) / (2 * deviation**2)).reshape(5, size).sum(0)
    gaussian /= math.sqrt(2 * _PI) * deviation
    spectrum = torch.fft.fft(gaussian).real
    if halved:
        spectrum[size // 4 : size // 4 + size // 2] = 0  # what every second pixel cannot show
        spectrum = spectrum.reshape(2, -1).sum(0)
    kernel = torch.fft.ifft(spectrum).real
    step = _COARSE // (2 if halved else 1)
    outer = torch.arange(1, size // _COARSE - 1).reshape(-1, 1) * step
    inner = torch.arange(len(kernel))
    matrix: Tensor = kernel[(outer - inner) % len(kernel)]
    return matrix.to(torch.float32)
