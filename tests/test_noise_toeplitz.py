"""Columns whose running sums have little noise: golden values, gradients, and what is taken for granted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.optimize import check_grad

from sordino.noise import toeplitz as module
from sordino.noise.toeplitz import Array, best_column, error, inverse, square_root

STEPS = 2000


def matrix_of(column: Array, steps: int) -> Array:
    below = np.zeros(steps)
    below[: min(len(column), steps)] = column[:steps]
    found: Array = np.tril(toeplitz(below))
    return found


def error_by_matrices(column: Array, steps: int) -> float:
    """The plain way: sums times the inverse, row by row, times the largest column norm."""
    whole = matrix_of(column, steps)
    sums = np.tril(np.ones((steps, steps))) @ np.linalg.inv(whole)
    return math.sqrt(float((sums**2).sum()) / steps) * float(np.linalg.norm(whole, axis=0).max())


@pytest.mark.parametrize(
    ("visits", "identity", "dense", "banded", "optimised"),
    [
        (1, 31.6307, 3.3230, 3.3230, 3.26947),
        (5, 70.7284, 9.4216, 7.9495, 7.84910),
        (10, 100.025, 16.5068, 12.8528, 12.26658),
        (20, 141.457, 30.5965, 22.1895, 20.20669),
        (100, 316.307, 143.750, 91.0344, 77.82086),
    ],
)
def test_the_noise_of_sums_is_that_of_the_published_constructions(
    visits: int, identity: float, dense: float, banded: float, optimised: float
) -> None:
    """2000 steps, so many participations as far apart as they can be, at a noise multiplier of 1."""
    apart = STEPS // visits
    root = math.sqrt(visits)
    assert error(np.ones(1), STEPS) * root == pytest.approx(identity, rel=5e-6)
    assert error(square_root(apart), STEPS) * root == pytest.approx(banded, rel=5e-5 / banded + 1e-6)
    assert error(best_column(apart, STEPS), STEPS) * root == pytest.approx(optimised, rel=1e-6)
    # A dense column that overlaps with itself: the norm of the sum of all of a unit's columns.
    column = square_root(STEPS)
    overlapping = sum(np.concatenate([np.zeros(k * apart), column])[:STEPS] for k in range(visits))
    noise = error(column, STEPS) / float(np.linalg.norm(column))
    assert noise * float(np.linalg.norm(overlapping)) == pytest.approx(dense, rel=2e-5)


def test_the_square_root_has_its_published_norm_and_largest_error() -> None:
    column = square_root(STEPS)
    norm = float(np.linalg.norm(column))
    assert norm == pytest.approx(1.8669972, abs=5e-8)
    # Its inverse summed is itself once more, so the last running sum has the most noise: |c|^2 in all.
    sums = np.cumsum(inverse(column, STEPS))
    assert norm * math.sqrt(float((sums**2).sum())) == pytest.approx(3.4856785, abs=5e-8)
    np.testing.assert_allclose(np.convolve(column, column)[:STEPS], np.ones(STEPS), rtol=1e-10)


@pytest.mark.parametrize(("bands", "steps"), [(1, 7), (2, 30), (5, 64), (30, 30)])
def test_the_error_is_that_of_matrices(bands: int, steps: int) -> None:
    for column in (square_root(bands), best_column(bands, steps)):
        assert error(column, steps) == pytest.approx(error_by_matrices(column, steps), rel=1e-9)


@pytest.mark.parametrize(("bands", "steps"), [(2, 3000), (20, 2000), (100, 20_000)])
def test_the_error_of_a_long_run_is_exact_though_what_has_settled_is_not_summed(
    bands: int, steps: int
) -> None:
    column = best_column(bands, steps)
    sums = np.cumsum(inverse(column, steps))
    exact = math.sqrt(float(np.arange(steps, 0, -1) @ sums**2) / steps)
    assert error(column, steps) == pytest.approx(exact, rel=2e-6)


@pytest.mark.parametrize(("bands", "steps"), [(2, 40), (7, 40), (4, 2000), (9, 5)])
def test_the_gradient_is_that_of_finite_differences(bands: int, steps: int) -> None:
    generator = np.random.default_rng(1)
    point = square_root(bands)[1:] * (1 + 0.1 * generator.random(bands - 1))
    off = check_grad(
        lambda x: module._logarithm(x, steps)[0], lambda x: module._logarithm(x, steps)[1], point
    )
    assert off < 1e-5


@pytest.mark.parametrize(
    ("bands", "steps"), [(1, 10), (2, 10), (8, 2000), (64, 2000), (64, 10), (500, 100_000)]
)
def test_a_column_has_norm_one_falls_and_is_nowhere_negative(bands: int, steps: int) -> None:
    column = best_column(bands, steps)
    assert len(column) == bands
    assert 1 - 1e-11 < float(np.linalg.norm(column)) <= 1  # never above what is paid for
    assert (column >= 0).all()
    assert (np.diff(column) <= 0).all()
    assert np.isfinite(error(column, steps))
    assert error(column, steps) <= error(square_root(bands), steps)


def test_more_bands_are_never_noisier() -> None:
    errors = [error(best_column(bands, 500), 500) for bands in (1, 2, 3, 4, 8, 16, 50, 200, 500)]
    assert (np.diff(errors) < 0).all()


def test_a_column_that_diverges_is_no_way_to_go() -> None:
    value, slope = module._logarithm(np.array([5.0]), 10_000)
    assert math.isfinite(value)
    assert not slope.any()


def test_columns_are_found_once_and_cannot_be_overwritten() -> None:
    column = best_column(8, 100)
    assert best_column(8, 100) is column
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 2.0
