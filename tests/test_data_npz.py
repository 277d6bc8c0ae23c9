from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.data import as_examples, load
from sordino.data.inputs import Target, inputs_from_json
from sordino.data.npz import Arrays

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "people.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    "names", [("x", "y"), ("X", "Y"), ("X", "y"), ("inputs", "targets"), ("X_train", "y_train")]
)
def test_one_part_under_every_usual_name(tmp_path: Path, names: tuple[str, str]) -> None:
    loaded = load(saved(tmp_path, **dict(zip(names, (X, Y), strict=True)), other=np.zeros(3)))
    np.testing.assert_array_equal(loaded.train[0].numpy(), X)
    np.testing.assert_array_equal(loaded.train[1].numpy(), Y)
    assert loaded.test is None
    assert (loaded.name, loaded.classes, loaded.input_shape) == ("people", 3, (2,))
    assert "number of classes (read from the labels)" in loaded.public
    assert len(as_examples(loaded.train)) == 6


def test_a_test_part(tmp_path: Path) -> None:
    loaded = load(str(saved(tmp_path, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2] + 3)))
    assert loaded.test is not None
    assert loaded.test[1].tolist() == [3, 4]
    assert loaded.classes == 5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", ">f8"])
def test_floats_become_float32(tmp_path: Path, dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inputs, _ = load(saved(tmp_path, x=X.astype(dtype), y=Y), classes=3).train
    assert inputs.dtype == torch.float32
    np.testing.assert_allclose(inputs.numpy(), X, atol=1e-3)


def test_bytes_are_scaled_by_their_public_range(tmp_path: Path) -> None:
    pixels = np.full((6, 3, 3), 51, dtype=np.uint8)
    inputs, _ = load(saved(tmp_path, x=pixels, y=Y)).train
    assert torch.equal(inputs, torch.full((6, 3, 3), 0.2))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64, ">i4"])
def test_labels_become_int64(tmp_path: Path, dtype: Any) -> None:
    targets = load(saved(tmp_path, x=X, y=Y.astype(dtype))).train[1]
    assert targets.dtype == torch.int64
    assert targets.tolist() == Y.tolist()


def test_fortran_order_and_missing_values_are_fine(tmp_path: Path) -> None:
    x = np.asfortranarray(X.copy())
    x[0, 0] = np.nan
    x[1, 1] = np.inf
    inputs, _ = load(saved(tmp_path, x=x, y=Y)).train
    assert inputs.is_contiguous()
    np.testing.assert_array_equal(inputs.numpy(), x)


def test_declared_classes(tmp_path: Path) -> None:
    path = saved(tmp_path, x=X, y=Y)
    loaded = load(path, classes=7)
    assert loaded.classes == 7
    assert "number of classes" in loaded.public
    with pytest.raises(ValueError, match="labels are too large for classes=2"):
        load(path, classes=2)
    assert load(saved(tmp_path, x=X, y=0 * Y)).classes == 2
    assert load(saved(tmp_path, x=X, y=Y + 5000), classes=6000).classes == 6000


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": X, "b": Y}, "no pair of arrays x and y"),
        ({"x": X}, "no pair of arrays x and y"),
        ({"x": X, "y": Y[:5]}, "x has 6 rows and y has 5"),
        ({"x": X, "y": Y.astype(float)}, "labels y have dtype float64"),
        ({"x": X, "y": Y.astype(str)}, "labels y have dtype text"),
        ({"x": X, "y": Y > 0}, "labels y have dtype bool"),
        ({"x": X, "y": np.eye(6, dtype=int)}, "one integer for each row"),
        ({"x": X, "y": np.array(3)}, "one integer for each row"),
        ({"x": X, "y": Y - 1}, "out of range"),
        ({"x": X, "y": np.full(6, 2**64 - 1, dtype=np.uint64)}, "out of range"),
        ({"x": X, "y": Y + 90000}, "not numbered 0..k-1"),
        ({"x": X.astype(int), "y": Y}, "x has dtype int64: save floats"),
        ({"x": X.astype(complex), "y": Y}, "x has dtype complex128"),
        ({"x": X.astype(str), "y": Y}, "x has dtype text"),
        ({"x": X[:, 0], "y": Y}, "rows and at least one feature"),
        ({"x": X[:0], "y": Y[:0]}, "rows and at least one feature"),
        ({"x": X[:, :0], "y": Y}, "rows and at least one feature"),
        ({"x": np.array([object()] * 6), "y": Y}, "holds Python objects, which are never loaded"),
        ({"x": X, "X": X, "y": Y}, "two arrays are called x"),
        ({"x": X, "y": Y, "x_train": X, "y_train": Y}, "more than one training part"),
        ({"x": X, "y": Y, "x_test": X}, "only one of x_test and y_test"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "different shapes"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:2]}, "x_test has 6 rows and y_test has 2"),
    ],
)
def test_bad_arrays_get_one_line(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = saved(tmp_path, **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    path = saved(tmp_path, x=np.array([Trap()] * 6), y=Y)
    with pytest.raises(ValueError, match="never loaded"):
        load(path)
    assert not (tmp_path / "sprung").exists()


def test_the_target_of_a_table_does_not_apply(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave out the target 'income'"):
        load(saved(tmp_path, x=X, y=Y), target="income")


def test_an_array_file_is_not_an_archive(tmp_path: Path) -> None:
    with (tmp_path / "people.npz").open("wb") as out:
        np.save(out, X)
    with pytest.raises(ValueError, match=r"not a readable \.npz file"):
        load(tmp_path / "people.npz")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), compressed=st.booleans())
def test_a_damaged_file_loads_or_gets_one_line(tmp_path: Path, data: st.DataObject, compressed: bool) -> None:
    path = tmp_path / "damaged.npz"
    (np.savez_compressed if compressed else np.savez)(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(1, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    problem = ""
    try:
        loaded = load(path)
        assert len(as_examples(loaded.train)) == len(loaded.train[1])
    except ValueError as error:  # anything else is a bug of ours
        problem = str(error)
    assert "\n" not in problem


def test_classes_that_are_read_from_the_labels_are_said(tmp_path: Path) -> None:
    path = saved(tmp_path, x=X, y=Y)
    with pytest.warns(UserWarning, match="^3 classes, read from the labels: give classes"):
        load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(path, classes=3)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_held_out_inputs_that_are_not_finite_are_refused_and_private_ones_are_not_looked_at(
    tmp_path: Path, odd: float
) -> None:
    spoilt = X.copy()
    spoilt[2, 1] = odd
    with pytest.raises(ValueError, match="x_test holds numbers that are not finite"):
        load(saved(tmp_path, x_train=X, y_train=Y, x_test=spoilt, y_test=Y), classes=3)
    load(saved(tmp_path, x_train=spoilt, y_train=Y, x_test=X, y_test=Y), classes=3)


def test_arrays_take_files_arrays_and_pairs_each_row_by_itself(tmp_path: Path) -> None:
    inputs = Arrays(Target("y", ("a", "b", "c")), (2,))
    every = torch.arange(6)
    path = saved(tmp_path, x=X, y=Y)
    for source in (path, str(path), X, torch.from_numpy(X), (X, Y), X.astype(np.float64)):
        torch.testing.assert_close(inputs.examples(source, targets=False).take(every)[0], torch.from_numpy(X))
    kept, rows, targets = inputs.examples((X, np.array(["a", "b", "z", "a", "", "c"]))).take_readable(every)
    assert (kept.tolist(), targets.tolist(), len(rows)) == ([0, 1, 3, 5], [0, 1, 0, 2], 4)
    torch.testing.assert_close(
        inputs.examples(np.full((1, 2), 51, dtype=np.uint8), targets=False).take(torch.arange(1))[0],
        torch.full((1, 2), 0.2),
    )


def test_of_a_file_with_two_parts_the_one_for_test_is_taken(tmp_path: Path) -> None:
    inputs = Arrays(Target("y", ("a", "b", "c")), (2,))
    path = saved(tmp_path, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2])
    assert len(inputs.examples(path)) == 2
    assert len(inputs.examples(saved(tmp_path, x=X), targets=False)) == 6


@pytest.mark.parametrize(
    "source", [X[:, :1], X[0], (X, Y[:3]), (X, Y.reshape(2, 3)), (X, Y + 0.5), X.astype(int), None, (X, None)]
)
def test_arrays_that_do_not_fit_are_one_line(source: Any) -> None:
    with pytest.raises(ValueError, match=r": (give|make|number)"):
        Arrays(Target("y", ("a", "b", "c")), (2,)).examples(source)


def test_what_arrays_are_is_read_as_it_was_written() -> None:
    for target in (Target("y", ("a", "b")), Target("y", low=0.0, high=9.5)):
        inputs = Arrays(target, (2,), (0.0,), (1.0,), ("number of rows",))
        assert inputs_from_json(json.loads(json.dumps(inputs.to_json()))) == inputs


def test_a_row_without_a_target_is_another_row_to_a_fingerprint() -> None:
    inputs, rows = Arrays(Target("y", ("no", "yes")), (1,)), np.zeros((2, 1), dtype=np.float32)
    labels = (
        np.array([0, 0]),
        np.array([0, 7]),
        np.array([-1, 0]),
    )  # what is no class lies there as the first
    found = [inputs.examples((rows, each)).fingerprint(b"key") for each in labels]
    assert len(set(found)) == 3
    assert inputs.examples((rows, labels[1])).fingerprint(b"key") == found[1]
    bounded = Arrays(Target("y", low=-1.0, high=1.0), (1,))
    numbers = (np.array([0.0, 0.0]), np.array([0.0, np.nan]))
    assert len({bounded.examples((rows, each)).fingerprint(b"key") for each in numbers}) == 2


@pytest.mark.parametrize("bounds", [(-1e308, 1e308), (1.0, 1.0), (0.0, 5e-324), (0.0, np.inf), (np.nan, 1.0)])
def test_bounds_between_which_nothing_can_be_scaled_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="bounds low < high, none beyond 1e\\+300"):
        Target("y", low=bounds[0], high=bounds[1])
