"""The scattering transform against values of kymatio, and what its place in front of a private model asks of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.features.scattering import Scattering, scattered

# Made by kymatio 0.3 (beside a current SciPy it needs `scipy.special.sph_harm = None` before it is imported):
# Scattering2D(2, (height, width), L=8) of `images(height, width)`.
GOLDEN = json.loads((Path(__file__).parent / "golden_scattering.json").read_text())["values"]


def images(height: int, width: int) -> Tensor:
    y, x = np.mgrid[0:height, 0:width]
    stripes = (7 * x + 13 * y + 3 * x * y) % 17 / 17
    bump = np.exp(-((x - width / 3) ** 2 + (y - height / 2) ** 2) / 20)
    return torch.from_numpy(np.stack([stripes, bump]).astype(np.float32))


@pytest.mark.parametrize("size", GOLDEN)
def test_coefficients_are_those_of_kymatio(size: str) -> None:
    height, width = map(int, size.split("x"))
    found, golden = scattered(images(height, width)), GOLDEN[size]
    assert list(found.shape) == golden["shape"]
    middle = found[:, :, found.shape[2] // 2, found.shape[3] // 2]
    for part, name in ((middle, "middle"), (found[:, :, 0, -1], "corner")):
        torch.testing.assert_close(part, torch.tensor(golden[name]), rtol=1e-5, atol=1e-6)
    squares = found.double().square().sum((2, 3))
    torch.testing.assert_close(
        squares, torch.tensor(golden["squares"], dtype=torch.float64), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("colours", "size", "outer"), [(1, 28, 7), (3, 32, 8), (1, 8, 2)])
def test_shapes_are_known_before_a_row_is(colours: int, size: int, outer: int) -> None:
    shape = Scattering().shape((colours, size, size))
    assert shape == (81 * colours, outer, outer)
    assert Scattering()(torch.rand(2, colours, size, size)).shape[1:] == shape


def test_images_without_a_channel_are_grey_and_small_ones_are_refused() -> None:
    rows = torch.rand(2, 12, 12)
    assert torch.equal(Scattering()(rows), Scattering()(rows.unsqueeze(1)))
    with pytest.raises(ValueError, match="at least 8x8, not rows of shape"):
        Scattering().shape((1, 7, 28))
    with pytest.raises(ValueError, match="scattering is for images"):
        Scattering().shape((64,))


@pytest.mark.parametrize(("colours", "size", "outer"), [(1, 28, (7, 4)), (3, 32, (8, 4)), (1, 8, (2, 1))])
def test_photographs_and_their_mirror_images_have_the_same_features(
    colours: int, size: int, outer: tuple[int, int]
) -> None:
    features, rows = Scattering(mirrored=True), torch.rand(2, colours, size, size)
    assert features.name == "scattering,mirrored=true"
    assert features.shape((colours, size, size)) == (81 * colours, *outer)
    assert features(rows).shape[1:] == features.shape((colours, size, size))
    torch.testing.assert_close(features(rows), features(rows.flip(3)))
    plain = Scattering()
    whole = (plain(rows) + plain(rows.flip(3))) / 2
    torch.testing.assert_close(features(rows), whole[..., : outer[1]])


def test_an_image_is_normalised_by_itself_and_whatever_stands_beside_it() -> None:
    rows = torch.rand(4, 3, 16, 16)
    found = Scattering()(rows)
    groups = found.reshape(4, 27, 9, *found.shape[2:])
    torch.testing.assert_close(groups.mean((2, 3, 4)), torch.zeros(4, 27), rtol=0, atol=1e-5)
    spread = groups.flatten(2).var(2, unbiased=False)
    assert 0.99 < float(spread.max()) < 1.001  # weak groups have less
    others = torch.cat([rows[:1], 100 * torch.rand(3, 3, 16, 16)])
    assert torch.equal(Scattering()(others)[0], found[0])  # to the last digit
    assert torch.isfinite(Scattering()(torch.zeros(1, 1, 8, 8))).all()


def test_it_hardly_moves_when_an_image_does_and_tells_directions_apart() -> None:
    across, down = torch.zeros(1, 1, 32, 32), torch.zeros(1, 1, 32, 32)
    across[..., ::4], down[..., ::4, :] = 1, 1
    plain = Scattering(normalised=False)
    moved = (plain(across.roll(1, -1)) - plain(across)).norm()
    assert 5 * moved < (plain(down) - plain(across)).norm()
