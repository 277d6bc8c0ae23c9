"""Run directories, checkpoints and progress."""

from sordino.runs.checkpoint import Checkpoint, delete_checkpoint, restore_
from sordino.runs.closing import Run, closed_run
from sordino.runs.directory import RunDirectory, to_json
from sordino.runs.opening import claimed, one_run_per_directory
from sordino.runs.progress import TrainingBar
from sordino.runs.writing import CannotWrite, replace_file

__all__ = [
    "CannotWrite",
    "Checkpoint",
    "Run",
    "RunDirectory",
    "TrainingBar",
    "claimed",
    "closed_run",
    "delete_checkpoint",
    "one_run_per_directory",
    "replace_file",
    "restore_",
    "to_json",
]
