"""`load`: named public sets, and files of the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sordino.data.columns import TABLES
from sordino.data.download import Folders
from sordino.data.images import load_images
from sordino.data.loaded import Loaded
from sordino.data.npz import load_npz
from sordino.data.reading import read
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
        return loaded
    path = Path(text).expanduser()
    if isinstance(name_or_path, str) and not (path.suffix or os.sep in text or (text and path.exists())):
        raise ValueError(NAMED_SETS.unknown(text))
    if path.is_dir():
        _check_no_table(text, table)
        return _load_folder(path, target, classes, image_size, grey, labels, progress)
    _refuse_image_settings(text, image_size, grey, labels)
    return _load_path(path, target, classes, {**table, "progress": progress})


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


def _load_path(path: Path, target: str | None, classes: int | None, table: Mapping[str, Any]) -> Loaded:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        if classes is not None:
            raise ValueError(
                f"{path}: the classes of a table are the labels in its schema: leave out classes"
            )
        return read(path, target=target, **table)
    _check_no_table(str(path), table)
    if suffix != ".npz":
        raise ValueError(
            f"{path}: files of type {suffix or '(none)'} are not supported: give .csv, .parquet or .npz"
        )
    if target is not None:
        raise ValueError(f"{path} has its labels in the array y: leave out the target {target!r}")
    return load_npz(path, classes)


def _check_no_table(name: str, table: Mapping[str, Any]) -> None:
    given = [key for key, value in table.items() if value is not None and key != "progress"]
    if given:
        raise ValueError(f"{name} is no table: leave out {' and '.join(given)}")
