"""A user's own arrays in one .npz file."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.inputs import Inputs, Target
from sordino.data.loaded import Loaded
from sordino.data.sources import Examples
from sordino.data.tree import Tree
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
    public = (
        "number of rows",
        "number of classes" if declared else "number of classes (read from the labels)",
        "shape of the inputs",
    )
    return Loaded(
        inputs=Arrays(Target("y", tuple(map(str, range(classes)))), tuple(train[0].shape[1:]), facts=public),
        # The file's name, not its path or content: a file that moved or changed must not open a fresh budget.
        name=path.stem,
        train=train,
        test=test,
        classes=classes,
        input_shape=tuple(train[0].shape[1:]),
        public=public,
    )


@dataclass(frozen=True)
class Arrays(Inputs):
    """Rows of numbers of one shape. Bytes are divided by 255; with bounds, floats become -1 to 1, and missing ones 0.

    >>> import numpy as np
    >>> inputs = Arrays(Target("y", ("no", "yes")), (2,), low=(0.0,), high=(10.0,))
    >>> inputs.examples(np.array([[0.0, 5.0], [10.0, 99.0]]), targets=False).take(torch.arange(2))[0].tolist()
    [[-1.0, 0.0], [1.0, 1.0]]
    """

    target: Target
    row: tuple[int, ...]
    low: tuple[
        float, ...
    ] = ()  # public bounds, one for all features or one for each; none: nothing is scaled
    high: tuple[float, ...] = ()
    facts: tuple[str, ...] = (
        "number of rows",
        "number of classes",
        "shape of the inputs",
    )  # taken for public
    kind = "arrays"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.row

    @property
    def public(self) -> tuple[str, ...]:
        return self.facts

    def examples(self, source: Any, *, targets: bool = True, progress: bool = False) -> Examples:
        return array_examples(source, self.target, self.row, self._encoded, targets)

    def _encoded(self, rows: Tensor) -> Tensor:
        if rows.dtype == torch.uint8:
            return rows.to(torch.float32).div_(255)  # the range of a byte is public, that of the rows is not
        if not self.low:
            return rows.to(torch.float32)
        low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (self.low, self.high))
        scaled = (rows.to(torch.float64).clamp(low, high) - low) / ((high - low) / 2) - 1
        return scaled.nan_to_num_(nan=0.0).to(torch.float32)  # what is missing is in the middle

    def describe(self) -> dict[str, Any]:
        bounds = {"low": list(self.low), "high": list(self.high)} if self.low else {}
        return {"shape": list(self.row), **bounds, "public": list(self.facts)}

    @classmethod
    def from_description(cls, target: Target, said: Mapping[str, Any]) -> Arrays:
        low, high = (tuple(map(float, said.get(side, ()))) for side in ("low", "high"))
        return cls(target, tuple(map(int, said["shape"])), low, high, tuple(said["public"]))


def array_examples(
    source: Any, target: Target, row: tuple[int, ...], encoded: Callable[[Tensor], Tensor], targets: bool
) -> Examples:
    """Rows in an .npz file or in memory: an array, or a pair of arrays (rows, targets)."""
    if isinstance(source, str | os.PathLike):
        where, (x, y) = f"{os.fspath(source)}: ", _part_of(Path(source), targets)
    else:
        where, (x, y) = "", source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    rows = _numbers(where, x)
    if tuple(rows.shape[1:]) != row or rows.dim() < 1:
        raise ValueError(
            f"{where}rows have the shape {tuple(rows.shape[1:])}, and the model was trained on {row}: make them alike"
        )
    if len(rows) == 0:
        raise ValueError(f"{where}there are no rows: give at least one")
    if not targets:
        return _Rows(rows, encoded, torch.zeros(len(rows)), None)
    if y is None:
        raise ValueError(f"{where}there are rows without targets: give both, rows and targets")
    found, known = _targets(where, y, target)
    if len(found) != len(rows):
        raise ValueError(f"{where}there are {len(rows)} rows and {len(found)} targets: give each row one")
    return _Rows(rows, encoded, found, known)


@final
class _Rows(Examples):
    """Arrays as they are, encoded when they are asked for: a batch at a time, and never all at once."""

    def __init__(
        self, rows: Tensor, encoded: Callable[[Tensor], Tensor], targets: Tensor, known: Tensor | None
    ) -> None:
        self._inputs, self._encoded, self._targets, self._known = rows, encoded, targets, known

    def __len__(self) -> int:
        return len(self._inputs)

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        return self._encoded(self._inputs.index_select(0, indices)), self._targets.index_select(0, indices)

    def take_readable(self, indices: Tensor) -> tuple[Tensor, Tree, Tree]:
        if self._known is None:
            return torch.arange(indices.numel()), *self.take(indices)
        kept = self._known.index_select(0, indices).nonzero().squeeze(1)
        return kept, *self.take(indices[kept])

    def fingerprint(self, key: bytes) -> str | None:
        digest = hashlib.blake2b(key=key, digest_size=16)
        for part in (self._inputs, self._targets):
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if self._known is not None:  # what cannot be read has some target all the same
            digest.update(self._known.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _no_rows(self) -> tuple[Tree, Tree]:
        return self._encoded(self._inputs[:0]), self._targets[:0]


def _part_of(path: Path, targets: bool) -> tuple[Any, Any]:
    """The rows of a file; of one that has a part for training and one for test, the one for test."""
    arrays = _read(path)
    pairs = [pair for pair in (_TEST_PAIR, *_PAIRS) if pair[0] in arrays]
    if not pairs:
        raise ValueError(f"{path} has no array x: {_LAYOUT}")
    if len(pairs) > 1 and _TEST_PAIR not in pairs:
        raise ValueError(f"{path} has more than one part ({' and '.join(p[0] for p in pairs)}): keep one")
    x, y = pairs[0]
    if targets and y not in arrays:
        raise ValueError(f"{path} has {x} and no {y}: {_LAYOUT}")
    return arrays[x], arrays.get(y)


def _numbers(where: str, x: Any) -> Tensor:
    """An array as a tensor, shared where it can be; floats, or bytes."""
    if not isinstance(x, Tensor | np.ndarray):
        raise ValueError(
            f"{where}rows are arrays of numbers, not a {type(x).__name__}: give an .npz file, an array, or a pair of "
            "arrays (rows, targets)"
        )
    if isinstance(x, np.ndarray):
        if x.dtype != np.uint8 and (x.dtype.kind != "f" or x.dtype.itemsize > 8):
            raise ValueError(
                f"{where}rows have the dtype {dtype_word(x.dtype)}: give floats, or uint8 for values 0..255"
            )
        x = torch.from_numpy(
            np.require(x.astype(x.dtype.newbyteorder("="), copy=False), requirements=["C", "W"])
        )
    if x.layout != torch.strided or not (x.is_floating_point() or x.dtype == torch.uint8):
        raise ValueError(f"{where}rows are tensors of {x.dtype}: give floats, or uint8 for values 0..255")
    rows: Tensor = x.detach().cpu()
    return rows


def _targets(where: str, y: Any, target: Target) -> tuple[Tensor, Tensor]:
    """Targets as the model sees them, and which of them are any."""
    values = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if values.ndim != 1:
        raise ValueError(f"{where}targets have the shape {values.shape}: give one for each row")
    if not target.labels:
        if values.dtype.kind not in "fiu":
            raise ValueError(f"{where}targets have the dtype {dtype_word(values.dtype)}: give numbers")
        numbers = values.astype(np.float64)
        known = np.isfinite(numbers)
        scaled = target.encoded(np.where(known, numbers, 0.0)).astype(np.float32)
        return torch.from_numpy(scaled), torch.from_numpy(known)
    if values.dtype.kind not in "iubUO":
        raise ValueError(
            f"{where}targets have the dtype {dtype_word(values.dtype)}: number the classes 0..k-1, or give their names"
        )
    places = {label: place for place, label in enumerate(target.labels)}
    if values.dtype.kind in "iub":  # by number, whatever the classes are called
        places = {str(place): place for place in range(len(target.labels))}
        values = values.astype(np.int64)
    found = np.array([places.get(str(value), -1) for value in values.tolist()], dtype=np.int64)
    return torch.from_numpy(np.maximum(found, 0)), torch.from_numpy(found >= 0)


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
