"""What a recipe is, and how its trainings are run: side by side, remembered, and resumed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What loads torch is imported inside functions, so that a list of the recipes is quick.

Result = dict[str, Any]  # plain data, stored as JSON


@dataclass(frozen=True)
class Job:
    """One piece of work: a function of a module with plain settings.

    Two jobs with the same function and settings are the same job, whatever they are called, as long as the code of
    the library is the same: what a setting left out means may change with it.
    """

    name: str
    function: Callable[..., Result]
    settings: dict[str, Any]

    @property
    def key(self) -> str:
        what = [
            self.function.__module__,
            self.function.__qualname__,
            self.settings,
            _code(self.function.__module__),
        ]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


@lru_cache(maxsize=8)
def _code(module: str) -> str:
    """A hash of ``module``, where a job is defined, and of the library but for what only shows results."""
    source = Path(__file__).parents[1]
    shown = {source / "cli", source / "report", source / "recipes"}
    files = [path for path in sorted(source.rglob("*.py")) if not shown & set(path.parents)]
    files.append(source / "recipes" / "trainings.py")  # what the jobs of every recipe are made of
    own = sys.modules[module].__file__
    if own is not None:
        files.append(Path(own))
    if published_file(module).exists():
        files.append(published_file(module))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def published_file(module: str) -> Path:
    return Path(__file__).parent / "published" / f"{module.rpartition('.')[2]}.toml"


Row = str | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    @staticmethod
    def of(title: str, rows: Iterable[Row], columns: str | Sequence[str] | None = None) -> Table:
        """A row says what stands in which column, where one that it does not name stays empty; or it is its cells, or
        these between bars, as it is read."""
        lines = [row.split(" | ") if isinstance(row, str) else row for row in rows]
        named = dict.fromkeys(column for line in lines for column in line) if columns is None else columns
        heads = tuple(named.split(" | ") if isinstance(named, str) else named)
        cells = [
            [line.get(head, "") for head in heads] if isinstance(line, Mapping) else line for line in lines
        ]
        return Table(title, heads, [tuple(line) for line in cells])


@dataclass(frozen=True)
class Report:
    """What a recipe found: tables with ours beside the published, notes in plain words, a figure."""

    tables: list[Table]
    notes: list[str] = field(default_factory=list)
    draw: Callable[[Figure], None] | None = None
    size: tuple[float, float] = (9.0, 4.0)  # of the figure, in inches
    settings: dict[str, Any] = field(default_factory=dict)  # what was run, for result.json


Run = Callable[[Sequence[Job]], list[Result]]


@dataclass(frozen=True)
class Recipe:
    """A published experiment. ``function(run, quick)`` lists its jobs, has them run, and reports.

    Where there are ``parts``, the function takes as a third argument which of them to run; with none it runs all.
    """

    name: str
    summary: str
    function: Callable[..., Report]
    quick: str  # what --quick runs instead of the whole
    parts: tuple[str, ...] = ()

    def report(self, run: Run, quick: bool, only: Sequence[str] = ()) -> Report:
        unknown = [part for part in only if part not in self.parts]
        if unknown:
            there = f"there are {', '.join(self.parts)}" if self.parts else f"{self.name} is run as a whole"
            raise ValueError(f"no part is called {', '.join(unknown)}: {there}")
        return self.function(run, quick, tuple(only)) if only else self.function(run, quick)


def recipe(name: str, quick: str, parts: Sequence[str] = ()) -> Callable[[Callable[..., Report]], Recipe]:
    """Makes a function the recipe of this name; what it is about is said where all of them are listed."""
    from sordino.recipes import SUMMARIES

    return lambda function: Recipe(name, SUMMARIES[name], function, quick, tuple(parts))


@dataclass(frozen=True)
class Contestant:
    """What is compared: a method or federated algorithm with its settings, and what tables call it."""

    label: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = ()  # that are tried
    sampling: str | None = None


@dataclass(frozen=True)
class Study:
    """Jobs of one function that have most of their settings in common."""

    function: Callable[..., Result]
    common: Mapping[str, Any]
    chosen: str = "method"  # which argument of the function a contestant's is

    def job(self, name: str, who: Contestant | None = None, **own: Any) -> Job:
        whose = {} if who is None else {self.chosen: who.method, "settings": who.settings}
        return Job(name, self.function, {**self.common, **whose, **own})

    def but(self, **changes: Any) -> Study:
        return replace(self, common={**self.common, **changes})


Key = TypeVar("Key")


def results_of(run: Run, jobs: Mapping[Key, Sequence[Job]]) -> dict[Key, list[Result]]:
    """The results by what they are of, one for each job of it (most often: for each seed).

    All jobs at once, so that no worker waits for the last of a part.
    """
    every = [job for group in jobs.values() for job in group]
    found = iter(run(every) if every else [])
    return {key: [next(found) for _ in group] for key, group in jobs.items()}


def check_spent(label: str, result: Result, epsilon: float) -> None:
    if float(result["epsilon"]) > epsilon:
        raise RuntimeError(f"{label} spent {result['epsilon']} of {epsilon}: this is a bug in Sordino")


class Workshop:
    """Runs jobs, a few at a time, and keeps their results in ``folder``: what is there is not run again."""

    def __init__(self, folder: Path, workers: int | None = None, progress: bool = True) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self.folder, self.progress = folder, progress
        self.workers = workers or os.cpu_count() or 1

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        """The results of ``jobs``, in their order."""
        stored = self._stored()
        found = {job.key: stored[job.key] for job in jobs if job.key in stored}
        missing = {job.key: job for job in jobs if job.key not in found}
        with _Bar(len(found) + len(missing), len(found), self.progress) as advance:
            for job, result in self._worked(list(missing.values())):
                found[job.key] = self._store(job, result)
                advance(job.name)
        return [found[job.key] for job in jobs]

    def _worked(self, jobs: list[Job]) -> Iterator[tuple[Job, Result]]:
        workers = min(self.workers, len(jobs))
        if workers <= 1:
            for job in jobs:
                yield job, job.function(**job.settings)
            return
        # One thread each: two busy torch processes with two threads each on two cores wait for each other.
        threads = max(1, (os.cpu_count() or 1) // workers)
        # Started afresh and not forked: torch does not survive a fork once it has used its threads.
        context = multiprocessing.get_context("spawn")
        others = set(multiprocessing.active_children())
        with ProcessPoolExecutor(workers, context, _prepare_worker, (threads,)) as pool:
            futures = {pool.submit(job.function, **job.settings): job for job in jobs}
            try:
                for future in as_completed(futures):
                    try:
                        result = future.result()
                    except Exception as error:
                        error.add_note(f"in the job {futures[future].name!r}")
                        raise
                    yield futures[future], result
            except BaseException:
                # What is under way may take an hour yet, and nobody would keep its result.
                pool.shutdown(wait=False, cancel_futures=True)
                for child in set(multiprocessing.active_children()) - others:
                    child.terminate()
                raise

    def _path(self, job: Job) -> Path:
        return self.folder / "jobs" / f"{re.sub(r'[^a-zA-Z0-9.=-]+', '-', job.name)[:80]}-{job.key}.json"

    def _stored(self) -> dict[str, Result]:
        """What is there, by key: a job may have been renamed since. Files that cannot be read do not count."""
        found: dict[str, Result] = {}
        for path in sorted((self.folder / "jobs").glob("*.json")):
            try:
                result = json.loads(path.read_text())["result"]
            except (ValueError, LookupError, TypeError, OSError):
                continue
            if isinstance(result, dict):
                found[path.stem.rpartition("-")[2]] = result
        return found

    def _store(self, job: Job, result: Result) -> Result:
        """Write a result, and return it as it will be read: the same whether it was run now or before."""
        from sordino.runs import replace_file, to_json

        path = self._path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = to_json({"name": job.name, "settings": job.settings, "result": result})
        replace_file(path, text.encode(), mode=0o644)
        stored: Result = json.loads(text)["result"]
        return stored


class _Bar:
    def __init__(self, total: int, done: int, show: bool) -> None:
        self._progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[last]}"),
            console=Console(file=sys.stderr),
            disable=not show,
        )
        self._task = self._progress.add_task("jobs", total=total, completed=done, last="")

    def __enter__(self) -> Callable[[str], None]:
        self._progress.__enter__()
        return lambda name: self._progress.update(self._task, advance=1, last=name)

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)


def _prepare_worker(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it when it is loaded, which is later
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """If the parent is killed, nobody tells its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
