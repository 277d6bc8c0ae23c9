"""A live line on stderr while a file is read and encoded."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class ReadingBar:
    """How much of a file has been read; silent when ``show`` is False. It knows bytes, and nothing of what they say."""

    def __init__(self, total: int, show: bool, doing: str = "reading") -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=Console(file=sys.stderr),
            disable=not show,
            transient=True,
            refresh_per_second=5,
        )
        self._task = self._progress.add_task(doing, total=max(total, 1))

    def advance(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def __enter__(self) -> ReadingBar:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)
