"""Runs: plan, process, conductor; their directory, checkpoints and progress."""

from sordino.runs.checkpoint import Checkpoint, Saved, delete_checkpoint, restore_
from sordino.runs.closing import Run
from sordino.runs.directory import RunDirectory, to_json
from sordino.runs.opening import claimed
from sordino.runs.process import Seen
from sordino.runs.progress import TrainingBar
from sordino.runs.writing import CannotWrite, replace_file

__all__ = [
    "CannotWrite",
    "Checkpoint",
    "Run",
    "RunDirectory",
    "Saved",
    "Seen",
    "TrainingBar",
    "claimed",
    "delete_checkpoint",
    "replace_file",
    "restore_",
    "to_json",
]
