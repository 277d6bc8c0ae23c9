"""scikit-learn's way in: a classifier and a regressor that train privately when they are fitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_feature_names, check_is_fitted, validate_data
from torch import Tensor, nn

from sordino.data import Examples
from sordino.data.inputs import LARGEST_BOUND, Inputs, Target, are_bounds
from sordino.data.npz import Arrays
from sordino.data.schema import Schema
from sordino.data.table import Table
from sordino.gradients import call_model, evaluating
from sordino.methods import Method
from sordino.models import build_model
from sordino.noise import Streams
from sordino.privacy import Budget
from sordino.runs.options import UNNAMED
from sordino.tasks import Task, classification, regression
from sordino.training import train
from sordino.warn import warn

_FLOATS = [np.float64, np.float32]
_TOGETHER = 1024  # rows that are predicted at a time

Bounds = tuple[Any, Any] | Sequence[tuple[float, float]] | None


class _Private(BaseEstimator):  # type: ignore[misc]
    """What both have in common. Parameters are kept as given, and looked at when fitting, as scikit-learn wants."""

    epsilon: float
    delta: float
    method: str | Method
    model: str | nn.Module
    epochs: float | None
    batch_size: int | None
    bounds: Bounds
    schema: Any
    accountant: str
    data_name: str
    ledger: Any
    random_state: Any
    out: str | Path | None

    def _trained(self, X: Any, y: Any, target: Target, task: Task, facts: Sequence[str]) -> None:
        low, high = _bounds(self.bounds, X.shape[1])
        X = X if low else np.where(np.isnan(X), 0.0, X)  # with bounds, what is missing is in their middle
        known = (
            "bounds of the features"
            if low
            else "that features are of about unit size, unless they are standardised"
        )
        inputs = Arrays(
            target, (X.shape[1],), low, high, ("number of rows", *facts, "shape of the inputs", known)
        )
        standardised = self._train(inputs, inputs.examples((X, y)), task)
        if not low and not standardised:
            warn(
                "no bounds were given, so nothing is scaled: give public bounds=(low, high), unless your features are "
                "of about unit size"
            )

    def _fit_table(self, X: Any, y: Any, task: Task, labelled: bool) -> Target:
        """Fit a data frame as its schema says; y is the target's column, whatever it is called."""
        schema = self.schema if isinstance(self.schema, Schema) else Schema.read(self.schema)
        table = Table(schema)
        if bool(table.target.labels) != labelled:
            raise ValueError(
                f"the target of the schema is for a {table.target.task}: use the other estimator"
            )
        if not _is_frame(X):
            raise ValueError("a schema names columns: give a data frame, or leave it out")
        _check_feature_names(self, X, reset=True)
        self.n_features_in_ = len(X.columns)
        columns = {str(name): X[name] for name in X.columns if str(name) != table.target.name}
        check_consistent_length(X, y)
        targets = _one_by_one(y)
        self._train(table, table.examples({**columns, table.target.name: targets}), task)
        return table.target

    def _train(self, inputs: Inputs, examples: Examples, task: Task) -> bool:
        """Whether inputs were standardised on the way, which the method decides."""
        seed = None
        if self.random_state is not None:
            chance = self.random_state
            seed = int(chance if isinstance(chance, int) else check_random_state(chance).randint(2**31))
        spec = self.model if isinstance(self.model, str) else None
        run = train(
            _network(self.model, inputs.shape, inputs.target.outputs, seed),
            task,
            examples,
            method=self.method,
            epochs=self.epochs,
            batch_size=self.batch_size,
            budget=Budget(self.epsilon, self.delta),
            accountant=self.accountant,
            seed=seed,
            progress=False,
            out=self.out,
            data_name=self.data_name,
            ledger=self.ledger,
            inputs=inputs,
            details={} if spec is None else {"model": spec},
        )
        self.model_, self.inputs_ = run.model, inputs
        self.certificate_, self.epsilon_ = run.certificate, run.epsilon
        return "standardise" in run.summary

    def _scores(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        examples = self._rows_to_answer(X)
        with evaluating(self.model_), torch.no_grad():
            return torch.cat(
                [
                    call_model(
                        self.model_,
                        examples.take(torch.arange(start, min(start + _TOGETHER, len(examples))))[0],
                    )
                    for start in range(0, len(examples), _TOGETHER)
                ]
            )

    def _rows_to_answer(self, X: Any) -> Examples:
        if isinstance(self.inputs_, Arrays):
            how = {"reset": False, "dtype": _FLOATS, "ensure_all_finite": "allow-nan"}
            X = _validated(self, _as_numbers(X), **how)
            return self.inputs_.examples(X if self.inputs_.low else np.nan_to_num(X, nan=0.0), targets=False)
        if not _is_frame(X):
            raise ValueError("it was fitted on a data frame with a schema: give a data frame")
        _check_feature_names(self, X, reset=False)
        return self.inputs_.examples({str(name): X[name] for name in X.columns}, targets=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Whether a private row is finite is not to be seen, so no row is refused for it: it counts as zero.
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True  # likewise: what is no number is missing
        return tags


class SordinoClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """A private classifier for scikit-learn: fitting it trains a model under a budget, with a certificate.

    Guarantee: the fitted model is (epsilon, delta)-differentially private for one row, as ``certificate_`` says.
    What was fitted on the same rows before them (a scaler, an encoder, a selection of features) is not covered; see
    `check_pipeline`. Every fit spends: a grid search over c candidates in k folds is c k + 1 trainings, whose budgets
    add up, and scores on private rows are covered by nothing. With a ``ledger`` each is counted.

    Args:
        epsilon: The budget of one fit; no default.
        delta: Likewise.
        method: A name, or a `Method`.
        model: A name (``linear``, ``mlp:64``), ``MODULE:CALLABLE``, or an ``nn.Module``, which is copied.
        epochs: As for `train`.
        batch_size: As for `train`.
        classes: The labels, which are public; else they are read from y, and the certificate says so.
        bounds: Public bounds of the features: a pair (low, high), of numbers or of a number for each feature. What lies
            outside is clipped, and the rest becomes -1 to 1. Without them nothing is scaled but by the method: the
            default one standardises features under the budget, where there are rows enough.
        schema: For data frames, in the place of classes and bounds: a schema of their columns, or its TOML file. y is
            the column that is its target.
        accountant: As for `train`.
        data_name: What the owner calls the data.
        ledger: A file in which every fit is counted.
        random_state: For experiments: it voids the guarantee.
        out: A directory for the run; then it is fitted once.

    >>> X = np.random.default_rng(0).normal(size=(300, 3))
    >>> private = SordinoClassifier(3, 1e-4, model="linear", epochs=2, classes=["no", "yes"], bounds=(-3, 3))
    >>> private.fit(X, np.where(X[:, 0] > 0, "yes", "no")).predict_proba(X[:5]).shape
    (5, 2)
    >>> private.epsilon_ <= 3
    True
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        method: str | Method = "auto",
        model: str | nn.Module = "mlp:64",
        epochs: float | None = None,
        batch_size: int | None = None,
        classes: Sequence[Any] | None = None,
        bounds: Bounds = None,
        schema: Any = None,
        accountant: str = "auto",
        data_name: str = UNNAMED,
        ledger: Any = None,
        random_state: Any = None,
        out: str | Path | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.classes = classes
        self.bounds = bounds
        self.schema = schema
        self.accountant = accountant
        self.data_name = data_name
        self.ledger = ledger
        self.random_state = random_state
        self.out = out

    def fit(self, X: Any, y: Any) -> SordinoClassifier:
        """Train privately; a row with numbers that are not finite, or with a label that is no class, counts as zero."""
        if self.schema is not None:
            self.classes_ = np.array(self._fit_table(X, y, classification(), labelled=True).labels)
            return self
        X, y = _rows_and_targets(self, X, y if self.classes is None else _one_by_one(y))
        if self.classes is None:
            check_classification_targets(y)
            self.classes_ = np.unique(y)
        else:
            self.classes_ = _one_by_one(self.classes)
        if len(self.classes_) < 2:
            raise ValueError(
                "there is one class only, and a classifier needs two: name all of them, as classes="
            )
        labels = tuple(map(str, self.classes_.tolist()))
        if len(set(labels)) < len(labels):
            raise ValueError("two classes have the same name: give each its own")
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        numbers = np.array([_place(label, places) for label in np.asarray(y).tolist()], dtype=np.int64)
        facts = "number of classes" if self.classes is not None else "classes (read from the labels)"
        self._trained(X, numbers, Target("y", labels), classification(), (facts,))
        return self

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The likeliest class of each row."""
        scores = self._scores(X)
        chosen: np.ndarray[Any, Any] = self.classes_[scores.argmax(1).numpy()]
        return chosen

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Of each row and class, in the order of ``classes_``."""
        shares: np.ndarray[Any, Any] = self._scores(X).double().softmax(1).numpy()
        return shares

    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:
        """Scores, or of two classes how much that of the second is larger."""
        scores: np.ndarray[Any, Any] = self._scores(X).double().numpy()
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on the few rows of a check, for the noise
        return tags


class SordinoRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """A private regressor for scikit-learn: one number between public bounds.

    Guarantee: as for `SordinoClassifier`.

    Args:
        epsilon: The budget of one fit; no default.
        delta: Likewise.
        target_bounds: Public bounds (low, high) of what is predicted, unless a schema has them. Targets outside
            are clipped, and predictions lie between them.
        method: As for `SordinoClassifier`, like the rest.
        model: A name, or an ``nn.Module`` of one output.
        epochs: As for `train`.
        batch_size: As for `train`.
        bounds: Of the features.
        schema: Of a data frame, in the place of both bounds.
        accountant: As for `train`.
        data_name: What the owner calls the data.
        ledger: A file in which every fit is counted.
        random_state: For experiments: it voids the guarantee.
        out: A directory for the run; then it is fitted once.

    >>> X = np.random.default_rng(0).uniform(size=(300, 2))
    >>> private = SordinoRegressor(3, 1e-4, (0, 10), model="linear", epochs=2, bounds=(0, 1))
    >>> bool((private.fit(X, 10 * X[:, 0]).predict(X) <= 10).all())
    True
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        target_bounds: tuple[float, float] | None = None,
        *,
        method: str | Method = "auto",
        model: str | nn.Module = "mlp:64",
        epochs: float | None = None,
        batch_size: int | None = None,
        bounds: Bounds = None,
        schema: Any = None,
        accountant: str = "auto",
        data_name: str = UNNAMED,
        ledger: Any = None,
        random_state: Any = None,
        out: str | Path | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.target_bounds = target_bounds
        self.method = method
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.bounds = bounds
        self.schema = schema
        self.accountant = accountant
        self.data_name = data_name
        self.ledger = ledger
        self.random_state = random_state
        self.out = out

    def fit(self, X: Any, y: Any) -> SordinoRegressor:
        """Train privately; a row with numbers that are not finite counts as zero."""
        if self.schema is not None:
            self._fit_table(X, y, regression(limit=1.0), labelled=False)
            return self
        low, high = _pair(self.target_bounds, "target_bounds")
        X, y = _rows_and_targets(self, X, _as_numbers(y), dtype=np.float64)
        self._trained(X, y, Target("y", low=low, high=high), regression(limit=1.0), ("bounds of the target",))
        return self

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """A number for each row, between the public bounds."""
        scores = self._scores(X)
        return np.array(self.inputs_.target.decoded(scores), dtype=np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few rows of a check, for the noise
        return tags


def _rows_and_targets(estimator: BaseEstimator, X: Any, y: Any, dtype: Any = None) -> tuple[Any, Any]:
    """Of which some may not be finite: whether a private row is, is not to be seen, so none is refused for it."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    X, y = _validated(
        estimator,
        _as_numbers(X),
        y,
        validate_separately=(
            {"dtype": _FLOATS, "ensure_all_finite": False},
            {"dtype": dtype, "ensure_all_finite": False, "ensure_2d": False},
        ),
    )
    y = column_or_1d(y, warn=True)
    check_consistent_length(X, y)
    return X, y


# What scikit-learn says without quoting a cell.
_QUOTES_NOTHING = (
    "minimum of",
    "features as input",
    "feature names",
    "Complex data",
    "inconsistent numbers",
    "1d array",
    "expected <=",
)


def _validated(estimator: BaseEstimator, X: Any, *y: Any, **how: Any) -> Any:
    """By scikit-learn's rules. Of its words only those are passed on that quote nobody's cells."""
    if getattr(X, "ndim", 2) < 2:
        raise ValueError(
            "rows are a table, with a line for each and a column for each feature. Reshape your data"
        )
    try:
        return validate_data(estimator, X, *y, **how)
    except ValueError as error:
        if any(words in str(error) for words in _QUOTES_NOTHING):
            raise
    raise ValueError("rows or targets are not all numbers of one shape: give arrays of numbers")


def _as_numbers(cells: Any) -> Any:
    """Text and objects as numbers, cell by cell; what is none is missing, and no other row is the worse for it."""
    if cells is None or hasattr(cells, "nnz"):  # nothing, or sparse: for scikit-learn to refuse
        return cells
    if _is_frame(cells):
        return _numbers_of_polars(cells) if hasattr(cells, "get_columns") else _numbers_of_pandas(cells)
    try:
        found = np.asarray(cells)
    except ValueError:  # rows of different lengths
        raise ValueError("rows have different numbers of features: give each the same") from None
    return _numbers_in(found) if found.dtype.kind in "OUS" else found


def _is_frame(rows: Any) -> bool:
    """Whether they are a data frame; one of a kind that is not known is refused."""
    if not hasattr(type(rows), "columns"):  # of which a lazy frame would read its source
        return False
    if not hasattr(rows, "isetitem") and not hasattr(
        rows, "get_columns"
    ):  # pandas has the one, polars the other
        raise ValueError(
            f"rows are an array, or a data frame of pandas or polars, and not a {type(rows).__name__}: make them one"
        )
    return True


_NO_NUMBERS = "holds dates, times or lists, which are no numbers: leave it out, or give its parts as numbers"


def _numbers_of_pandas(frame: Any) -> Any:
    found = frame.copy(deep=False)
    for place, (name, kind) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
        if kind.kind in "mM":
            raise ValueError(f"column {str(name)!r} {_NO_NUMBERS}")
        if kind.kind == "O":
            found.isetitem(place, _numbers_in(np.asarray(frame.iloc[:, place], dtype=object)))
    return found


def _numbers_of_polars(frame: Any) -> Any:
    """Its columns of anything but floats and integers cell by cell, as those of pandas: whether scikit-learn would take
    a column of text follows from what is in its cells."""
    found = []
    for column in frame.get_columns():
        if column.dtype.is_temporal() or column.dtype.is_nested():
            raise ValueError(f"column {column.name!r} {_NO_NUMBERS}")
        if not (column.dtype.is_float() or column.dtype.is_integer()):
            found.append(type(column)(column.name, [_number(cell) for cell in column.to_list()]))
    return frame.with_columns(found)


def _numbers_in(cells: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    numbers = np.array([_number(cell) for cell in cells.ravel().tolist()], dtype=np.float64)
    return numbers.reshape(cells.shape)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _one_by_one(labels: Any) -> np.ndarray[Any, Any]:
    """As they are: of a list of which one is text, NumPy would make text of all."""
    if not isinstance(labels, list | tuple):
        return np.asarray(labels)
    plain = [each.item() if getattr(each, "shape", None) == () else each for each in labels]
    if len({type(each) for each in plain}) == 1 and isinstance(plain[0], str | bool | int | float):
        return np.asarray(plain)
    found = np.empty(len(plain), dtype=object)
    for place, each in enumerate(plain):
        found[place] = each
    return found


def _place(label: Any, places: dict[Any, int]) -> int:
    """Of its class, or -1 if it is none."""
    try:
        return places.get(label, -1)
    except TypeError:  # it has no hash
        return -1


def _network(model: Any, shape: tuple[int, ...], outputs: int, seed: int | None) -> nn.Module:
    """A fresh one, its weights from the seed or from the system; a module is copied as it is."""
    import copy

    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not isinstance(model, str):
        raise ValueError(f"model is a name such as mlp:64, or an nn.Module, not a {type(model).__name__}")
    streams = Streams.from_entropy() if seed is None else Streams.from_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.seed_for("initialisation", 0))
        return build_model(model, shape, outputs)


def _pair(bounds: Any, name: str) -> tuple[float, float]:
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is a pair of public numbers (low, high): give one") from None
    if not are_bounds(low, high):
        raise ValueError(
            f"{name} is a pair of public numbers with low < high, none beyond {LARGEST_BOUND:g}: mend it"
        )
    return low, high


def _bounds(bounds: Any, features: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Lower and upper bounds, one for all features or one for each."""
    if bounds is None:
        return (), ()
    try:
        low, high = (np.atleast_1d(np.asarray(side, dtype=np.float64)) for side in bounds)
    except (TypeError, ValueError):
        raise ValueError(
            "bounds is a pair (low, high), of numbers or of one for each feature: give that"
        ) from None
    for side in (low, high):
        if side.shape not in ((1,), (features,)) or not np.isfinite(side).all():
            raise ValueError(
                f"bounds has one number for all features, or one for each of the {features}: mend it"
            )
    if not all(map(are_bounds, *np.broadcast_arrays(low, high))):
        raise ValueError(
            f"bounds has a low that is not below its high, or one beyond {LARGEST_BOUND:g}: mend it"
        )
    return tuple(low.tolist()), tuple(high.tolist())


# What stands in front ---------------------------------------------------------------------------------------

_LEARN_SHAPES = {"PolynomialFeatures"}  # of the rows, and nothing else


def check_pipeline(pipeline: Any) -> Any:
    """Refuse a pipeline in which something is fitted on private rows in front of a private estimator.

    A private estimator cannot see what was done to its rows before. Scaling by the rows' own mean, encoding by the
    categories that occur, selecting features: each tells of the rows, and no guarantee covers it. What learns nothing
    from rows passes: functions, normalisers of single rows, hashing, encoders and splines with public categories or
    knots.

    Guarantee: none by itself; it refuses what it does not know to be public.

    Args:
        pipeline: A scikit-learn ``Pipeline``, or any estimator.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import Normalizer, StandardScaler
    >>> private = SordinoClassifier(3, 1e-5)
    >>> check_pipeline(make_pipeline(Normalizer(), private)).steps[0][0]
    'normalizer'
    >>> check_pipeline(make_pipeline(StandardScaler(), private))
    Traceback (most recent call last):
    ValueError: StandardScaler learns from private rows, which no guarantee covers: scale by public numbers ...
    """
    for step in _in_front(pipeline):
        if not _is_public(step):
            raise ValueError(
                f"{type(step).__name__} learns from private rows, which no guarantee covers: scale by public numbers "
                "(bounds=), or leave it out"
            )
    return pipeline


def _in_front(pipeline: Any) -> Iterator[Any]:
    """Every transformer, however deep."""
    if hasattr(pipeline, "steps"):
        for _, step in pipeline.steps:
            yield from _in_front(step)
    elif hasattr(pipeline, "transformers"):  # a ColumnTransformer
        for _, step, _ in pipeline.transformers:
            yield from _in_front(step)
    elif hasattr(pipeline, "transformer_list"):  # a FeatureUnion
        for _, step in pipeline.transformer_list:
            yield from _in_front(step)
    elif not isinstance(pipeline, _Private | str | None):
        yield pipeline


def _is_public(step: Any) -> bool:
    given = {name: getattr(step, name, None) for name in ("categories", "knots")}
    if type(step).__name__ in ("OneHotEncoder", "OrdinalEncoder"):
        fixed = not isinstance(given["categories"], str)
        return fixed and not any(getattr(step, name, None) for name in ("min_frequency", "max_categories"))
    if type(step).__name__ == "SplineTransformer":
        return not isinstance(given["knots"], str)
    return type(step).__name__ in _LEARN_SHAPES or not get_tags(step).requires_fit
