"""Workers for the local work of clients. Results come back in the order of the chunks, whoever made them."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from sordino.federated.engines.gradients import threads
from sordino.federated.rounds import Broadcast, Chunk, Finished, Workplace


class Worker(Protocol):
    """Works on one chunk at a time, elsewhere."""

    def tell(self, news: Any) -> None:
        """What the round is about, as its crew has packed it."""

    def give(self, chunk: Chunk) -> None:
        """Have it begin; OSError if it is gone."""

    def finished(self) -> Finished | None:
        """What became of the chunk, when it is ready; None if nothing will, because the worker is gone."""

    def end(self) -> None:
        """At once: a worker holds nothing that is not here."""


W = TypeVar("W", bound=Worker)


class Crew(Protocol[W]):
    """Starts workers, and waits for them."""

    @property
    def threads(self) -> int: ...  # of each worker
    def packed(self, sent: Broadcast) -> Any: ...
    def started(self, count: int) -> list[W]: ...
    def ready(self, busy: list[W], timeout: float | None) -> list[W]:
        """Those that have something to say, or are gone; after ``timeout`` seconds perhaps nobody."""


_AGAIN = 2  # times that a chunk is begun once more because its worker was lost


class Pool:
    """``workers`` that each work on one chunk at a time: processes, forked, or those of another ``crew``.

    A chunk that is not back after ``patience`` seconds per client is given up: its worker is ended and its clients
    are tried once more one by one, so that only those that never return are left out. Without ``patience`` a round
    waits. A worker that is lost (out of memory, say) is replaced, and its chunk done again, the same; if one is lost
    each time, the chunk's clients are tried one by one in the same way.
    """

    def __init__(
        self,
        workplace: Workplace,
        workers: int,
        patience: float | None = None,
        crew: Crew[Any] | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if patience is not None and not patience > 0:
            raise ValueError(f"patience must be a positive number of seconds, not {patience:g}")
        self._workplace, self._patience = workplace, patience
        self._crew: Crew[Any] = crew or Forks(workplace, max(1, torch.get_num_threads() // workers))
        self._posts = [_Post(worker) for worker in self._crew.started(workers)]
        self._news: Any = None  # what the round is about

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for post in self._posts:
            post.worker.end()

    def __call__(self, chunks: Iterable[Chunk], sent: Broadcast) -> Iterator[Finished]:
        """What becomes of the chunks, in their order; few are under way at a time."""
        self._news = self._crew.packed(sent)
        for post in self._posts:
            post.news = self._news
        source = enumerate(chunks)
        waiting: deque[_Task] = deque()  # what is to be done once more comes first
        done: dict[int, list[Finished]] = {}
        taken_apart: dict[int, Chunk] = {}  # whose clients are tried one by one
        following, exhausted = 0, False
        while True:
            for post in self._posts:
                if post.task is not None:
                    continue
                # Not far ahead of what is awaited: results that wait take memory.
                if not waiting and not exhausted and len(done) < 2 * len(self._posts):
                    number, chunk = next(source, (-1, None))
                    exhausted = chunk is None
                    if chunk is not None:
                        waiting.append(_Task(number, chunk))
                if waiting:
                    self._give(post, waiting.popleft())
            while parts := done.get(following, []):
                apart = taken_apart.get(following)
                if apart is None:
                    yield parts[0]
                elif len(parts) < len(apart.clients):
                    break
                else:
                    yield self._together(apart, parts, sent)
                del done[following]
                following += 1
            if all(post.task is None for post in self._posts):
                if exhausted and not waiting:
                    return
                continue
            for post, task, finished, lost in self._events():
                if finished is None:
                    self._replace(post)
                if finished is None and lost and task.lost < _AGAIN:
                    waiting.append(replace(task, lost=task.lost + 1))
                elif finished is None and len(task.chunk.clients) > 1:
                    # Somebody never came back: each client on its own will tell who.
                    taken_apart[task.number] = task.chunk
                    done[task.number] = []
                    rows = range(len(task.chunk.clients))
                    waiting.extend(_Task(task.number, task.chunk.one(row)) for row in rows)
                else:
                    why = self._workplace.why("never came back")
                    found = finished or Finished.none(task.chunk.clients, why)
                    done.setdefault(task.number, []).append(found)

    def _together(self, chunk: Chunk, alone: list[Finished], sent: Broadcast) -> Finished:
        """With as many threads as a worker has: the same to the last digit."""
        alone.sort(key=lambda part: chunk.clients.index(part.clients[0]))
        with threads(self._crew.threads):
            return self._workplace.stood_in(chunk, alone, sent)

    def _events(self) -> list[tuple[_Post, _Task, Finished | None, bool]]:
        """Wait for something to happen: (where, its task, what came back or None if nothing will, whether the worker
        was lost)."""
        busy = [post for post in self._posts if post.task is not None]
        limits = [post.until for post in busy if post.until is not None]
        timeout = max(0.0, min(limits) - time.monotonic()) if limits else None
        found: list[tuple[_Post, _Task, Finished | None, bool]] = []
        ready = self._crew.ready([post.worker for post in busy], timeout)
        for post in busy:
            task = post.task
            assert task is not None
            if post.worker in ready:
                finished = post.worker.finished()
                found.append((post, task, finished, finished is None))
                post.task = None
            elif post.until is not None and time.monotonic() >= post.until:
                found.append((post, task, None, False))
        return found

    def _give(self, post: _Post, task: _Task) -> None:
        try:
            post.give(task, self._patience)
        except OSError:  # it died while idle
            self._replace(post)
            post.give(task, self._patience)

    def _replace(self, post: _Post) -> None:
        post.worker.end()
        (post.worker,) = self._crew.started(1)
        post.news, post.task = self._news, None


@dataclass(frozen=True, eq=False)
class _Task:
    number: int
    chunk: Chunk
    lost: int = 0  # so many workers


@dataclass(eq=False)
class _Post:
    """A worker, whoever it is by now, and what it is at."""

    worker: Worker
    news: Any = None  # what the round is about, if it was not told yet
    task: _Task | None = None
    until: float | None = None

    def give(self, task: _Task, patience: float | None) -> None:
        if self.news is not None:
            self.worker.tell(self.news)
        self.worker.give(task.chunk)
        self.news, self.task = None, task
        self.until = None if patience is None else time.monotonic() + patience * len(task.chunk.clients)


class Forks:
    """Processes, forked, so that model and data are not copied."""

    def __init__(self, workplace: Workplace, threads: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError("worker processes need a system that can fork: use workers=1 without patience")
        self._workplace, self.threads = workplace, threads
        self._pipes: list[Connection[Any, Any]] = []

    def packed(self, sent: Broadcast) -> bytes:
        return packed(sent)

    def started(self, count: int) -> list[_Process]:
        return [self._started() for _ in range(count)]

    def _started(self) -> _Process:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        # A fork inherits our ends of all the pipes: it closes them, or nobody would notice when we are gone.
        self._pipes = [here, *(pipe for pipe in self._pipes if not pipe.closed)]
        process = context.Process(
            target=_serve,
            args=(there, self._pipes, self._workplace, self.threads),
            daemon=True,
            name="sordino-worker",
        )
        process.start()
        there.close()
        return _Process(process, here)

    def ready(self, busy: list[_Process], timeout: float | None) -> list[_Process]:
        pipes = wait([worker.pipe for worker in busy], timeout)
        return [worker for worker in busy if worker.pipe in pipes]


@dataclass(frozen=True, eq=False)
class _Process:
    process: BaseProcess
    pipe: Connection[Any, Any]

    def tell(self, news: bytes) -> None:
        self.pipe.send_bytes(b"n" + news)

    def give(self, chunk: Chunk) -> None:
        self.pipe.send_bytes(b"c" + packed(chunk))

    def finished(self) -> Finished | None:
        try:
            found: Finished = unpacked(self.pipe.recv_bytes())
        except (EOFError, OSError):  # the process is gone
            return None
        return found

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def _serve(
    pipe: Connection[Any, Any], inherited: list[Connection[Any, Any]], workplace: Workplace, threads: int
) -> None:
    for end in inherited:
        end.close()
    torch.set_num_threads(threads)
    news: Broadcast | None = None
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        if message[:1] == b"n":
            news = unpacked(message[1:])
            continue
        assert news is not None
        try:
            pipe.send_bytes(packed(workplace.finished(unpacked(message[1:]), news)))
        except (OSError, KeyboardInterrupt):  # nobody is there to take it
            return


class _Pickler(pickle.Pickler):
    """Tensors as plain arrays: pickling them whole goes through torch's shared memory or its slow storage format."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented


def packed(value: Any) -> bytes:
    """For a worker, or from one; never of anybody else."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def unpacked(message: bytes) -> Any:
    return pickle.loads(message)
