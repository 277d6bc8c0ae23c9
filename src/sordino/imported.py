"""Things of the user's own: MODULE:NAME, or path/to/file.py:NAME."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


@contextmanager
def imported(spec: str, what: str) -> Iterator[Any]:
    """The thing; while it is used, code of its module finds what lies beside it. ``what`` begins messages.

    >>> with imported("math:sqrt", "features") as found:
    ...     found(9)
    3.0
    """
    place, _, name = spec.rpartition(":")
    file = Path(place).expanduser() if place.endswith(".py") else None
    if file is not None and not file.is_file():
        raise ValueError(f"{what} {spec!r}: there is no file {place}: check the path")
    with importable(Path.cwd() if file is None else file.resolve().parent):
        try:
            found: Any = importlib.import_module(place) if file is None else _module_of(file.resolve())
        except Exception as error:  # user code, which may fail in any way
            raise ValueError(f"{what} {spec!r}: cannot import {place}: {one_line(error)}") from error
        for part in name.split("."):
            if not hasattr(found, part):
                raise ValueError(f"{what} {spec!r}: {place} has no {name}: check the name")
            found = getattr(found, part)
        yield found


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let imports find `folder`, last of all, so that it never hides an installed package."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _module_of(file: Path) -> ModuleType:
    name = f"_sordino_model_{file.stem}"
    found = importlib.util.spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their own module up while it is being executed
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
