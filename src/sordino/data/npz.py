"""A user's own arrays in one .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.inputs import Inputs, Target
from sordino.data.loaded import Loaded
from sordino.data.sources import Examples
from sordino.data.wrong import Wrong, dtype_word, wrong_with
from sordino.warn import warn

_PAIRS = (("x", "y"), ("inputs", "targets"), ("x_train", "y_train"))
_TEST_PAIR = ("x_test", "y_test")
_LAYOUT = "save it with numpy.savez(path, x=inputs, y=labels), or x_train, y_train, x_test, y_test"
# Labels that reach further than this and outnumber the rows are identifiers or codes, not classes.
_PLAUSIBLE_CLASSES = 1000


def load_npz(path: Path, classes: int | None = None) -> Loaded:
    """Read arrays `x`, `y` (or `inputs`, `targets`, or `x_train`, `y_train`), and `x_test`, `y_test` if any.

    Inputs are floats, or bytes that are divided by 255; labels are integers 0..k-1. The number of classes is
    the largest label plus one unless declared; it counts as public either way, and declaring it makes that
    true. Names of arrays are matched without regard to case. Nothing in the file is ever unpickled.
    """
    arrays = _read(path)
    train_names, test_names = _names(path, arrays)
    train = _pair(path, train_names, arrays)
    test = _pair(path, test_names, arrays) if test_names is not None else None
    parts = [train] if test is None else [train, test]
    if test is not None and test[0].shape[1:] != train[0].shape[1:]:
        shapes = f"{tuple(train[0].shape[1:])} and {tuple(test[0].shape[1:])}"
        raise ValueError(
            f"{path}: training and test inputs have different shapes {shapes}: make them the same"
        )
    if test is not None and not bool(test[0].isfinite().all()):  # private rows are not looked at like this
        raise ValueError(
            f"{path}: {_TEST_PAIR[0]} holds numbers that are not finite: mend or leave out those rows"
        )
    largest = max(int(targets.max()) for _, targets in parts)
    declared = classes is not None
    if classes is None:
        classes = max(2, largest + 1)
        if classes > max(_PLAUSIBLE_CLASSES, len(train[1])):
            raise ValueError(
                f"{path}: labels are not numbered 0..k-1, so they do not tell the number of classes: number them "
                "so, or declare classes"
            )
        warn(
            f"{classes} classes, read from the labels: give classes (--classes) if that is not what you mean"
        )
    elif largest >= classes:
        raise ValueError(f"{path}: labels are too large for classes={classes}: number them 0..{classes - 1}")
    return Loaded(
        inputs=Arrays(Target("y", tuple(map(str, range(classes)))), tuple(train[0].shape[1:])),
        # The file's name, not its path or content: a file that moved or changed must not open a fresh budget.
        name=path.stem,
        train=train,
        test=test,
        classes=classes,
        input_shape=tuple(train[0].shape[1:]),
        public=(
            "number of rows",
            "number of classes" if declared else "number of classes (read from the labels)",
            "shape of the inputs",
        ),
    )


@dataclass(frozen=True)
class Arrays(Inputs):
    """Rows of numbers of one shape; bytes are divided by 255."""

    target: Target
    row: tuple[int, ...]
    kind = "arrays"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.row

    def examples(self, source: Any, *, targets: bool = True, progress: bool = False) -> Examples:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {"shape": list(self.row)}

    @classmethod
    def from_description(cls, target: Target, said: Mapping[str, Any]) -> Arrays:
        return cls(target, tuple(said["shape"]))


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays we know by name, in lower case; others are left unread."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist: check the path")
    wanted = {name for pair in (*_PAIRS, _TEST_PAIR) for name in pair}
    arrays: dict[str, npt.NDArray[Any]] = {}
    try:
        if not zipfile.is_zipfile(path):
            raise Wrong("not a zip archive")
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                name = key.lower()
                if name in wanted:
                    if name in arrays:
                        raise Wrong(f"two arrays are called {name}")
                    arrays[name] = archive[key]
    except (
        Exception
    ) as error:  # a damaged zip raises a dozen unrelated types, and all of them mean the same here
        pickled = "allow_pickle" in str(error)
        reason = "it holds Python objects, which are never loaded" if pickled else wrong_with(error)
        raise ValueError(f"{path} is not a readable .npz file ({reason}): {_LAYOUT}") from None
    return arrays


def _names(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> tuple[tuple[str, str], tuple[str, str] | None]:
    """Which arrays are the training part, and which are the test part, if there is one."""
    pairs = [pair for pair in _PAIRS if all(name in arrays for name in pair)]
    if not pairs:
        raise ValueError(f"{path} has no pair of arrays x and y: {_LAYOUT}")
    if len(pairs) > 1:
        both = " and ".join("/".join(pair) for pair in pairs)
        raise ValueError(f"{path} has more than one training part ({both}): keep one")
    present = [name in arrays for name in _TEST_PAIR]
    if any(present) and not all(present):
        raise ValueError(f"{path} has only one of x_test and y_test: save both, or neither")
    return pairs[0], _TEST_PAIR if all(present) else None


def _pair(path: Path, names: tuple[str, str], arrays: dict[str, npt.NDArray[Any]]) -> tuple[Tensor, Tensor]:
    x, y = (arrays[name] for name in names)
    if x.ndim < 2 or 0 in x.shape:
        raise ValueError(
            f"{path}: {names[0]} has shape {x.shape}: it needs rows and at least one feature for each"
        )
    if x.dtype != np.uint8 and (x.dtype.kind != "f" or x.dtype.itemsize > 8):
        raise ValueError(
            f"{path}: {names[0]} has dtype {dtype_word(x.dtype)}: save floats, or uint8 for values 0..255"
        )
    if y.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: labels {names[1]} have dtype {dtype_word(y.dtype)}: number the classes 0..k-1 as integers"
        )
    if y.ndim != 1:
        raise ValueError(f"{path}: labels {names[1]} have shape {y.shape}: save one integer for each row")
    if len(x) != len(y):
        raise ValueError(
            f"{path}: {names[0]} has {len(x)} rows and {names[1]} has {len(y)}: give each row one label"
        )
    if y.min() < 0 or y.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{path}: labels {names[1]} are out of range: number the classes 0..k-1")
    inputs = torch.from_numpy(x.astype(x.dtype.newbyteorder("="), copy=False)).to(torch.float32)
    if x.dtype == np.uint8:
        inputs.div_(255)  # the range of a byte is public, the range of the rows is not
    return inputs.contiguous(), torch.from_numpy(y.astype(np.int64))
