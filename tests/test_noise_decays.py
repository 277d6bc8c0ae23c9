"""Columns that are sums of decays: what they are, by how much a unit moves them, and how good the best ones are."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from scipy.linalg import toeplitz

from sordino.noise import decays as module
from sordino.noise.decays import Decays, best_decays
from sordino.noise.toeplitz import Array, best_column, error, inverse, square_root
from sordino.noise.tree import Tree, noise_of_sums

STEPS = 2000
SOME = [
    Decays((), ()),
    Decays((1.0,), (0.0,)),
    Decays((0.3,), (0.99,)),
    Decays((0.1, 0.0, 0.4), (0.999, 0.9, 0.3)),
    Decays((0.25, 0.25, 0.25, 0.25), (0.9, 0.9, 0.0, 0.5)),
]


def matrix(decays: Decays, steps: int) -> Array:
    found: Array = np.tril(toeplitz(decays.column(steps)))
    return found


def by_definition(decays: Decays, steps: int) -> list[float]:
    return [1.0] + [
        sum(weight * rate ** (j - 1) for weight, rate in zip(decays.weights, decays.rates, strict=True))
        for j in range(1, steps)
    ]


@pytest.mark.parametrize("decays", SOME, ids=str)
def test_a_column_is_what_it_says_and_its_inverse_the_matrix_s(decays: Decays) -> None:
    column = decays.column(60)
    np.testing.assert_allclose(column, by_definition(decays, 60), rtol=1e-12)
    assert (column >= 0).all()
    assert (np.diff(column) <= 0).all()
    np.testing.assert_allclose(decays.inverse(60), inverse(column, 60), atol=1e-12)
    np.testing.assert_allclose(decays.inverse(60), np.linalg.inv(matrix(decays, 60))[:, 0], atol=1e-12)


@pytest.mark.parametrize("decays", SOME, ids=str)
def test_the_noise_of_sums_is_that_of_matrices(decays: Decays) -> None:
    sums = np.tril(np.ones((60, 60))) @ np.linalg.inv(matrix(decays, 60))
    assert decays.noise_of_sums(60) == pytest.approx(math.sqrt(float((sums**2).sum()) / 60))
    if decays.rates:
        assert decays.error(60, 60) == pytest.approx(error(decays.column(60), 60), rel=1e-6)


# Sensitivity --------------------------------------------------------------------------------------------------


def patterns(steps: int, apart: int) -> list[tuple[int, ...]]:
    """Every set of steps that are so far apart."""
    return [
        at
        for count in range(1, -(-steps // apart) + 1)
        for at in combinations(range(steps), count)
        if all(later - before >= apart for before, later in pairwise(at))
    ]


@pytest.mark.parametrize("decays", [*SOME, best_decays(4, 10, 3), best_decays(2, 10, 10)], ids=str)
@pytest.mark.parametrize(("steps", "apart"), [(7, 1), (10, 2), (10, 3), (11, 4), (9, 8), (6, 20)])
def test_no_pattern_moves_more_and_one_moves_as_much(decays: Decays, steps: int, apart: int) -> None:
    """With any signs, and with directions of one's own."""
    whole, claimed = matrix(decays, steps), decays.sensitivity(steps, apart)
    chance = np.random.default_rng(steps)
    worst = 0.0
    for at in patterns(steps, apart):
        columns = whole[:, list(at)]
        signs = np.array(list(product((-1.0, 1.0), repeat=len(at)))).T
        directions = chance.normal(size=(len(at), 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        worst = max(worst, float(np.linalg.norm(columns @ signs, axis=0).max()))
        worst = max(worst, float(np.linalg.norm(columns @ directions)))
    assert worst <= claimed
    assert worst == pytest.approx(claimed, rel=1e-7)


def test_a_column_that_rises_could_move_more_than_the_formula_says() -> None:
    """Why weights are at least 0 and at most 1 together."""
    whole = np.tril(toeplitz([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]))
    assert whole[:, [0, 2, 4]].sum(1) @ whole[:, [0, 2, 4]].sum(1) == 5
    assert whole[:, [0, 3, 5]].sum(1) @ whole[:, [0, 3, 5]].sum(1) == 6
    with pytest.raises(ValueError, match="at most 1 together"):
        Decays((0.6, 0.6), (0.5, 0.1))


@pytest.mark.parametrize(
    ("weights", "rates", "message"),
    [
        ((-0.1,), (0.5,), "weights are at least 0"),
        ((float("nan"),), (0.5,), "weights are at least 0"),
        ((0.1,), (1.0,), r"rates are in \[0, 1\)"),
        ((0.1,), (-0.1,), r"rates are in \[0, 1\)"),
        ((0.1,), (0.5, 0.1), "a weight for every rate"),
    ],
)
def test_what_has_no_price_is_no_column(weights: Any, rates: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decays(weights, rates)


# The best -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffers", [1, 2, 4])
@pytest.mark.parametrize(("steps", "apart"), [(1, 1), (5, 2), (201, 200), (300, 7), (STEPS, 200), (STEPS, 1)])
def test_what_the_search_makes_least_is_the_error(buffers: int, steps: int, apart: int) -> None:
    point = module._spread(buffers, steps) + np.random.default_rng(1).normal(size=2 * buffers) / 3
    decays = module._of_gaps(*module._gaps(point))
    assert math.exp(module._logarithm(point, steps, apart)) == pytest.approx(
        decays.error(steps, apart), rel=1e-7
    )


def test_four_buffers_are_as_good_as_the_best_column_where_a_unit_takes_part_once() -> None:
    best = error(best_column(STEPS, STEPS), STEPS)
    assert best == pytest.approx(3.26947, rel=1e-5)
    found = {buffers: best_decays(buffers, STEPS, STEPS).error(STEPS, STEPS) for buffers in (1, 2, 3, 4)}
    assert found == pytest.approx({1: 3.8486, 2: 3.3183, 3: 3.2737, 4: 3.2704}, rel=1e-4)
    assert found[4] < 1.0005 * best


@pytest.mark.parametrize(
    ("visits", "buffered", "banded", "dense", "trees", "kept"),
    [(5, 8.1466, 7.84910, 9.4216, 13.026, 3), (10, 12.8942, 12.26658, 16.5068, 19.880, 2),
     (20, 21.374, 20.20669, 30.5965, 30.971, 2),
     (100, 81.699, 77.82086, 143.750, 97.357, 1)],
)  # fmt: skip
def test_where_units_return_sums_are_a_little_noisier_than_with_bands_for_far_less_memory(
    visits: int, buffered: float, banded: float, dense: float, trees: float, kept: int
) -> None:
    apart = STEPS // visits
    decays = best_decays(4, STEPS, apart)
    found = decays.error(STEPS, apart)
    assert found == pytest.approx(buffered, rel=2e-4)
    assert len(decays.rates) == kept
    assert found < 1.06 * banded
    column = square_root(STEPS)
    overlapping = column.reshape(visits, apart).cumsum(0).ravel()
    root = error(column, STEPS) / float(np.linalg.norm(column)) * float(np.linalg.norm(overlapping))
    assert root == pytest.approx(dense, rel=2e-5)
    assert found < root
    assert math.sqrt(noise_of_sums(Tree().planned(STEPS, apart), STEPS, apart)) == pytest.approx(
        trees, rel=1e-4
    )
    assert found < 0.9 * trees


@pytest.mark.parametrize(
    ("steps", "apart"), [(1, 1), (2, 1), (3, 3), (50, 1), (100, 30), (3000, 3000), (100_000, 500)]
)
def test_the_best_are_never_noisier_than_independent_noise(steps: int, apart: int) -> None:
    decays = best_decays(4, steps, apart)
    assert len(decays.rates) <= 4
    assert decays.error(steps, apart) <= 1.002 * Decays((), ()).error(steps, apart)
    column = decays.column(min(steps, 5000))
    assert (column >= 0).all()
    assert (np.diff(column) <= 0).all()


def test_more_buffers_are_never_much_noisier() -> None:
    errors = [best_decays(buffers, 500, 500).error(500, 500) for buffers in range(1, 8)]
    assert (np.array(errors[1:]) <= 1.0011 * np.array(errors[:-1])).all()


def test_they_are_found_once_and_always_the_same() -> None:
    assert best_decays(3, 400, 50) is best_decays(3, 400, 50)
    first = best_decays(3, 400, 50)
    best_decays.cache_clear()
    assert best_decays(3, 400, 50) == first
