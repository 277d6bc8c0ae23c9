"""Where a run is recorded: its directory, which nobody else writes to meanwhile, and what it goes on from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sordino.noise import Streams
from sordino.runs.checkpoint import Saved
from sordino.runs.directory import RunDirectory
from sordino.runs.opening import claimed, find_checkpoint
from sordino.runs.options import Options
from sordino.runs.resume import restore_constants, streams_of


@dataclass(frozen=True, eq=False)
class Recording:
    """What was asked of a run, and where it stands. Without a directory nothing is written."""

    asked: Options
    directory: RunDirectory | None
    saved: Saved | None  # where an interrupted run stood
    streams: Streams
    started: float

    @property
    def checkpoint_folder(self) -> Path | None:
        return None if self.directory is None else self.directory.checkpoint_folder

    def chosen(self, name: str, default: Any) -> Any:
        """What the interrupted run had chosen by measurement, and a resumed one has to choose too; or the default."""
        return default if self.saved is None else self.saved.process.get(name, default)


@contextmanager
def recorded(asked: Options, model: nn.Module) -> Iterator[Recording]:
    """The directory of the run is ours in here. The model, if it is one that goes on, is put in order."""
    started = time.monotonic()
    asked.place(model)
    directory = None if asked.out is None else RunDirectory(Path(asked.out))
    with nullcontext() if directory is None else claimed(directory, asked.resume):
        saved = find_checkpoint(directory, asked.resume)
        if saved is not None:
            assert directory is not None
            torch.set_num_threads(saved.threads)
            restore_constants(model, directory)
        yield Recording(asked, directory, saved, streams_of(asked.seed, saved), started)
