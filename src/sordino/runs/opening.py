"""Opening the directory of a run: whose it is, that nobody else writes to it, and what there is to go on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sordino.runs.checkpoint import Saved
from sordino.runs.directory import RunDirectory
from sordino.runs.lock import locked


@contextmanager
def claimed(directory: RunDirectory, resume: bool) -> Iterator[None]:
    """Nobody else runs in ``directory`` meanwhile, and what a killed run could not delete is deleted."""
    if not directory.is_of_a_run:
        check_directory(directory, resume)  # before a lock is put where somebody keeps other things
    with locked(directory.path):
        directory.tidy()
        yield


def check_directory(directory: RunDirectory, resume: bool) -> None:
    """Refuse a place that a new run cannot write to, or in which there is nothing to go on from."""
    path = directory.path
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file, and a run writes a directory: choose another name")
    if not resume:
        if not directory.is_empty:
            raise ValueError(f"{path} is not empty: choose another directory, or resume the run in it")
    elif not path.is_dir() or not any(path.iterdir()):
        raise ValueError(f"there is no interrupted run in {path}: check the directory, or do not resume")
    elif not directory.is_empty:
        raise ValueError(f"{path} holds no checkpoint to resume from: choose an empty directory")


def find_checkpoint(directory: RunDirectory | None, resume: bool) -> Saved | None:
    """What to go on from, or None for a run from the start. The directory is `claimed`."""
    if directory is None:
        if resume:
            raise ValueError("to resume, say which run: give its directory as out")
        return None
    if not resume:
        check_directory(directory, resume)
        return None
    if directory.is_complete:
        raise ValueError(f"the run in {directory.path} is complete: there is nothing to resume")
    found = Saved.load(directory.checkpoint_folder)
    if found is None:
        check_directory(directory, resume)
    return found
