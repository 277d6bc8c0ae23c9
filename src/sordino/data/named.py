"""`load`: named public sets, and files of the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sordino.data.columns import TABLES
from sordino.data.download import Folders
from sordino.data.loaded import Loaded
from sordino.data.npz import load_npz
from sordino.data.reading import read
from sordino.named import DATA_SETS

NAMED_SETS = DATA_SETS


def load(
    name_or_path: str | os.PathLike[str],
    target: str | None = None,
    root: str | os.PathLike[str] | None = None,
    classes: int | None = None,
    **table: Any,
) -> Loaded:
    """Load a named set or a file.

    Named sets are read from `root` (by default the folder in SORDINO_DATA), then from the user's cache, else
    downloaded from their public homes and checked. A path is read by its suffix; a name always wins over a
    file of the same name, so write `./digits` for that one. `target` names the label column of a table;
    `classes` declares the number of classes of a file. Of a .csv or .parquet file the other keywords are those of
    `read`.

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
        bundled = NAMED_SETS.entries[text].facts.get("bundled", False)
        loaded: Loaded = NAMED_SETS[text](Folders(None, Path()) if bundled else Folders.of(root))
        if classes is not None and classes != loaded.classes:
            raise ValueError(f"{text} has {loaded.classes} classes: leave out classes={classes}")
        return loaded
    path = Path(text).expanduser()
    if isinstance(name_or_path, str) and not (path.suffix or os.sep in text or path.exists()):
        raise ValueError(NAMED_SETS.unknown(text))
    return _load_path(path, target, classes, table)


def _load_path(path: Path, target: str | None, classes: int | None, table: Mapping[str, Any]) -> Loaded:
    suffix = path.suffix.lower()
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not supported yet: convert it to .npz with arrays x and y")
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
