"""`load`: named public sets, and files of the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sordino.data.columns import TABLES, not_read
from sordino.data.download import Folders
from sordino.data.images import load_images
from sordino.data.inputs import Inputs, Target
from sordino.data.loaded import Loaded
from sordino.data.npz import array_examples, load_npz
from sordino.data.reading import read
from sordino.data.sources import Examples, as_examples
from sordino.named import DATA_SETS
from sordino.registry import registered

NAMED_SETS = DATA_SETS


def load(
    name_or_path: str | os.PathLike[str],
    target: str | None = None,
    root: str | os.PathLike[str] | None = None,
    classes: int | None = None,
    *,
    image_size: int | None = None,
    grey: bool = False,
    labels: Sequence[str] | None = None,
    texts: bool = False,
    progress: bool = False,
    **table: Any,
) -> Loaded:
    """Load a named set, a file, or a folder of images.

    Named sets are read from `root` (by default the folder in SORDINO_DATA), then from the user's cache, else
    downloaded from their public homes and checked. A path is read by its suffix; a name always wins over a
    file of the same name, so write `./digits` for that one. `target` names the label column of a table;
    `classes` declares the number of classes of a file. Of a folder of images, `image_size` and `grey` say what all
    images become, and `labels` the classes, which are else the names of its folders. With `texts` a set of texts is
    given as it is written, for features of texts. Of a .csv or .parquet file the other keywords are those of `read`.

    >>> digits = load("digits")
    >>> len(digits.train[1]), len(digits.test[1]), digits.input_shape
    (1437, 360, (1, 8, 8))
    """
    text = os.fspath(name_or_path)
    if classes is not None and classes < 2:
        raise ValueError(f"classes={classes}: a classification needs at least two")
    if isinstance(name_or_path, str) and text in NAMED_SETS:
        if target is not None:
            raise ValueError(f"{text} has its own labels: leave out the target {target!r}")
        _check_no_table(text, table)
        _refuse_image_settings(text, image_size, grey, labels)
        if texts:
            return _load_texts(text, root)
        bundled = NAMED_SETS.entries[text].facts.get("bundled", False)
        loaded: Loaded = NAMED_SETS[text](Folders(None, Path()) if bundled else Folders.of(root))
        if classes is not None and classes != loaded.classes:
            raise ValueError(f"{text} has {loaded.classes} classes: leave out classes={classes}")
        return loaded if loaded.task == "next-word" else replace(loaded, inputs=Named.of(loaded))
    path = Path(text).expanduser()
    if isinstance(name_or_path, str) and not (path.suffix or os.sep in text or (text and path.exists())):
        raise ValueError(NAMED_SETS.unknown(text))
    if path.is_dir():
        _check_no_table(text, table)
        return _load_folder(path, target, classes, image_size, grey, labels, progress)
    _refuse_image_settings(text, image_size, grey, labels)
    if path.suffix.lower() in TABLES:
        refuse_for_table(path, classes, image_size, grey)
    return _load_path(path, target, classes, {**table, "progress": progress})


def refuse_for_table(
    path: str | os.PathLike[str], classes: int | None, image_size: int | None, grey: bool
) -> None:
    """Refuse what a table has in its schema, or not at all; nothing is read for it."""
    _refuse_image_settings(os.fspath(path), image_size, grey, None)
    if classes is not None:
        raise ValueError(
            f"{os.fspath(path)}: the classes of a table are the labels in its schema: leave out classes"
        )


def _refuse_image_settings(
    text: str, image_size: int | None, grey: bool, labels: Sequence[str] | None
) -> None:
    if image_size is not None or grey or labels is not None:
        raise ValueError(f"{text} is no folder of images: leave out image size, grey and labels")


def _load_texts(name: str, root: str | os.PathLike[str] | None) -> Loaded:
    home = NAMED_SETS.entries[name].facts.get("texts")
    if home is None:
        raise ValueError(f"{name} is no set of texts: leave out features of texts")
    loaded: Loaded = registered(home)(Folders.of(root))
    return loaded


def _load_folder(
    path: Path,
    target: str | None,
    classes: int | None,
    image_size: int | None,
    grey: bool,
    labels: Sequence[str] | None,
    progress: bool,
) -> Loaded:
    if target is not None:
        raise ValueError(f"{path} has a folder for each class: leave out the target {target!r}")
    loaded = load_images(path, size=image_size, grey=grey, labels=labels, progress=progress)
    if classes is not None and classes != loaded.classes:
        raise ValueError(f"{path} has {loaded.classes} class folders: leave out classes={classes}")
    return loaded


@dataclass(frozen=True)
class Named(Inputs):
    """Rows as the reader of a named set makes them: floats of their shape, already scaled by the set's constants.

    Bytes, where the set has images, are scaled likewise; and the name of the set stands for its test part.

    >>> digits = load("digits")
    >>> len(digits.inputs.examples("digits")), digits.inputs.target.labels[:3]
    (360, ('0', '1', '2'))
    """

    target: Target
    name: str
    row: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    facts: tuple[str, ...]  # what the reader took for public
    kind = "named"

    @staticmethod
    def of(loaded: Loaded) -> Named:
        labels = loaded.labels or tuple(map(str, range(loaded.classes)))
        return Named(
            Target("label", labels), loaded.name, loaded.input_shape, loaded.mean, loaded.std, loaded.public
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.row

    @property
    def public(self) -> tuple[str, ...]:
        return self.facts

    def examples(self, source: Any, *, targets: bool = True, progress: bool = False) -> Examples:
        if isinstance(source, str) and source == self.name:
            test = load(self.name).test
            if test is None:
                raise ValueError(f"{self.name} has no test part: give an .npz file")
            return as_examples(test)
        return array_examples(source, self.target, self.row, self._encoded, targets)

    def _encoded(self, rows: Tensor) -> Tensor:
        if rows.dtype != torch.uint8:
            return rows.to(torch.float32)
        if self.mean == (0.0,):  # its reader scales otherwise, or it has no images
            raise ValueError(f"rows of {self.name} are floats, scaled as its reader does: give those")
        channels = (len(self.mean), *[1] * (len(self.row) - 1))
        mean, std = (torch.tensor(value).reshape(channels) for value in (self.mean, self.std))
        return rows.to(torch.float32).div_(255).sub_(mean).div_(std)

    def describe(self) -> dict[str, Any]:
        scaled = {"mean": list(self.mean), "std": list(self.std)}
        return {"name": self.name, "shape": list(self.row), **scaled, "public": list(self.facts)}

    @classmethod
    def from_description(cls, target: Target, said: Mapping[str, Any]) -> Named:
        shape, mean, std = tuple(map(int, said["shape"])), tuple(said["mean"]), tuple(said["std"])
        return cls(target, str(said["name"]), shape, mean, std, tuple(said["public"]))


def _load_path(path: Path, target: str | None, classes: int | None, table: Mapping[str, Any]) -> Loaded:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return read(path, target=target, **table)
    if suffix != ".npz":
        raise ValueError(not_read(path, "a .csv, .parquet or .npz file, or a folder of class folders"))
    _check_no_table(str(path), table)
    if target is not None:
        raise ValueError(f"{path} has its labels in the array y: leave out the target {target!r}")
    return load_npz(path, classes)


def _check_no_table(name: str, table: Mapping[str, Any]) -> None:
    given = [key for key, value in table.items() if value is not None and key != "progress"]
    if given:
        raise ValueError(f"{name} is no table: leave out {' and '.join(given)}")
