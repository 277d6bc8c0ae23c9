"""Linear regression over a stream of rows: DP-FTRL for least squares (Kairouz et al., 2021, Algorithm 2).

Like the gate, this file is a door to private data: rows are clipped, summed and noised here, and all that the
estimator shows, the noisy sums included, is computed from what was noised.
"""

from __future__ import annotations

import math
import operator
import os
import threading
import warnings
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from sordino.noise.gaussian import GaussianNoise
from sordino.noise.grid import ROUNDING, grid_for
from sordino.noise.mechanism import State
from sordino.noise.randomness import Streams
from sordino.noise.tree import Tree, TreeReleases
from sordino.privacy import (
    Budget,
    Ledger,
    certificate,
    fixed_order_sensitivity,
    noise_for,
    price,
    tree_release,
)
from sordino.ranks import refuse_several

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_Vector = NDArray[np.float64]
_BLOCK = 1 << 16  # rows


class LeastSquares(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Private ridge regression whose sums of y x and of x x' are kept in noisy trees, a row a step.

    Every model on the way is covered: ``partial_fit`` takes the next rows of a stream, and ``coef_`` may be
    read after each. ``fit`` begins anew: new noise, and what it costs is added to what was spent before.
    Rows are clipped to norm ``row_bound`` and targets to [-1, 1]: scale them beforehand, by numbers that
    are public. A row with anything that is not finite counts as zeros.

    Args:
        horizon: Rows of a tree. It is charged whole before its first; the row after its last opens the
            next, which is charged as well.
        noise_multiplier: The noise (sigma), unless ``epsilon`` and ``delta`` say it.
        epsilon: With ``delta``, the price of *one* tree.
        delta: See ``epsilon``.
        row_bound: L.
        regularisation: lambda, applied after the noise, so changing it with ``set_params`` costs nothing.
            None is 2 L^2 (1 + sigma sqrt(p h / 2)), h the nodes above a row: half of it is one row's worth
            and the size of the noise in the second sums, so that no direction counts in which there is
            nothing but noise.
        efficient: Honaker's estimator: less noise at the same price.
        fit_intercept: Add a feature that is always L, which doubles the noise of the second sums.
        seed: For experiments: whoever knows it can subtract the noise.
        ledger: One for several estimators of one process; ``price(ledger.event, delta)`` then has the
            total.

    Guarantee: for one example, which gives at most one row to a tree, over all models on the way. What
    clones and copies spend is in their own ledgers, unless one ``ledger`` is given to all; one that was
    copied to another process refuses charges. A copy or a pickle can predict but not go on: the key of the
    noise stays with the original. There is no resume. Scores on held-out rows, and whatever scaled the rows
    beforehand, are not covered.

    Reference: Kairouz et al., "Practical and private (deep) learning without sampling or shuffling", ICML
    2021, Algorithm 2.

    >>> rows = np.random.default_rng(0).normal(size=(2000, 2)) / 3
    >>> model = LeastSquares(horizon=2000, epsilon=16, delta=1e-5, seed=6).fit(rows, rows @ [0.5, -0.4])
    >>> print(model.coef_.round(1), round(model.epsilon_(delta=1e-5), 2))
    [ 0.5 -0.4] 16.0
    """

    def __init__(
        self,
        *,
        horizon: int,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        row_bound: float = 1.0,
        regularisation: float | None = None,
        efficient: bool = True,
        fit_intercept: bool = False,
        seed: int | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.horizon = horizon
        self.noise_multiplier = noise_multiplier
        self.epsilon = epsilon
        self.delta = delta
        self.row_bound = row_bound
        self.regularisation = regularisation
        self.efficient = efficient
        self.fit_intercept = fit_intercept
        self.seed = seed
        self.ledger = ledger

    # The stream -----------------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Start with new trees and take these rows. Charged again, in addition to what was spent before."""
        rows, targets = self._checked(X, y, first=True)
        self._open(rows.shape[1])
        return self._take(rows, targets)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Take the next rows of the stream."""
        first = not self.__sklearn_is_fitted__()
        rows, targets = self._checked(X, y, first)
        if first:
            self._open(rows.shape[1])
        return self._take(rows, targets)

    def _checked(self, X: ArrayLike, y: ArrayLike, first: bool) -> tuple[_Vector, _Vector]:
        """The shapes, which are public. What the numbers are is nobody's business: see ``_clipped``."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None: give one target per row")
        rows = self._rows(X, reset=first, ensure_all_finite=False)
        targets = column_or_1d(_numbers(y), warn=True)
        check_consistent_length(rows, targets)
        return rows, targets

    def _rows(self, X: ArrayLike, reset: bool, ensure_all_finite: bool = True) -> _Vector:
        """Rows as numbers. Names of columns, where a table has them, are public: ``feature_names_in_`` keeps them."""
        rows = _numbers(X)
        if rows.ndim != 2:
            raise ValueError(
                f"Expected 2D array, got {rows.ndim}D array instead. Reshape your data: rows by features"
            )
        # The names and the number of columns.
        validate_data(self, X if hasattr(X, "shape") else rows, reset=reset, skip_check_array=True)
        checked: _Vector = check_array(
            rows, input_name="X", estimator=self, ensure_all_finite=ensure_all_finite
        )
        return checked

    def _open(self, features: int) -> None:
        refuse_several("least squares")
        settings = self._settings(features)
        spent: Ledger | None = getattr(self, "ledger_", None)
        if self.ledger is not None and spent is not None and self.ledger is not spent and spent.charges:
            raise ValueError(
                "another ledger would not hold what was spent before: leave it as it was, or use a clone for other data"
            )
        if spent is not None and spent.is_copy and self.ledger is None:
            spent = Ledger.from_state(spent.to_state())  # a copy goes on from what was spent when it was made
        self.ledger_: Ledger = self.ledger if self.ledger is not None else spent or Ledger()
        streams = Streams.from_entropy() if self.seed is None else Streams.from_seed(self.seed)
        draw = GaussianNoise(streams)
        trees = TreeReleases(Tree(self.efficient, 1, False), settings.horizon, settings.horizon, None)
        # No seed can make two fits one charge: their rows may differ.
        self._noise: _Noise | None = _Noise(draw, trees, trees.start(), os.urandom(8).hex())
        self._seeded: bool = streams.seeded or getattr(self, "_seeded", False)
        self._opened = settings
        self._charges: int = getattr(self, "_charges", 0)
        self._fits: list[str] = [*getattr(self, "_fits", []), settings.explanation]
        self._sums: _Vector = np.zeros(settings.width * (settings.width + 3) // 2)
        self.n_rows_: int = 0
        self._solved: dict[tuple[int, float], _Vector] = {}  # the last solution: by rows, and lambda

    def _take(self, rows: _Vector, targets: _Vector) -> Self:
        noise, settings = self._noise, self._opened
        if noise is None:
            raise ValueError(
                "a copy of a fitted LeastSquares cannot go on, since the key of the noise stays with the original: go "
                "on with the original, or call fit, which is charged anew"
            )
        if noise.process != os.getpid():
            raise ValueError(
                "a LeastSquares goes on in the process that made it: in another it would make the same noise once more"
            )
        if rows.shape[1] != settings.features:
            raise ValueError(f"rows of this stream have {settings.features} features, not {rows.shape[1]}")
        with noise.one_at_a_time:
            self._add(noise, settings, rows, targets)
        return self

    def _add(self, noise: _Noise, settings: _Settings, rows: _Vector, targets: _Vector) -> None:
        before, after = self.n_rows_, self.n_rows_ + len(rows)
        for number in range(-(-before // settings.horizon), (after - 1) // settings.horizon + 1):
            # First, whatever happens.
            self._charges += self.ledger_.charge(f"{noise.run}/tree:{number}", settings.event)
        # On a copy: a step takes noise of nodes back before it adds that of the new one, and should it be interrupted
        # there, or watched by another thread, nobody may see sums without their noise.
        sums = self._sums.copy()
        if settings.noise_multiplier:
            for step in range(before, after):
                vector = torch.from_numpy(sums)
                noise.trees.add_(vector, noise.draw, settings.noise_multiplier, 1.0, step, noise.state)
        # Tree by tree, and in blocks that are exact once rounded: else a row would move what it is not part of.
        ends = {
            *range(before - before % settings.horizon, after, settings.horizon),
            *range(before, after, _BLOCK),
        }
        cuts = sorted(end - before for end in ends if end >= before)
        for start, stop in zip(cuts, [*cuts[1:], len(rows)], strict=True):
            sums += settings.on_grid(settings.sums(rows[start:stop], targets[start:stop]))
        self._sums, self.n_rows_ = sums, after

    def _settings(self, features: int) -> _Settings:
        horizon, bound = _whole(self.horizon), self.row_bound
        if self.regularisation is not None and not 0 < self.regularisation < math.inf:
            raise ValueError(f"regularisation must be a positive number, not {self.regularisation}")
        if not 0 < bound < math.inf:
            raise ValueError(
                f"row_bound must be a positive number, not {bound}: rows are clipped to this norm"
            )
        # A row moves a node of either tree by at most its bound, so both together by twice the square of that.
        squares = 2 * fixed_order_sensitivity(horizon, horizon)
        if self.noise_multiplier is not None and self.epsilon is None and self.delta is None:
            multiplier = float(self.noise_multiplier)
            if not 0 <= multiplier < math.inf:
                raise ValueError(f"noise_multiplier must be 0 or positive, not {multiplier:g}")
        elif self.noise_multiplier is None and self.epsilon is not None and self.delta is not None:
            budget = Budget(self.epsilon, self.delta)
            if budget.delta >= 1 / horizon:
                warnings.warn(
                    f"delta {budget.delta:g} is not below 1/horizon = {1 / horizon:.3g}: it allows publishing "
                    "somebody whole",
                    stacklevel=4,
                )
            multiplier = noise_for(budget, lambda z: tree_release(z, squares))
        else:
            raise ValueError("give either noise_multiplier, or epsilon and delta for the price of one tree")
        event = tree_release(multiplier, squares)
        constant = float(bound) if self.fit_intercept else None
        return _Settings(horizon, multiplier, float(bound), constant, features, event)

    # The model ------------------------------------------------------------------------------------------

    def predict(self, X: ArrayLike) -> _Vector:
        """``X @ coef_ + intercept_``; these rows are not clipped."""
        check_is_fitted(self)
        return self._rows(X, reset=False) @ self.coef_ + self.intercept_

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2 of ``predict(X)``. Not covered by any guarantee."""
        weights = None if sample_weight is None else _numbers(sample_weight)
        return float(super().score(X, _numbers(y), weights))

    @property
    def coef_(self) -> _Vector:
        return self._solution[: self._opened.features].copy()

    @property
    def intercept_(self) -> float:
        constant = self._opened.constant
        return 0.0 if constant is None else float(self._solution[-1] * constant)

    @property
    def regularisation_(self) -> float:
        """The lambda in use."""
        check_is_fitted(self)
        settings = self._opened
        if self.regularisation is None:
            noise = settings.noise_multiplier * math.sqrt(settings.width * settings.nodes / 2)
            return 2 * settings.norm**2 * (1 + noise)
        if not 0 < self.regularisation < math.inf:
            raise ValueError(f"regularisation must be a positive number, not {self.regularisation}")
        return float(self.regularisation)

    @property
    def _solution(self) -> _Vector:
        """theta for the rows so far, solved for when somebody asks."""
        check_is_fitted(self)
        wanted = (self.n_rows_, self.regularisation_)
        if wanted not in self._solved:
            bias, covariance = self._opened.unpacked(self._sums)
            self._solved.clear()
            self._solved[wanted] = regularised_solution(covariance, bias, wanted[1])
        return self._solved[wanted]

    # What it cost ---------------------------------------------------------------------------------------

    @property
    def event(self) -> DpEvent:
        """All that the ledger holds, of every fit, and of whoever else was given the same ledger."""
        check_is_fitted(self)
        return self.ledger_.event

    def epsilon_(self, delta: float) -> float:
        """What was spent so far; the tree that is open counts as a whole."""
        return price(self.event, delta).epsilon

    def certificate(self, delta: float) -> dict[str, Any]:
        """The guarantee of ``event`` as a JSON-able document, with the assumptions behind it."""
        event = self.event
        if self.ledger_.charges != self._charges:
            raise ValueError(
                "this ledger holds what others spent as well, for which this estimator cannot speak: price "
                "ledger.event, or give each estimator a ledger of its own"
            )
        return certificate(
            guarantee=price(event, delta),
            event=event,
            unit="example",
            assumptions=[
                "each example gives at most one row to each tree; nothing is assumed about the order",
                *(f"fit {number}: {words}" for number, words in enumerate(self._fits, 1)),
            ],
            implementation={"method": "LeastSquares"},
            unprotected=[
                "how long it took",
                "scores on rows that it was fitted to, or on others, if you show them",
            ],
            seeded=self._seeded,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    # scikit-learn ---------------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on targets beyond [-1, 1]
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "n_rows_", 0) > 0

    def __sklearn_clone__(self) -> Self:
        # Not scikit-learn's, which would copy the ledger: what clones spend has to be in the one they were given.
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_noise": None} if "_noise" in state else state


def regularised_solution(covariance: _Vector, bias: _Vector, regularisation: float) -> _Vector:
    """argmin theta' W theta - 2 <s, theta> + (lambda/2) |theta|^2, with W's negative eigenvalues taken as 0.

    Noise can make them negative, and then there is no minimum; the sum of real rows has none that are.

    >>> regularised_solution(np.array([[2, 0.5], [0.5, 1]]), np.array([1, -1]), 0.4).round(8).tolist()
    [0.71129707, -1.12970711]
    """
    eigenvalues, vectors = np.linalg.eigh(covariance)
    solution: _Vector = vectors @ ((bias @ vectors) / (np.maximum(eigenvalues, 0) + regularisation / 2))
    return solution


@dataclass(frozen=True)
class _Settings:
    """What a stream of rows was opened with, all of it public."""

    horizon: int
    noise_multiplier: float  # sigma
    bound: float  # L
    constant: float | None  # the feature that makes the intercept
    features: int
    event: DpEvent  # the price of a tree

    @property
    def explanation(self) -> str:
        """How a tree became its event."""
        return (
            f"trees of {self.horizon} rows, clipped to norm {self.bound:g}, targets to [-1, 1]; noise of multiplier "
            f"{self.noise_multiplier:.6g} on both sums of each of the {self.nodes} nodes above a row, so that a tree "
            f"is a Gaussian of that over sqrt({2 * self.nodes})"
        )

    @property
    def width(self) -> int:  # p
        return self.features + (self.constant is not None)

    @property
    def norm(self) -> float:
        """The largest that a row can have, its constant included."""
        return math.hypot(self.bound, self.constant or 0.0)

    @property
    def nodes(self) -> int:  # h
        return self.horizon.bit_length()

    def sums(self, rows: _Vector, targets: _Vector) -> _Vector:
        """The sum of y x and then the upper triangle of that of x x', of clipped rows in units of their largest norm.

        In these units a row moves either part by at most 1. So the two trees of the paper, whose nodes have noise of
        std L sigma and L^2 sigma, are two parts of one vector whose nodes have noise of std sigma.
        """
        with np.errstate(all="ignore"):  # NumPy warns of numbers too small or too large, and they are private
            return self._sums(rows, targets)

    def _sums(self, rows: _Vector, targets: _Vector) -> _Vector:
        finite = np.isfinite(rows).all(1) & np.isfinite(targets)
        rows, targets = np.where(finite[:, None], rows, 0.0), np.where(finite, targets, 0.0)
        rows = _clipped(rows, self.bound)
        if self.constant is not None:
            rows = np.column_stack([rows, np.where(finite, self.constant, 0.0)])
        # Without noise nothing is promised, and no room needed for the rounding to the grid.
        rows = rows / (self.norm * (1 + 2 * ROUNDING if self.noise_multiplier else 1.0))
        return np.concatenate([np.clip(targets, -1, 1) @ rows, (rows.T @ rows)[_upper(self.width)]])

    def on_grid(self, sums: _Vector) -> _Vector:
        """Sums where noise can be added exactly: see noise/grid.py."""
        if not self.noise_multiplier:
            return sums
        grid = grid_for(1.0, len(sums))
        return grid * np.rint(sums / grid)

    def unpacked(self, sums: _Vector) -> tuple[_Vector, _Vector]:
        """Bias s and covariance W, in the units of the rows."""
        covariance = np.zeros((self.width, self.width))
        covariance[_upper(self.width)] = self.norm**2 * sums[self.width :]
        covariance += np.triu(covariance, 1).T
        return self.norm * sums[: self.width], covariance


@dataclass(frozen=True)
class _Noise:
    """The noise of a stream of rows, which has to stay secret."""

    draw: GaussianNoise
    trees: TreeReleases
    state: State
    run: str  # the name of its charges
    process: int = field(default_factory=os.getpid)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)


def _numbers(values: ArrayLike) -> _Vector:
    """Values of any shape as doubles. What cannot be one is not quoted, as scikit-learn and NumPy would."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # warnings quote, too
            found: _Vector = check_array(
                values,
                dtype=np.float64,
                ensure_2d=False,
                allow_nd=True,
                ensure_all_finite=False,
                ensure_min_samples=0,
                ensure_min_features=0,
            )
            return found
    except Exception as error:
        wrong = TypeError if isinstance(error, TypeError) else ValueError
        words = "each cell of the argument must be a number, or a string that is a number: convert the others"
        if str(error).startswith("Complex data"):
            words = "Complex data not supported: give real numbers"
        elif str(error).startswith("Sparse data"):
            words = "Sparse data was passed, and a dense array is needed: use its toarray()"
        raise wrong(words) from None


def _clipped(rows: _Vector, bound: float) -> _Vector:
    """Rows of norm ``bound`` at most, in the direction they had."""
    largest = np.abs(rows).max(1, keepdims=True)  # by which they are divided first, lest squares overflow
    directions = rows / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    clipped: _Vector = directions * np.minimum(largest, bound / np.maximum(lengths, 1.0))
    return clipped


@lru_cache(maxsize=8)
def _upper(width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(width)


def _whole(horizon: int) -> int:
    if isinstance(horizon, bool) or not isinstance(horizon, SupportsIndex) or operator.index(horizon) < 1:
        raise ValueError(f"horizon must be a whole number of rows, at least 1, not {horizon!r}")
    if operator.index(horizon) > 10**8:
        raise ValueError(
            f"horizon must be at most 100,000,000 rows, not {horizon:,}: later rows open another tree"
        )
    return operator.index(horizon)
