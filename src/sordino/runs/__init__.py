"""Run directories, checkpoints and progress."""

from sordino.runs.checkpoint import Checkpoint, delete_checkpoint, restore_
from sordino.runs.closing import Run, closed_run
from sordino.runs.directory import RunDirectory, replace_file, to_json
from sordino.runs.progress import TrainingBar

__all__ = [
    "Checkpoint",
    "Run",
    "RunDirectory",
    "TrainingBar",
    "closed_run",
    "delete_checkpoint",
    "replace_file",
    "restore_",
    "to_json",
]
