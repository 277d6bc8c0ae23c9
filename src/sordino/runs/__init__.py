"""Run directories, checkpoints and progress."""

from sordino.runs.checkpoint import Checkpoint, delete_checkpoint, restore_
from sordino.runs.directory import RunDirectory, replace_file, to_json
from sordino.runs.progress import TrainingBar

__all__ = [
    "Checkpoint",
    "RunDirectory",
    "TrainingBar",
    "delete_checkpoint",
    "replace_file",
    "restore_",
    "to_json",
]
