"""No message quotes a private value: not the error, not what it was raised from, not a warning."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from sordino.data import as_examples, load, units_of
from sordino.data.partitions import Natural, Pathological
from sordino.federated.population import Population
from sordino.least_squares import LeastSquares
from test_data_adult import CLERK
from test_data_adult import write as write_adult
from test_data_ag_news import write as write_ag_news
from test_data_named import cifar_archive, cifar_files, idx_bytes, write_mnist
from test_data_shakespeare import write as write_shakespeare
from test_data_shakespeare import write_words

MARK = "HIV+4217"  # what must be nowhere
NUMBER = 4217


def said(act: Callable[[], Any]) -> str:
    """All that a traceback prints of the failure of ``act`` but our own lines, and the warnings on the way."""
    words: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises((ValueError, TypeError)) as refused:
            act()
        words += [str(warning.message) for warning in caught]
    assert "\n" not in str(refused.value)
    error: BaseException | None = refused.value
    while error is not None:
        words += traceback.format_exception_only(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "".join(words)


def quotes_nothing(act: Callable[[], Any], *marks: str) -> str:
    text = said(act)
    for mark in (MARK, str(NUMBER), f"{NUMBER:,}", *marks):
        assert mark not in text
    return text


# Files ----------------------------------------------------------------------------------------------------


def npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return path


ROWS = np.zeros((4, 2), dtype=np.float32)


@pytest.mark.parametrize(
    ("arrays", "classes"),
    [
        ({"x": ROWS, "y": np.array([0, 1, 0, NUMBER])}, 3),
        ({"x": ROWS, "y": np.array([0, 1, 0, NUMBER])}, None),
        ({"x": ROWS, "y": np.array([0, 1, 0, -NUMBER])}, None),
        ({"x": ROWS, "y": np.array(["0", "1", "0", MARK])}, None),
        ({"x": np.array([["0"], ["1"], ["0"], [MARK]]), "y": np.array([0, 1, 0, 1])}, None),
        ({"x": ROWS, "y": np.array([0, 1, 0, MARK], dtype=object)}, None),
    ],
)
def test_an_npz_file(tmp_path: Path, arrays: dict[str, Any], classes: int | None) -> None:
    path = npz(tmp_path, **arrays)
    text = quotes_nothing(lambda: load(path, classes=classes))
    assert f"<U{len(MARK)}" not in text  # a length is a value, too


def test_a_damaged_npz_file(tmp_path: Path) -> None:
    path = npz(tmp_path, x=ROWS, y=np.array([0, 1, 0, 1]))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"{'descr'", f"{MARK}".encode()))
    quotes_nothing(lambda: load(path))


@pytest.mark.parametrize("column", ["39", "State-gov", "77516", "<=50K"])
def test_adult(tmp_path: Path, column: str) -> None:
    rows = [CLERK] * 4 + [CLERK.replace(column, MARK, 1)]
    root = write_adult(tmp_path, rows)
    if column == "77516":  # which is not read
        load("adult", root=root)
        return
    assert "line 5" not in quotes_nothing(lambda: load("adult", root=root))


def test_adult_with_a_comma_too_many(tmp_path: Path) -> None:
    root = write_adult(tmp_path, [CLERK, f"{CLERK}, {MARK}"])
    text = quotes_nothing(lambda: load("adult", root=root))
    assert "line 2 " not in text
    assert "16" not in text.removeprefix(f"ValueError: {root}")


@pytest.mark.parametrize(
    "row",
    [f'"{MARK}","a","b"\n', f'"1","{MARK}"\n', f'"1","{MARK}"{MARK},"b"\n', f'"1","{MARK}\x00","b\n'],
    ids=["class", "short", "quotes", "cut"],
)
def test_ag_news(tmp_path: Path, row: str) -> None:
    write_ag_news(tmp_path)
    (tmp_path / "ag-news" / "train.csv").write_text(f'"1","a","b"\n{row}')
    assert "line 2" not in quotes_nothing(lambda: load("ag-news", root=tmp_path))


def test_ag_news_with_bytes_that_are_no_text(tmp_path: Path) -> None:
    write_ag_news(tmp_path)
    (tmp_path / "ag-news" / "train.csv").write_bytes(b'"1","a","' + MARK.encode() + b'\xff"\n')
    assert "0xff" not in quotes_nothing(lambda: load("ag-news", root=tmp_path))


def test_ag_news_does_not_tell_which_word_of_the_rows_has_a_broken_vector(tmp_path: Path) -> None:
    write_ag_news(tmp_path)
    (tmp_path / "glove" / "glove50_agnews_f16.npz").unlink()
    lines = ["the " + " ".join(["0.5"] * 50), f"oil {MARK}"]
    (tmp_path / "glove" / "glove.6B.50d.txt").write_text("\n".join(lines))
    assert "line 2" not in quotes_nothing(lambda: load("ag-news", root=tmp_path), "oil")


@pytest.mark.parametrize(
    "content",
    [
        MARK.encode(),
        gzip.compress(MARK.encode()),
        gzip.compress(f'{{"users": ["{MARK}" "x"]}}'.encode()),
        gzip.compress(MARK.encode() + b"\xff"),
        gzip.compress(b"[" * 100_000),
        gzip.compress(json.dumps({"users": [MARK], "num_speeches": [1], "user_data": {}}).encode()),
        gzip.compress(json.dumps({"users": [[MARK]], "num_speeches": [1], "user_data": {}}).encode()),
        gzip.compress(
            json.dumps({"users": [MARK], "num_speeches": [NUMBER], "user_data": {MARK: [MARK]}}).encode()
        ),
    ],
    ids=["plain", "no json", "broken json", "no text", "deep", "missing", "no name", "wrong count"],
)
def test_shakespeare(tmp_path: Path, content: bytes) -> None:
    path = write_shakespeare(tmp_path)
    write_words(tmp_path, ["the"])
    path.write_bytes(content)
    assert "char " not in quotes_nothing(lambda: load("shakespeare", root=tmp_path), "b'HI'")


def test_idx_files(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    images = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(MARK.encode())
    quotes_nothing(lambda: load("mnist", root=tmp_path), MARK[:4].encode().hex())
    images.write_bytes(whole)
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx_bytes(np.array([217] * 20))))
    quotes_nothing(lambda: load("mnist", root=tmp_path), "217")


def test_cifar_files(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    archive = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    archive.write_bytes(MARK.encode())
    quotes_nothing(lambda: load("cifar10", root=tmp_path), "b'HI'")
    wrong = {name: b"\xd9" + content[1:] for name, content in cifar_files().items()}  # a label of 217
    archive.write_bytes(cifar_archive(wrong))
    quotes_nothing(lambda: load("cifar10", root=tmp_path), "217")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(MARK))
    archive.write_bytes(buffer.getvalue())
    quotes_nothing(lambda: load("cifar10", root=tmp_path))


# Rows in memory -------------------------------------------------------------------------------------------


class Own(Dataset[Any]):
    """Rows of the user's own; a row that is an exception is raised."""

    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.rows[index], Exception):
            raise self.rows[index] from KeyError(MARK)
        return self.rows[index]


GOOD = (torch.zeros(2), 0)


@pytest.mark.parametrize(
    "bad",
    [
        KeyError(MARK),
        ValueError(f"cannot parse {MARK}"),
        RuntimeError(MARK),
        OSError(2, "No such file", f"{MARK}.png"),
        (torch.zeros(2), MARK),
        (MARK, 0),
        (torch.full((3,), float(NUMBER)), 0),
        (torch.zeros(2), [NUMBER]),
        (torch.zeros(2), NUMBER + 0.5),
        (torch.zeros(2), 10**30 * NUMBER),
        ({MARK: 1}, 0),
        (torch.zeros(2), 0, MARK),
        MARK,
    ],
    ids=lambda bad: type(bad).__name__ if isinstance(bad, Exception) else "row",
)
def test_a_row_of_a_dataset(bad: Any) -> None:
    examples = as_examples(Own(GOOD, bad, GOOD))
    quotes_nothing(lambda: examples.take(torch.tensor([0, 1])))
    assert examples.fingerprint(b"k" * 32) is not None  # which reads it as well
    if isinstance(bad, Exception):
        quotes_nothing(lambda: as_examples(Own(bad)))


def test_targets_of_text_and_subsets_of_nonsense() -> None:
    quotes_nothing(lambda: as_examples((torch.zeros(2, 2), np.array(["0", MARK]))))
    quotes_nothing(lambda: as_examples((torch.zeros(2, 2), np.array([MARK, None], dtype=object))))
    data = TensorDataset(torch.zeros(9, 2), torch.zeros(9))
    for indices in ([0, NUMBER], [MARK], [0.5], [True, False], [[0, 1]], [None], [1 + 2j]):
        quotes_nothing(lambda indices=indices: as_examples(Subset(data, indices)))  # type: ignore[misc]


@pytest.mark.parametrize(
    "groups",
    [
        [MARK, None],
        [MARK, float("nan")],
        [MARK, NUMBER],
        np.array([NUMBER, np.nan]),
        np.array([NUMBER, np.inf], dtype=np.float32),
        torch.tensor([NUMBER, float("nan")]),
        torch.tensor([1 + 2j, NUMBER]),
        np.array([MARK, {}], dtype=object),
        [[NUMBER], [1]],
        [NUMBER],
    ],
)
def test_ids_of_groups_and_users(groups: Any) -> None:
    quotes_nothing(lambda: units_of(groups, 2))
    if isinstance(groups, np.ndarray):
        quotes_nothing(lambda: Natural(groups))


def test_labels_in_no_group() -> None:
    partition = Pathological(((0,), (1,)))
    quotes_nothing(lambda: partition.deal(np.array([0, 1, NUMBER]), 2, np.random.default_rng(0)))


def test_clients_without_rows() -> None:
    quotes_nothing(
        lambda: Population.of(as_examples((torch.zeros(2, 2), torch.zeros(2))), [np.zeros(0, int)])
    )


# Least squares --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [["0.1"], [MARK]],
        np.array([["0.1"], [MARK]], dtype=object),
        np.array([[0.1], [{MARK: 1}]], dtype=object),
        np.array([NUMBER, 1.0]),
        np.float64(NUMBER),
        np.array([[NUMBER + 1j], [1.0]]),
        [[NUMBER + 1j], [1.0]],
        [[NUMBER], [1, 2]],
        MARK,
        np.zeros((2, 1, NUMBER % 7 + 1)) + NUMBER,
    ],
)
def test_rows_of_least_squares(rows: Any) -> None:
    quotes_nothing(lambda: LeastSquares(horizon=10, noise_multiplier=1.0).fit(rows, [0, 1]))
    fitted = LeastSquares(horizon=10, noise_multiplier=1.0).fit([[0.1], [0.2]], [0, 1])
    quotes_nothing(lambda: fitted.partial_fit(rows, [0, 1]))
    quotes_nothing(lambda: fitted.predict(rows))


@pytest.mark.parametrize("targets", [[0, MARK], [0, {MARK: 1}], [0, NUMBER + 1j], [[0], [0, NUMBER]], MARK])
def test_targets_of_least_squares(targets: Any) -> None:
    model = LeastSquares(horizon=10, noise_multiplier=1.0)
    quotes_nothing(lambda: model.fit([[0.1], [0.2]], targets))
    quotes_nothing(lambda: model.fit([[0.1], [0.2]], [0, 1]).score([[0.1], [0.2]], targets))


def test_least_squares_does_not_warn_of_a_row() -> None:
    wild = [np.longdouble("1e4000"), 1e308, -1e308, 5e-324, np.inf, np.nan, 0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LeastSquares(horizon=100, noise_multiplier=1.0, fit_intercept=True)
        model.fit(np.array([[value, 1e300] for value in wild]), np.array(wild))
        assert np.isfinite(model.coef_).all()


# That these tests can fail --------------------------------------------------------------------------------


def test_a_quotation_would_be_found() -> None:
    def in_the_error() -> None:
        raise ValueError(f"cannot read {MARK}")

    def in_its_cause() -> None:
        try:
            float(MARK)
        except ValueError as error:
            raise ValueError("cannot read it") from error

    def in_its_context() -> None:
        try:
            float(MARK)
        except ValueError:
            raise ValueError("cannot read it")  # noqa: B904

    def in_a_warning() -> None:
        warnings.warn(f"odd: {MARK}", stacklevel=2)
        raise ValueError("cannot read it")

    for act in (in_the_error, in_its_cause, in_its_context, in_a_warning):
        with pytest.raises(AssertionError):
            quotes_nothing(act)
