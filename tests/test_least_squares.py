"""DP-FTRL for least squares: the solution, the noise, the price, and scikit-learn's manners."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import check_estimator

from sordino.least_squares import LeastSquares, regularised_solution
from sordino.noise import GaussianNoise
from sordino.noise.grid import grid_for
from sordino.privacy import Ledger, recompute
from sordino.privacy.events import leaves

RANDOM = np.random.default_rng(5)
ROWS, TARGETS = RANDOM.normal(size=(50, 4)), RANDOM.normal(size=50)  # many beyond the bounds


def exact(**settings: Any) -> LeastSquares:
    return LeastSquares(**{"horizon": 100, "noise_multiplier": 0, "regularisation": 0.5, **settings})


def noisy(**settings: Any) -> LeastSquares:
    return LeastSquares(**{"horizon": 100, "noise_multiplier": 2.0, "seed": 1, **settings})


def sums_of(model: LeastSquares) -> tuple[np.ndarray, np.ndarray]:
    return model._opened.unpacked(model._sums)


def clipped_by_hand(rows: np.ndarray, targets: np.ndarray, bound: float) -> tuple[np.ndarray, np.ndarray]:
    norms = np.array([math.sqrt(sum(v * v for v in row)) for row in rows])
    return rows * np.minimum(1, bound / norms)[:, None], np.clip(targets, -1, 1)


# The solution ---------------------------------------------------------------------------------------------


def test_golden_solution_c14() -> None:
    solution = regularised_solution(np.array([[2, 0.5], [0.5, 1]]), np.array([1.0, -1.0]), 0.4)
    np.testing.assert_allclose(solution, [0.71129707, -1.12970711], atol=5e-9)


def test_negative_eigenvalues_count_as_zero() -> None:
    turn = np.linalg.qr(RANDOM.normal(size=(3, 3)))[0]
    bias = np.array([1.0, 2.0, 3.0])
    indefinite, projected = (turn @ np.diag(values) @ turn.T for values in ([-5, 0.1, 2], [0, 0.1, 2]))
    expected = np.linalg.solve(projected + 0.15 * np.eye(3), bias)
    np.testing.assert_allclose(regularised_solution(indefinite, bias, 0.3), expected, rtol=1e-9)


@pytest.mark.parametrize("bound", [0.3, 1.0, 2.5])
def test_without_noise_every_model_of_the_stream_is_ridge_on_the_clipped_rows(bound: float) -> None:
    rows, targets = clipped_by_hand(ROWS, TARGETS, bound)
    assert (np.linalg.norm(ROWS, axis=1) > bound).any()
    assert (abs(TARGETS) > 1).any()
    model = exact(row_bound=bound)
    for t in range(1, len(ROWS) + 1):
        model.partial_fit(ROWS[t - 1 : t], TARGETS[t - 1 : t])
        x, y = rows[:t], targets[:t]
        expected = np.linalg.solve(x.T @ x + 0.25 * np.eye(4), x.T @ y)
        np.testing.assert_allclose(model.coef_, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.coef_, Ridge(alpha=0.25, fit_intercept=False).fit(rows, targets).coef_)
    np.testing.assert_allclose(model.predict(ROWS), ROWS @ model.coef_)


def test_rows_one_by_one_or_together_give_the_same_model() -> None:
    together = noisy(horizon=16).fit(ROWS, TARGETS)
    one_by_one, pieces = noisy(horizon=16), noisy(horizon=16)
    for row, target in zip(ROWS, TARGETS, strict=True):
        one_by_one.partial_fit(row[None], [target])
    for part in np.array_split(np.arange(50), [3, 20, 33]):
        pieces.partial_fit(ROWS[part], TARGETS[part])
    # Sums of other pieces are rounded to the grid of the noise elsewhere.
    np.testing.assert_allclose(one_by_one.coef_, together.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(pieces.coef_, together.coef_, rtol=1e-4, atol=1e-6)


def test_the_intercept_is_a_constant_feature() -> None:
    rows, targets = clipped_by_hand(ROWS, TARGETS + 0.5, 0.7)
    model = exact(row_bound=0.7, fit_intercept=True).fit(ROWS, TARGETS + 0.5)
    wider = np.column_stack([rows, np.full(50, 0.7)])
    theta = np.linalg.solve(wider.T @ wider + 0.25 * np.eye(5), wider.T @ targets)
    np.testing.assert_allclose(model.coef_, theta[:4])
    assert model.intercept_ == pytest.approx(0.7 * theta[4])
    np.testing.assert_allclose(model.predict(ROWS), ROWS @ theta[:4] + 0.7 * theta[4])
    assert exact().fit(ROWS, TARGETS).intercept_ == 0


def test_a_row_that_is_not_finite_counts_as_zeros_and_nobody_is_told() -> None:
    rows, targets = ROWS.copy(), TARGETS.copy()
    rows[3, 1], rows[7, 0], targets[11] = math.nan, math.inf, math.nan
    others = np.delete(np.arange(50), [3, 7, 11])
    for intercept in (False, True):
        model = exact(fit_intercept=intercept).fit(rows, targets)
        without = exact(fit_intercept=intercept).fit(ROWS[others], TARGETS[others])
        np.testing.assert_allclose(model.coef_, without.coef_)
        assert model.n_rows_ == 50


@pytest.mark.parametrize("size", [1e-300, 1e3, 1e300])
def test_the_size_of_a_row_beyond_the_bound_does_not_matter(size: float) -> None:
    one = exact().fit(np.array([[3.0, 4.0], [0.0, 0.0]]), [1.0, 5.0])
    two = exact().fit(np.array([[3.0, 4.0], [0.0, 0.0]]) * size, [7.0 * max(size, 1), 5.0])
    expected = [0.6, 0.8] if size > 1 else np.multiply([3, 4], size)
    np.testing.assert_allclose(sums_of(two)[0], expected, rtol=1e-12)
    if size > 1:
        np.testing.assert_allclose(one.coef_, two.coef_)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("bound", [0.2, 1.0, 30.0])
def test_one_row_moves_the_sums_by_no_more_than_their_noise_is_for(bound: float, intercept: bool) -> None:
    """V1: with the stds of the nodes this makes 2 / sigma^2 for each node above the row."""
    generator = np.random.default_rng(2)
    norm = bound * math.sqrt(2 if intercept else 1)
    largest = [0.0, 0.0]
    extreme = [np.eye(4)[0] * 1e9, np.full(4, 50.0), np.full(4, -1e200), np.zeros(4)]
    for row in [*extreme, *generator.standard_cauchy((40, 4)) * bound]:
        rows, targets = generator.normal(size=(5, 4)), generator.normal(size=5)
        targets[2] = generator.choice([-1e300, 1e5, 0.3])
        rows[2] = row
        with_row = sums_of(exact(row_bound=bound, fit_intercept=intercept).fit(rows, targets))
        rows[2] = math.nan  # as if it were not there
        without = sums_of(exact(row_bound=bound, fit_intercept=intercept).fit(rows, targets))
        bias, covariance = (a - b for a, b in zip(with_row, without, strict=True))
        moved = [float(np.linalg.norm(bias)) / norm, float(np.linalg.norm(np.triu(covariance))) / norm**2]
        largest = [max(a, b) for a, b in zip(largest, moved, strict=True)]
    assert max(largest) <= 1 + 1e-12
    assert min(largest) > (0.7 if intercept else 0.999)  # and no less: the bound is what a row can do


# The noise ------------------------------------------------------------------------------------------------


def test_the_noise_of_the_second_sums_is_symmetric_and_the_trees_share_none() -> None:
    bias, covariance = sums_of(noisy(row_bound=3.0).fit(np.zeros((7, 4)), np.zeros(7)))
    np.testing.assert_array_equal(covariance, covariance.T)
    noise = np.concatenate([bias / 3, covariance[np.triu_indices(4)] / 9])
    assert len(np.unique(noise.round(9))) == 4 + 10


@pytest.mark.parametrize("efficient", [False, True])
def test_variance_of_both_sums_over_many_keys_is_the_theory_s_and_no_other(efficient: bool) -> None:
    keys, rows, bound, multiplier = 150, 7, 2.0, 1.5
    noise_of_bias, noise_of_covariance = [], []
    for seed in range(keys):
        model = LeastSquares(
            horizon=10, noise_multiplier=multiplier, row_bound=bound, efficient=efficient, seed=seed
        )
        bias, covariance = sums_of(model.fit(np.zeros((rows, 3)), np.zeros(rows)))
        noise_of_bias.append(bias)
        noise_of_covariance.append(covariance[np.triu_indices(3)])
    nodes = 2.238095238 if efficient else 3.0  # 7 rows: C2
    stds = [bound * multiplier, bound**2 * multiplier]
    for noise, std in zip([noise_of_bias, noise_of_covariance], stds, strict=True):
        values = np.array(noise)

        def fits(scale: float, values: np.ndarray = values, std: float = std) -> bool:
            low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], values.size)
            return bool(low < ((scale * values) ** 2).sum() / (nodes * std**2) < high)

        assert fits(1.0)
        assert not fits(2 / 3)
        assert not fits(3 / 2)
        correlations = np.corrcoef(values.T) - np.eye(values.shape[1])
        assert abs(correlations).max() < 5 / math.sqrt(keys)
    both = np.corrcoef(np.column_stack([noise_of_bias, noise_of_covariance]).T)[:3, 3:]
    assert abs(both).max() < 5 / math.sqrt(keys)


def test_sums_of_rows_and_noise_lie_on_one_grid() -> None:
    """Else the bits of a sum below the noise would be the data's own."""
    model = noisy().fit(ROWS, TARGETS)
    steps = model._sums / grid_for(1.0, len(model._sums))
    assert np.array_equal(steps, np.rint(steps))
    assert (steps % 2 == 1).any()


def test_past_the_horizon_the_old_noise_stays_in_the_sums() -> None:
    zeros, nothing = np.zeros((8, 2)), np.zeros(8)
    model = noisy(horizon=8)
    first = sums_of(model.fit(zeros, nothing))[0]
    later = sums_of(model.partial_fit(zeros, nothing))[0] - first
    assert (later != 0).all()
    assert abs(later / first - 1).min() > 1e-6  # a tree of its own
    # Each tree leaves the noise of its root, 8/15 of a node's variance, and they add.
    finals = [
        sums_of(noisy(horizon=8, seed=seed).fit(np.zeros((24, 2)), np.zeros(24)))[0] for seed in range(100)
    ]
    squares = (np.array(finals) ** 2).sum() / (3 * 8 / 15 * 4)
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], 200)
    assert low < squares < high


def test_seeds() -> None:
    one, same, other = (noisy(seed=seed).fit(ROWS, TARGETS) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.coef_, same.coef_)
    assert abs(one.coef_ - other.coef_).min() > 0
    unseeded = [noisy(seed=None).fit(ROWS, TARGETS) for _ in range(2)]
    assert abs(unseeded[0].coef_ - unseeded[1].coef_).min() > 0
    before = unseeded[0].coef_
    assert abs(unseeded[0].fit(ROWS, TARGETS).coef_ - before).min() > 0  # fit has a new key


# The price ------------------------------------------------------------------------------------------------


def test_the_horizon_is_required() -> None:
    with pytest.raises(TypeError, match="horizon"):
        LeastSquares(noise_multiplier=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(("horizon", "nodes"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (1600, 11)])
def test_a_tree_pair_costs_one_gaussian(horizon: int, nodes: int) -> None:
    event = noisy(horizon=horizon, noise_multiplier=3.0).fit(ROWS[:1], TARGETS[:1]).event
    assert event == GaussianDpEvent(3.0 / math.sqrt(2 * nodes))


def test_a_tree_is_charged_whole_before_its_first_row_and_the_next_past_the_horizon() -> None:
    model = noisy(horizon=8)
    charges = []
    for t in range(20):
        model.partial_fit(ROWS[t : t + 1], TARGETS[t : t + 1])
        charges.append(model.ledger_.charges)
    assert charges == [1] * 8 + [2] * 8 + [3] * 4
    assert noisy(horizon=8).fit(ROWS[:20], TARGETS[:20]).event == model.event
    assert leaves(model.event) == [(GaussianDpEvent(2.0 / math.sqrt(8)), 3)]


def test_what_cannot_be_charged_is_not_looked_at() -> None:
    class Empty(Ledger):
        def charge(self, key: str, event: Any) -> bool:
            raise ValueError("no budget left")

    model = noisy(ledger=Empty())
    with pytest.raises(ValueError, match="no budget"):
        model.fit(ROWS, TARGETS)
    assert not model._sums.any()
    with pytest.raises(NotFittedError):
        model.predict(ROWS)


def test_epsilon_is_that_of_one_tree_and_is_kept() -> None:
    model = LeastSquares(horizon=40, epsilon=2.0, delta=1e-5, seed=1).fit(ROWS[:40], TARGETS[:40])
    assert 1.99 < model.epsilon_(delta=1e-5) <= 2.0
    model.partial_fit(ROWS[40:], TARGETS[40:])
    assert 2.0 < model.epsilon_(delta=1e-5) < 4.0


def test_fit_is_charged_every_time_in_the_ledger_it_was_given() -> None:
    for seed in (None, 1):  # the same seed or not
        shared = Ledger()
        model = noisy(ledger=shared, seed=seed)
        model.fit(ROWS, TARGETS).fit(ROWS, TARGETS)
        assert shared.charges == 2
        clone(model).fit(ROWS, TARGETS)
        assert shared.charges == 3
        assert model.event == shared.event
        own = noisy(seed=seed).fit(ROWS, TARGETS)
        assert own.fit(ROWS, TARGETS).ledger_.charges == 2


def test_without_noise_nothing_is_private() -> None:
    model = exact().fit(ROWS, TARGETS)
    assert model.event == NonPrivateDpEvent()
    assert model.epsilon_(1e-5) == math.inf
    assert model.certificate(1e-5)["guarantee"]["epsilon"] == "inf"


def test_the_certificate_can_be_recomputed_and_says_what_it_assumes() -> None:
    model = noisy(horizon=30).fit(ROWS, TARGETS)
    document = json.loads(json.dumps(model.certificate(1e-6)))
    assert recompute(document).epsilon == document["guarantee"]["epsilon"] == model.epsilon_(1e-6)
    assert document["randomness"]["seeded"]
    assert document["guarantee"]["unit"] == "example"
    assert any("at most one row to each tree" in sentence for sentence in document["assumptions"])
    assert any("trees of 30 rows" in sentence for sentence in document["assumptions"])
    assert not noisy(seed=None).fit(ROWS, TARGETS).certificate(1e-6)["randomness"]["seeded"]


# scikit-learn ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scikit_learn_s_own_checks() -> None:
    why = "what is not finite makes its row count as zeros, and nobody is told"
    expected = dict.fromkeys(["check_estimators_nan_inf", "check_supervised_y_no_nan"], why)
    outcomes = check_estimator(noisy(horizon=1000), on_fail=None, expected_failed_checks=expected)
    assert sum(outcome["status"] == "passed" for outcome in outcomes) > 40
    assert [o["check_name"] for o in outcomes if o["status"] == "failed"] == []


def test_parameters_and_clones() -> None:
    settings: dict[str, Any] = {"horizon": 7, "epsilon": 1.0, "delta": 1e-5, "row_bound": 2.0}
    settings |= {"efficient": False, "seed": 3}
    model = LeastSquares(**settings)
    assert {name: model.get_params()[name] for name in settings} == settings
    again = clone(model)
    assert again is not model
    assert again.get_params() == model.get_params()
    assert again.set_params(horizon=9).horizon == 9
    assert model.horizon == 7
    assert "epsilon=1.0" in repr(model)
    assert not hasattr(clone(model.set_params(horizon=50).fit(ROWS, TARGETS)), "coef_")


def test_before_fit_there_is_nothing() -> None:
    model = noisy()
    for ask in (lambda: model.predict(ROWS), lambda: model.coef_, lambda: model.event):
        with pytest.raises(NotFittedError):
            ask()


def test_wrong_shapes_are_refused_and_cost_nothing() -> None:
    model = noisy()
    wrong: list[tuple[Any, Any, str]] = [
        (ROWS, TARGETS[:9], "inconsistent numbers"),
        (ROWS[0], TARGETS[:4], "2D array"),
        (ROWS[:0], [], "0 sample"),
        (ROWS, None, "y is None"),
    ]
    for rows, targets, message in wrong:
        with pytest.raises(ValueError, match=message):
            model.fit(rows, targets)
    assert not hasattr(model, "ledger_")
    model.fit(ROWS, TARGETS)
    assert model.n_features_in_ == 4
    for ask in (lambda: model.predict(ROWS[:, :3]), lambda: model.partial_fit(ROWS[:, :3], TARGETS)):
        with pytest.raises(ValueError, match="3 features"):
            ask()
    assert model.ledger_.charges == 1
    assert model.n_rows_ == 50


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 0}, "horizon must be a whole number"),
        ({"horizon": 2.5}, "horizon must be a whole number"),
        ({"row_bound": 0}, "row_bound must be a positive number"),
        ({"noise_multiplier": -1.0}, "0 or positive"),
        ({"noise_multiplier": None}, "give either noise_multiplier, or epsilon and delta"),
        ({"epsilon": 1.0, "delta": 1e-5}, "give either noise_multiplier, or epsilon and delta"),
        ({"noise_multiplier": None, "epsilon": 1.0}, "give either noise_multiplier, or epsilon and delta"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noisy(**settings).fit(ROWS, TARGETS)


def test_regularisation_is_free_to_change_and_has_a_default_that_grows_with_the_noise() -> None:
    model = noisy(row_bound=0.5).fit(ROWS, TARGETS)
    assert model.regularisation_ == pytest.approx(2 * 0.25 * (1 + 2.0 * math.sqrt(4 * 7 / 2)))
    assert exact(regularisation=None).fit(ROWS, TARGETS).regularisation_ == 2.0
    bias, covariance = sums_of(model)
    model.set_params(regularisation=3.0)
    np.testing.assert_allclose(model.coef_, regularised_solution(covariance, bias, 3.0))
    assert model.ledger_.charges == 1
    with pytest.raises(ValueError, match="regularisation must be a positive number"):
        _ = model.set_params(regularisation=0.0).coef_


def test_the_default_regularisation_is_near_the_best() -> None:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(2000, 10)) / math.sqrt(10)
    truth = generator.normal(size=10) / math.sqrt(10)
    models = [
        LeastSquares(horizon=2000, epsilon=4, delta=1e-6, seed=seed).fit(rows, rows @ truth)
        for seed in range(6)
    ]

    def error(factor: float) -> float:
        errors = []
        for model in models:
            model.set_params(regularisation=None)
            model.set_params(regularisation=factor * model.regularisation_)
            errors.append(float(np.linalg.norm(model.coef_ - truth)))
        return float(np.mean(errors))

    assert error(1) < 1.3 * min(error(factor) for factor in (0.03, 0.1, 0.3, 3, 10))


def test_a_copy_can_predict_but_has_no_key_and_cannot_go_on() -> None:
    model = noisy().fit(ROWS, TARGETS)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.predict(ROWS), model.predict(ROWS))
        assert other.epsilon_(1e-5) == model.epsilon_(1e-5)
        assert other._noise is None
        with pytest.raises(ValueError, match="the key of the noise stays with the original"):
            other.partial_fit(ROWS, TARGETS)
        assert other.fit(ROWS, TARGETS).ledger_.charges == 2
    model.partial_fit(ROWS, TARGETS)


def test_a_delta_that_allows_publishing_somebody_whole_warns() -> None:
    with pytest.warns(UserWarning, match="not below 1/horizon"):
        LeastSquares(horizon=50, epsilon=1.0, delta=0.1, seed=1).fit(ROWS, TARGETS)


# Interruptions and ledgers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_interrupted_call_shows_nothing_without_its_noise(
    efficient: bool, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the eighth step three nodes' noise was taken back, and that of the new one is not there yet."""
    rows = np.random.default_rng(1).normal(size=(8, 2))
    model = LeastSquares(horizon=8, noise_multiplier=50.0, efficient=efficient, seed=1).fit(
        rows[:7], rows[:7, 0]
    )
    before, draws = model._sums.copy(), 0

    def interrupted(self: Any, vector: torch.Tensor, std: float, purpose: str, step: int) -> None:
        nonlocal draws
        draws += 1
        if draws == moment or efficient:
            raise KeyboardInterrupt
        return real(self, vector, std, purpose, step)

    real = GaussianNoise.accumulate_
    monkeypatch.setattr(GaussianNoise, "accumulate_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(rows[7:], rows[7:, 0])
    monkeypatch.undo()
    assert np.array_equal(model._sums, before)
    assert model.n_rows_ == 7
    with pytest.raises(RuntimeError, match="begin anew"):
        model.partial_fit(rows[7:], rows[7:, 0])
    assert np.array_equal(model._sums, before)


def test_another_ledger_cannot_hide_what_was_spent() -> None:
    rows = np.random.default_rng(1).normal(size=(8, 2))
    model = LeastSquares(horizon=8, noise_multiplier=5.0).fit(rows, rows[:, 0])
    model.set_params(ledger=Ledger())
    with pytest.raises(ValueError, match="would not hold what was spent before"):
        model.fit(rows, rows[:, 0])


def test_the_certificate_explains_every_fit() -> None:
    rows = np.random.default_rng(1).normal(size=(8, 2))
    model = LeastSquares(horizon=20, noise_multiplier=5.0).fit(rows, rows[:, 0])
    model.set_params(horizon=10, row_bound=3.0).fit(rows, rows[:, 0])
    said = model.certificate(1e-3)["assumptions"]
    assert any("fit 1: trees of 20 rows, clipped to norm 1" in line and "sqrt(10)" in line for line in said)
    assert any("fit 2: trees of 10 rows, clipped to norm 3" in line and "sqrt(8)" in line for line in said)


def test_a_ledger_that_went_to_another_process_refuses_charges() -> None:
    """As joblib does with n_jobs: what a worker charges to its copy would be lost."""
    rows = np.random.default_rng(1).normal(size=(8, 2))
    model = LeastSquares(horizon=8, noise_multiplier=5.0, ledger=Ledger())
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(ValueError, match="a copy of a ledger"):
            copied.fit(rows, rows[:, 0])
    model.fit(rows, rows[:, 0])
    assert model.ledger is not None
    assert model.ledger.charges == 1


def test_a_certificate_speaks_for_its_own_fits_only() -> None:
    rows, shared = np.random.default_rng(1).normal(size=(8, 2)), Ledger()
    LeastSquares(horizon=8, noise_multiplier=5.0, ledger=shared, seed=1).fit(rows, rows[:, 0])
    other = LeastSquares(horizon=8, noise_multiplier=5.0, ledger=shared).fit(rows, rows[:, 0])
    with pytest.raises(ValueError, match="what others spent"):
        other.certificate(1e-5)
    assert other.epsilon_(1e-5) > LeastSquares(horizon=8, noise_multiplier=5.0).fit(
        rows, rows[:, 0]
    ).epsilon_(1e-5)


def test_bad_settings_cost_nothing() -> None:
    rows, ledger = np.ones((8, 2)), Ledger()
    usual: dict[str, Any] = {"horizon": 8, "noise_multiplier": 5.0, "ledger": ledger}
    for wrong in ({"regularisation": -1.0}, {"horizon": 10**12}):
        with pytest.raises(ValueError, match=r"regularisation|horizon"):
            LeastSquares(**usual | wrong).fit(rows, rows[:, 0])
    assert ledger.charges == 0
