"""Noise statistics. Each test of the right noise also fails for noise 2/3 and 3/2 as large."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from sordino.data import Poisson
from sordino.noise import Gaussian, GaussianNoise, Streams, joint_split
from sordino.noise.grid import CHUNK

SIZES = [1, 2, 31, 33, 1000, 131072, 131073, 300_001]


def draw(size: int, std: float, *, step: int = 0, seed: int = 1) -> torch.Tensor:
    return GaussianNoise(Streams.from_seed(seed)).add_(torch.zeros(size), std, "noise", step)


def accepted(values: torch.Tensor, std: float) -> bool:
    return bool(stats.kstest(values.double().numpy(), "norm", args=(0, std)).pvalue > 1e-3)


def test_noise_is_gaussian_of_the_right_size_and_no_other() -> None:
    values = draw(200_000, 0.7)
    assert accepted(values, 0.7)
    assert not accepted(values, 0.7 * 2 / 3)
    assert not accepted(values, 0.7 * 3 / 2)


@pytest.mark.parametrize("size", SIZES)
def test_every_coordinate_gets_noise(size: int) -> None:
    """No tail of a chunk is left out: over many steps each coordinate has the right variance."""
    steps = 400 if size < 2000 else 20
    squares = sum(draw(size, 2.0, step=s).double().square() for s in range(steps)) / (4.0 * steps)
    assert isinstance(squares, torch.Tensor)
    low, high = (stats.chi2.ppf(p, steps) / steps for p in (1e-9, 1 - 1e-9))
    assert squares.min() > low
    assert squares.max() < high

    def plausible(mean_square: float) -> bool:
        count = size * steps
        return bool(stats.chi2.ppf(1e-6, count) < mean_square * count < stats.chi2.ppf(1 - 1e-6, count))

    overall = float(squares.mean())
    assert plausible(overall)
    assert not plausible(overall * 4 / 9)
    assert not plausible(overall * 9 / 4)


def test_pairs_from_one_radius_are_independent() -> None:
    half = CHUNK // 2
    values = draw(CHUNK, 1.0).double()
    one, two = values[:half], values[half:]
    bound = 5 / np.sqrt(half)
    assert abs(float((one * two).mean())) < bound
    assert abs(float(((one**2 - 1) * (two**2 - 1)).mean())) < 2 * bound
    assert abs(float((one[1:] * one[:-1]).mean())) < bound


def test_steps_and_purposes_are_independent() -> None:
    noise = GaussianNoise(Streams.from_seed(2))
    a, b, c = (
        noise.add_(torch.zeros(50_000), 1.0, purpose, step)
        for purpose, step in (("noise", 0), ("noise", 1), ("noise:q", 0))
    )
    for x, y in ((a, b), (a, c), (b, c)):
        assert abs(float((x * y).mean())) < 5 / np.sqrt(50_000)


def test_noise_is_added_in_place_and_replays_bit_for_bit() -> None:
    start = torch.randn(1000)
    noise = GaussianNoise(Streams.from_seed(3))
    once, again = start.clone(), start.clone()
    assert noise.add_(once, 0.5, "noise", 9) is once
    noise.add_(torch.zeros(70_000), 1.0, "noise", 10)
    noise.add_(again, 0.5, "noise", 9)
    assert torch.equal(once, again)
    assert noise.add_(start.clone(), 0.0, "noise", 9).equal(start)


def test_tails_reach_as_far_as_they_should() -> None:
    largest = max(float(draw(1_000_000, 1.0, step=s).abs().max()) for s in range(5))
    assert largest > 4.8  # P(max of 5e6 normals < 4.8) is below 1e-3


@pytest.mark.parametrize("std", [1e-30, 1e-12, 1e12, 1e30])
def test_extreme_noise_neither_vanishes_nor_overflows(std: float) -> None:
    assert accepted(draw(10_000, std) / std, 1.0)


def test_split_of_a_joint_release() -> None:
    assert joint_split(1.0, [7.123990720172]) == pytest.approx(1.01)  # ALGORITHMS.md D1
    assert joint_split(1.0, [7.124]) == pytest.approx(1.0099999736, abs=1e-9)
    assert joint_split(1.0, [2 * 25.6]) == pytest.approx(1.0001907895, abs=1e-9)  # D5
    assert joint_split(0.0, [0.0]) == 0.0
    z, probes = 1.3, [9.0, 20.0]
    gradient = joint_split(z, probes)
    assert gradient**-2 + sum(p**-2 for p in probes) == pytest.approx(z**-2)
    with pytest.raises(ValueError, match="more noise"):
        joint_split(2.0, [1.0])


def test_independent_noise_gathers_with_the_root_of_the_steps() -> None:
    releases = Gaussian().over(Poisson(0.1), 100, None)
    assert [releases.gathered(steps) for steps in (1, 4, 225)] == [1.0, 2.0, 15.0]
