"""Worker processes for the local work of clients. Results come back in the order of the chunks, whoever made them."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from sordino.federated.engines.gradients import threads
from sordino.federated.rounds import Broadcast, Chunk, Finished, Workplace


class Pool:
    """``workers`` processes, forked, so that model and data are not copied; each works on one chunk at a time.

    A chunk that is not back after ``patience`` seconds per client is given up: its process is ended and its clients
    are tried once more one by one, so that only those that never return are left out. Without ``patience`` a round
    waits. A process that dies (out of memory, say) takes its clients out of the round in the same way.
    """

    def __init__(self, workplace: Workplace, workers: int, patience: float | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError("worker processes need a system that can fork: use workers=1 without patience")
        if patience is not None and not patience > 0:
            raise ValueError(f"patience must be a positive number of seconds, not {patience:g}")
        self._workplace, self._patience = workplace, patience
        self._threads = max(1, torch.get_num_threads() // workers)
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(self._started())

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def __call__(self, chunks: Iterable[Chunk], sent: Broadcast) -> Iterator[Finished]:
        """What becomes of the chunks, in their order; few are under way at a time."""
        news = _packed(sent)
        for worker in self._workers:
            worker.news = news
        source = enumerate(chunks)
        waiting: deque[_Task] = deque()  # single clients to be tried once more come first
        done: dict[int, list[Finished]] = {}
        taken_apart: dict[int, Chunk] = {}  # whose clients are tried one by one
        following, exhausted = 0, False
        while True:
            for i, worker in enumerate(self._workers):
                if worker.task is not None:
                    continue
                # Not far ahead of what is awaited: results that wait take memory.
                if not waiting and not exhausted and len(done) < 2 * len(self._workers):
                    number, chunk = next(source, (-1, None))
                    exhausted = chunk is None
                    if chunk is not None:
                        waiting.append(_Task(number, chunk))
                if waiting:
                    self._workers[i] = self._given(worker, waiting.popleft())
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
            if all(worker.task is None for worker in self._workers):
                if exhausted and not waiting:
                    return
                continue
            for i, task, finished in self._events():
                if finished is None and len(task.chunk.clients) > 1:
                    # Somebody never came back: each client on its own will tell who.
                    taken_apart[task.number] = task.chunk
                    done[task.number] = []
                    rows = range(len(task.chunk.clients))
                    waiting.extend(_Task(task.number, task.chunk.one(row)) for row in rows)
                else:
                    why = self._workplace.why("never came back")
                    found = finished or Finished.none(task.chunk.clients, why)
                    done.setdefault(task.number, []).append(found)
                if finished is None:
                    self._workers[i].end()
                    self._workers[i] = self._started(news)

    def _together(self, chunk: Chunk, alone: list[Finished], sent: Broadcast) -> Finished:
        """With as many threads as a worker has: the same to the last digit."""
        alone.sort(key=lambda part: chunk.clients.index(part.clients[0]))
        with threads(self._threads):
            return self._workplace.stood_in(chunk, alone, sent)

    def _events(self) -> list[tuple[int, _Task, Finished | None]]:
        """Wait for something to happen: (worker, its task, what came back or None if nothing will)."""
        busy = {worker.pipe: (i, worker) for i, worker in enumerate(self._workers) if worker.task is not None}
        limits = [worker.until for _, worker in busy.values() if worker.until is not None]
        timeout = max(0.0, min(limits) - time.monotonic()) if limits else None
        found: list[tuple[int, _Task, Finished | None]] = []
        ready = wait(list(busy), timeout)
        for pipe, (i, worker) in busy.items():
            task = worker.task
            assert task is not None
            if pipe in ready:
                try:
                    finished = _unpacked(pipe.recv_bytes())
                except (EOFError, OSError):  # the process is gone
                    finished = None
                found.append((i, task, finished))
                worker.task = None
            elif worker.until is not None and time.monotonic() >= worker.until:
                found.append((i, task, None))
        return found

    def _given(self, worker: _Worker, task: _Task) -> _Worker:
        try:
            worker.give(task, self._patience)
        except OSError:  # it died while idle
            worker.end()
            worker = self._started(worker.news)
            worker.give(task, self._patience)
        return worker

    def _started(self, news: bytes | None = None) -> _Worker:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        # A fork inherits our ends of all the pipes: it closes them, or nobody would notice when we are gone.
        ours = [here, *(worker.pipe for worker in self._workers if not worker.pipe.closed)]
        process = context.Process(
            target=_serve,
            args=(there, ours, self._workplace, self._threads),
            daemon=True,
            name="sordino-worker",
        )
        process.start()
        there.close()
        return _Worker(process, here, news)


@dataclass(frozen=True, eq=False)
class _Task:
    number: int
    chunk: Chunk


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection[Any, Any]
    news: bytes | None = None  # what the round is about, if it was not told yet
    task: _Task | None = None
    until: float | None = None

    def give(self, task: _Task, patience: float | None) -> None:
        if self.news is not None:
            self.pipe.send_bytes(b"n" + self.news)
            self.news = None
        self.pipe.send_bytes(b"c" + _packed(task.chunk))
        self.task = task
        self.until = None if patience is None else time.monotonic() + patience * len(task.chunk.clients)

    def end(self) -> None:
        """At once: a worker holds nothing that is not here."""
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
            news = _unpacked(message[1:])
            continue
        assert news is not None
        try:
            pipe.send_bytes(_packed(workplace.finished(_unpacked(message[1:]), news)))
        except (OSError, KeyboardInterrupt):  # nobody is there to take it
            return


class _Pickler(pickle.Pickler):
    """Tensors as plain arrays: pickling them whole goes through torch's shared memory or its slow storage format."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def _unpacked(message: bytes) -> Any:
    return pickle.loads(message)
