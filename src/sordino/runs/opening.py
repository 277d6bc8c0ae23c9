"""Opening the directory of a run: whose it is, that nobody else writes to it, and what there is to go on from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sordino.runs.checkpoint import Checkpoint
from sordino.runs.directory import RunDirectory
from sordino.runs.lock import locked

Given = ParamSpec("Given")
Result = TypeVar("Result")


def one_run_per_directory(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """For functions with the keywords ``out`` and ``resume``: the directory is theirs from their first line to their
    last, so no return, error or check in between can be outside of the lock."""

    @functools.wraps(function)
    def holding_the_directory(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        out: Any = kwargs.get("out")
        if out is None:
            return function(*args, **kwargs)
        with claimed(RunDirectory(Path(out)), bool(kwargs.get("resume"))):
            return function(*args, **kwargs)

    return holding_the_directory


@contextmanager
def claimed(directory: RunDirectory, resume: bool) -> Iterator[None]:
    """Nobody else runs in ``directory`` meanwhile, and what a killed run could not delete is deleted."""
    if not directory.is_of_a_run:
        _refuse(directory, resume)  # before a lock is put where somebody keeps other things
    with locked(directory.path):
        directory.tidy()
        yield


def _refuse(directory: RunDirectory, resume: bool) -> None:
    path = directory.path
    if not resume:
        if not directory.is_empty:
            raise ValueError(f"{path} is not empty: choose another directory, or resume the run in it")
    elif not path.is_dir() or not any(path.iterdir()):
        raise ValueError(f"there is no interrupted run in {path}: check the directory, or do not resume")
    elif not directory.is_empty:
        raise ValueError(f"{path} holds no checkpoint to resume from: choose an empty directory")


def find_checkpoint(directory: RunDirectory | None, resume: bool) -> dict[str, Any] | None:
    """What to go on from, or None for a run from the start. The directory is `claimed`."""
    if directory is None:
        if resume:
            raise ValueError("to resume, say which run: give its directory as out")
        return None
    if not resume:
        _refuse(directory, resume)
        return None
    if directory.is_complete:
        raise ValueError(f"the run in {directory.path} is complete: there is nothing to resume")
    found = Checkpoint.load(directory.checkpoint_folder)
    if found is None:
        _refuse(directory, resume)
    return None if found is None else found.state
