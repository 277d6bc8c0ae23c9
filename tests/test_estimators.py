from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

import sordino as sd
from sordino.ledger import LedgerFile

X = np.random.default_rng(0).uniform(-2, 2, size=(200, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")
QUICK: dict[str, Any] = {"model": "linear", "epochs": 1, "accountant": "rdp"}


def classifier(**given: Any) -> sd.SordinoClassifier:
    usual = {"classes": ["no", "yes"], "bounds": (-2, 2)}
    return sd.SordinoClassifier(8, 1e-4, **{**QUICK, **usual, **given})


def regressor(**given: Any) -> sd.SordinoRegressor:
    return sd.SordinoRegressor(8, 1e-4, (0, 10), **{**QUICK, "bounds": (-2, 2), **given})


# scikit-learn's own checks: a huge epsilon and a seed, since they ask the same of it as of one without noise.
CHECKED = [
    sd.SordinoClassifier(1e4, 1e-5, **QUICK, random_state=0),
    sd.SordinoRegressor(1e4, 1e-5, (-300, 300), **QUICK, random_state=0),
]
EXPECTED = {
    "SordinoClassifier": {},
    "SordinoRegressor": {
        "check_supervised_y_no_nan": "whether a private target is finite is not to be seen: such a row counts as zero",
    },
}


@pytest.mark.parametrize("estimator", CHECKED, ids=lambda each: type(each).__name__)
def test_the_checks_of_scikit_learn_pass_but_for_those_with_a_reason(estimator: Any) -> None:
    passed, failed = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each, check in estimator_checks_generator(estimator):
            name = check.func.__name__
            if (
                name == "check_array_api_input"
            ):  # for estimators that support it, and skipped unless asked for
                continue
            try:
                check(each)
                passed.append(name)
            except Exception:
                failed.append(name)
    assert set(failed) == set(EXPECTED[type(estimator).__name__])
    assert len(passed) > 45


def test_a_fit_spends_and_says_so() -> None:
    private = classifier().fit(X, Y)
    assert private.epsilon_ <= 8
    assert sd.verify(private.certificate_).epsilon == private.epsilon_
    said = " ".join(private.certificate_["assumptions"])
    assert "number of classes, shape of the inputs, bounds of the features" in said
    assert list(private.classes_) == ["no", "yes"]
    assert (private.n_features_in_, set(private.predict(X))) == (3, {"no", "yes"})
    assert private.score(X, Y) > 0.6
    shares = private.predict_proba(X)
    np.testing.assert_allclose(shares.sum(1), 1)
    np.testing.assert_array_equal(private.classes_[shares.argmax(1)], private.predict(X))
    np.testing.assert_array_equal(private.decision_function(X) > 0, private.predict(X) == "yes")


def test_classes_that_are_read_from_the_labels_are_said_to_be() -> None:
    private = classifier(classes=None).fit(X, Y)
    assert "classes (read from the labels)" in " ".join(private.certificate_["assumptions"])


def test_a_budget_has_no_default() -> None:
    kinds: list[Any] = [sd.SordinoClassifier, sd.SordinoRegressor]
    for kind in kinds:
        with pytest.raises(TypeError, match="epsilon"):
            kind()


def test_numbers_stay_between_their_public_bounds() -> None:
    private = regressor().fit(X, 5 + 5 * X[:, 0])
    said = private.predict(100 * X)
    assert said.min() >= 0
    assert said.max() <= 10
    with pytest.raises(ValueError, match="target_bounds is a pair"):
        clone(private).set_params(target_bounds=3).fit(X, X[:, 0])


def test_bounds_are_public_numbers_that_clip_and_scale() -> None:
    private = classifier(bounds=([-2, -2, -4], [2, 2, 4]), random_state=0).fit(X, Y)
    far = X.copy()
    far[:, 2] = 1e9
    at = X.copy()
    at[:, 2] = 4
    np.testing.assert_array_equal(private.predict_proba(far), private.predict_proba(at))
    with pytest.warns(UserWarning, match="no bounds were given, so nothing is scaled"):
        classifier(bounds=None, method="dp-sgd").fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier(bounds=None).fit(X, Y)  # whose method standardises


@pytest.mark.parametrize("bounds", [3, (1, 0), ([0, 0], [1, 1]), (0, np.inf), ("a", "b"), (0, 1, 2)])
def test_bounds_that_are_none_are_one_line(bounds: Any) -> None:
    with pytest.raises(ValueError, match="bounds"):
        classifier(bounds=bounds).fit(X, Y)


def test_what_is_wrong_with_a_row_stops_nothing() -> None:
    """Whether a private row is finite, or has a label that is none, is not to be seen."""
    rows, labels = X.copy(), Y.astype(object)
    rows[0] = np.nan
    rows[1] = np.inf
    labels[2] = "perhaps"
    assert set(classifier().fit(rows, labels).predict(X)) <= {"no", "yes"}
    numbers = X[:, 0].copy()
    numbers[:3] = np.nan, np.inf, 1e30
    assert np.isfinite(regressor().fit(rows, numbers).predict(X)).all()


def _spoilt(cell: Any) -> np.ndarray[Any, Any]:
    rows = X.astype(object)
    rows[3, 1] = cell
    return rows


@pytest.mark.parametrize("cell", ["SECRET", {"SECRET": 1}, b"SECRET", 10**400, None])
def test_no_cell_is_quoted(cell: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(_spoilt(cell), columns=["a", "b", "c"])
    for rows in (_spoilt(cell), frame, _spoilt(cell).tolist()):
        private = classifier().fit(rows, Y)
        assert set(private.predict(rows)) <= {"no", "yes"}
    targets = [*X[:-1, 0].tolist(), cell]
    assert np.isfinite(regressor().fit(X, targets).predict(X)).all()


def test_what_scikit_learn_says_is_passed_on_if_it_quotes_nobody() -> None:
    records = np.full((len(Y), 1), "SECRET").astype([("a", "U6")])
    secret = np.full(len(Y), 0.123456789)
    for rows in (records, secret, [[1.0], [0.123456789, 2.0]], np.full((2, 2, 2), 0.123456789)):
        for given in (classifier(), regressor()):
            with pytest.raises(ValueError, match=r".") as raised:
                given.fit(rows, Y if isinstance(given, sd.SordinoClassifier) else X[:, 0])
            assert "SECRET" not in str(raised.value)
            assert "123456" not in str(raised.value)
            assert raised.value.__cause__ is None
    with pytest.raises(ValueError, match="2 features"):
        classifier().fit(X, Y).predict(X[:, :2])


@pytest.mark.parametrize(
    ("classes", "labels", "wrong"),
    [
        ([0, 1], [0, 1], "?"),
        ([True, False], [True, False], "?"),
        ([0, 1], [np.int64(0), 1.0], None),
        (["a", "b"], ["a", "b"], 7),
        ([0, "b"], [0, "b"], [1, 2]),
        ([0, 1], [torch.tensor(0), 1], {}),
    ],
)
def test_one_label_that_is_none_leaves_the_others_as_they_are(
    classes: list[Any], labels: list[Any], wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable = _counted(monkeypatch)
    y = (labels * len(X))[: len(X) - 1]
    classifier(classes=classes).fit(X, [*y, wrong])
    assert readable == [len(X) - 1]


@pytest.mark.parametrize(
    ("names", "labels"),
    [(("0", "1"), [0.0, 1.0]), (("0", "1"), [0, 1]), (("true", "false"), [True, np.False_])],
)
def test_one_label_that_is_none_leaves_the_others_of_a_table_as_they_are(
    names: tuple[str, ...], labels: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    readable = _counted(monkeypatch)
    schema = sd.Schema(sd.TargetColumn("y", labels=names), (sd.Column("a", "number", low=-3, high=3),))
    y = (labels * len(X))[: len(X) - 1]
    private = sd.SordinoClassifier(3, 1e-4, schema=schema)
    for last in (labels[0], "?"):
        private.fit(pandas.DataFrame({"a": X[:, 0]}), [*y, last])
    assert readable == [len(X), len(X) - 1]


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of each fit can be read; nothing is trained."""
    found: list[int] = []

    def look(self: Any, inputs: Any, examples: Any, task: Any) -> None:
        found.append(len(examples.take_readable(torch.arange(len(examples)))[0]))

    monkeypatch.setattr("sordino.estimators._Private._train", look)
    return found


def test_it_can_be_cloned_and_pickled() -> None:
    private = classifier().fit(X, Y)
    again = pickle.loads(pickle.dumps(private))
    np.testing.assert_array_equal(again.predict_proba(X), private.predict_proba(X))
    assert again.certificate_ == private.certificate_
    fresh = clone(private)
    assert fresh.get_params() == private.get_params()
    assert not hasattr(fresh, "model_")


def test_a_module_is_copied_and_left_as_it_was() -> None:
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    private = classifier(model=model).fit(X, Y)
    assert torch.equal(model.weight, before)
    assert not torch.equal(private.model_.state_dict()["weight"], before)


def test_seeds_give_the_same_twice_and_void_the_guarantee() -> None:
    one, other = (classifier(random_state=3).fit(X, Y) for _ in range(2))
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    assert not one.certificate_["claim"]["stands"]
    free = classifier().fit(X, Y)
    assert free.certificate_["claim"]["stands"]
    assert not np.array_equal(free.predict_proba(X), classifier().fit(X, Y).predict_proba(X))


def test_data_frames_keep_the_names_of_their_columns() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    private = classifier().fit(frame, Y)
    assert list(private.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        private.predict(frame.rename(columns={"a": "z"}))


def test_a_schema_reads_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    from sordino.data.schema import Column, Schema, TargetColumn

    columns = (Column("age", "number", low=0, high=100), Column("job", "category", values=("a", "b")))
    frame = pandas.DataFrame({"age": np.arange(100.0), "job": ["a", "b"] * 50})
    y = np.where(frame["age"] > 50, "old", "young")
    labelled = Schema(TargetColumn("era", labels=("young", "old")), columns)
    private = classifier(classes=None, bounds=None, schema=labelled, epochs=3).fit(frame, y)
    assert set(private.predict(frame)) <= {"young", "old"}
    assert private.predict_proba(frame).shape == (100, 2)
    numbered = Schema(TargetColumn("age next year", low=0, high=100), columns)
    said = sd.SordinoRegressor(8, 1e-4, schema=numbered, **QUICK).fit(frame, frame["age"] + 1).predict(frame)
    assert ((said >= 0) & (said <= 100)).all()
    with pytest.raises(ValueError, match="use the other estimator"):
        classifier(schema=numbered).fit(frame, y)
    with pytest.raises(ValueError, match="give a data frame"):
        classifier(schema=labelled).fit(X, Y)


def test_a_directory_holds_a_run_that_can_be_loaded(tmp_path: Path) -> None:
    private = classifier(out=tmp_path / "run").fit(X, Y)
    trained = sd.load(tmp_path / "run")
    assert trained.predict(X) == private.predict(X).tolist()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["model"] == "linear"
    with pytest.raises(ValueError, match=r"not empty|complete"):
        private.fit(X, Y)


def test_every_fit_of_a_search_is_counted(tmp_path: Path) -> None:
    ledger = tmp_path / "mine.db"
    private = classifier(ledger=ledger, data_name="people")
    GridSearchCV(private, {"epochs": [0.5, 1]}, cv=2).fit(X, Y)
    assert len(LedgerFile(ledger).runs("people")) == 2 * 2 + 1
    cross_val_score(private, X, Y, cv=2)
    assert len(LedgerFile(ledger).runs("people")) == 5 + 2


def test_a_pipeline_with_public_transformers_works() -> None:
    pipeline = make_pipeline(FunctionTransformer(np.tanh), PolynomialFeatures(2), classifier(bounds=(-1, 1)))
    assert sd.check_pipeline(pipeline).fit(X, Y).predict(X).shape == (200,)


@pytest.mark.parametrize(
    "front",
    [
        StandardScaler(),
        MinMaxScaler(),
        OneHotEncoder(),
        make_pipeline(Normalizer(), StandardScaler()),
        ColumnTransformer([("a", "passthrough", [0]), ("b", StandardScaler(), [1])]),
        FeatureUnion([("a", Normalizer()), ("b", MinMaxScaler())]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_learns_from_rows_may_not_stand_in_front(front: Any) -> None:
    with pytest.raises(ValueError, match="learns from private rows, which no guarantee covers"):
        sd.check_pipeline(Pipeline([("front", front), ("private", classifier())]))


@pytest.mark.parametrize(
    "front",
    [
        "passthrough",
        Normalizer(),
        HashingVectorizer(),
        OneHotEncoder(categories=[["a", "b"]]),
        ColumnTransformer([("a", "drop", [0]), ("b", Normalizer(), [1])]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_learns_nothing_may(front: Any) -> None:
    sd.check_pipeline(Pipeline([("front", front), ("private", classifier())]))


def test_text_in_a_frame_of_polars_is_read_cell_by_cell_and_quoted_nowhere() -> None:
    polars = pytest.importorskip("polars")
    y = ["no", "yes"] * 30
    fits = []
    for cell in ("2.5", "secret"):
        frame = polars.DataFrame({"a": ["1.5", cell] * 30, "b": [0.5, None] * 30, "c": [True, None] * 30})
        for each in (frame, frame.with_columns(polars.col("a").cast(polars.Categorical))):
            fits.append(classifier(random_state=1).fit(each, y))
            assert fits[-1].predict(each).shape == (60,)
    assert list(fits[0].feature_names_in_) == ["a", "b", "c"]
    same = polars.DataFrame({"a": [1.5, 2.5] * 30, "b": [0.5, None] * 30, "c": [1, None] * 30})
    numbers = classifier(random_state=1).fit(same, y)
    for fit in fits[:2]:
        assert (fit.predict_proba(same) == numbers.predict_proba(same)).all()
    regressor = sd.SordinoRegressor(3, 1e-3, (0, 1), bounds=(-3, 3), **QUICK)
    regressor.fit(same, polars.DataFrame({"y": ["0.5", "secret"] * 30}))


def test_frames_and_columns_of_which_nothing_can_be_made_are_refused_by_their_kind_alone() -> None:
    import datetime

    import pandas as pd

    polars = pytest.importorskip("polars")
    y, day = ["no", "yes"] * 30, datetime.date(2020, 1, 1)
    text = polars.DataFrame({"a": ["secret"] * 60})
    for frame in (
        polars.DataFrame({"a": [day] * 60}),
        polars.DataFrame({"a": [[1.0]] * 60}),
        pd.DataFrame({"a": pd.to_datetime([day] * 60)}),
    ):
        with pytest.raises(ValueError, match=r"^column 'a' holds dates, times or lists[^\n]*$"):
            classifier().fit(frame, y)
    schema = sd.Schema(
        sd.TargetColumn("y", labels=("no", "yes")), (sd.Column("a", "category", values=("x",)),)
    )
    for model in (classifier(), classifier(schema=schema)):
        for frame in (text.lazy(), text.to_arrow()):
            with pytest.raises(
                ValueError, match=r"^rows are an array, or a data frame of pandas or polars[^\n]*$"
            ):
                model.fit(frame, y)
    fitted = classifier(schema=schema).fit(text, y)
    assert fitted.predict(text).shape == (60,)
    with pytest.raises(ValueError, match="give a data frame"):
        fitted.predict(np.zeros((3, 1)))


def test_bounds_whose_distance_is_no_number_are_refused() -> None:
    X, y = np.zeros((60, 2)), np.zeros(60)
    with pytest.raises(
        ValueError, match=r"^target_bounds is a pair of public numbers .* none beyond 1e\+300"
    ):
        sd.SordinoRegressor(3, 1e-3, (-1e308, 1e308), bounds=(0, 1)).fit(X, y)
    for bounds in ((-1e308, 1e308), ([0, -1e308], [1, 1e308]), (0, 5e-324)):
        with pytest.raises(
            ValueError, match=r"^bounds has a low that is not below its high, or one beyond 1e\+300"
        ):
            sd.SordinoRegressor(3, 1e-3, (0, 1), bounds=bounds).fit(X, y)
