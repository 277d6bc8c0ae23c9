"""Several processes on one run: rank 0 leads, and the others add up shares of a batch for it.

The processes are those of an initialised `torch.distributed` group, as ``torchrun`` starts them. Only rank 0 has a
gate, with the key of the noise and the ledger; only rank 0 writes and shows anything. The others are told a point,
which units to look at and how to clip them, and answer with exact sums: they hold nothing with which something could
be released twice. Whatever else releases something refuses to be one of several processes (`refuse_several`).

What the shares come to is sent to rank 0 and added there in the order of the shares, in doubles. An all-reduce would
add in an order that depends on backend, algorithm and number of processes, and a resumed run would then come to another
sum under the same noise. All of it goes over gloo, also for models on a GPU: the noise is drawn on the CPU, so the sum
has to come there anyway.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_PATIENCE = timedelta(
    minutes=30
)  # with a process that neither answers nor ends; one that is killed is noticed at once
_ALIGNED = 8  # bytes
_FAILED = "failed"


class RankLost(ConnectionError):
    """Another process of the run is gone."""


def processes() -> int:
    """How many processes were started to work together, this one included."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    started = os.environ.get("WORLD_SIZE", "1")
    return int(started) if started.isdecimal() else 1


def refuse_several(what: str) -> None:
    """Raise ValueError where several processes would do the same, each with noise and charges of its own."""
    if processes() > 1:
        raise ValueError(
            f"{what} is for one process, and {processes()} were started together: each would release something of the "
            "same rows. Only train shares its work among processes; start one for anything else"
        )


@contextmanager
def gathered() -> Iterator[Ranks]:
    """This process among the others of its group, for one run. What ends one of them ends all."""
    if processes() == 1:
        yield Ranks()
        return
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            f"{processes()} processes were started together (WORLD_SIZE), and do not know of each other: call "
            "torch.distributed.init_process_group() first, or start one"
        )
    # Of our own: whatever the backend of the user's group, and whatever else is going on there.
    group = dist.new_group(backend="gloo", timeout=_PATIENCE)
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), group)
    try:
        yield ranks
    except BaseException as error:
        ranks.tell(error)
        raise
    finally:
        # Those who still wait for us, if we were interrupted in the middle of something, lose the connection.
        dist.destroy_process_group(group)


class Ranks:
    """The processes of a run; without any others, nothing is sent and nothing waited for.

    Rank 0 says something and gets an answer of each of the others, who hear and answer, in turns. An answer is a text,
    and for sums a vector for each share.
    """

    def __init__(self, rank: int = 0, count: int = 1, group: Any = None) -> None:
        self.rank, self.count, self._group = rank, count, group
        self._in_between = False  # something was said, and is not yet answered
        self._over = count == 1

    # Rank 0 ----------------------------------------------------------------------------------------------

    def say(self, message: Mapping[str, Any], *tensors: Tensor) -> None:
        """Something the others have to answer."""
        if not self._over:
            self._in_between = True
            self._spread(_packed(message, tensors))

    def end(self, message: Mapping[str, Any], *tensors: Tensor) -> None:
        """The last thing that is said."""
        if not self._over:
            self._over = True
            self._spread(_packed(message, tensors))

    def answers(self) -> list[Any]:
        """What each of the others has to say; raises ValueError if one of them failed."""
        heard = [self._text_from(rank) for rank in range(1, self.count)]
        self._in_between = False
        _raise_failures(heard)
        return heard

    def sum_in_order(self, shares: int, size: int, work: Callable[[int], Tensor]) -> Tensor:
        """The vectors of doubles of all shares, added up in the order of the shares; ours are worked on here."""
        mine: dict[int, Tensor] = {}
        problem: Exception | None = None
        try:
            mine = {share: work(share) for share in range(0, shares, self.count)}
        except Exception as error:  # the others are answering: they are heard out first
            problem = error
        heard = [self._text_from(rank) for rank in range(1, self.count)]
        arrived = torch.empty(size if self.count > 1 else 0, dtype=torch.float64)
        total = mine.get(0, arrived)
        for share in range(1, shares):
            whose = share % self.count
            if whose > 0 and not _failure(heard[whose - 1]):
                with self._connected():
                    dist.recv(arrived, whose, group=self._group)
            if problem is None:
                total.add_(arrived if whose > 0 else mine[share])
        self._in_between = False
        if problem is not None:
            raise problem
        _raise_failures(heard)
        return total

    # The others ------------------------------------------------------------------------------------------

    def hear(self) -> tuple[dict[str, Any], list[Tensor]]:
        """What rank 0 says; raises ValueError, with its reason, if it has failed."""
        size = torch.zeros(1, dtype=torch.int64)
        with self._connected():
            dist.broadcast(size, 0, group=self._group)
            content = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(content, 0, group=self._group)
        message, tensors = _unpacked(content)
        if _failure(message):
            self._over = True
            raise ValueError(f"rank 0: {message[_FAILED]}")
        self._in_between = True
        return message, tensors

    def answer(self, work: Callable[[], tuple[Any, Sequence[Tensor]]]) -> None:
        """Do what was asked for, and say what came of it."""
        try:
            said, vectors = work()
        except Exception as error:
            self._answer_failure(error)
            raise
        self._send_text(said)
        for vector in vectors:
            with self._connected():
                dist.send(vector, 0, group=self._group)
        self._in_between = False

    def _answer_failure(self, error: BaseException) -> None:
        self._send_text({_FAILED: _reason(error)})
        with suppress(ValueError):
            self.hear()  # that the run is over
        self._over = True

    # How it ends -----------------------------------------------------------------------------------------

    def tell(self, error: BaseException) -> None:
        """Let the others know why this process ends, if they do not. In the middle of something nobody would hear it:
        they lose the connection."""
        if self._over or self._in_between:
            return
        with suppress(ConnectionError, ValueError):
            if self.rank == 0:
                self.end({_FAILED: _reason(error)})
            elif isinstance(error, Exception):  # whoever interrupts a process does not want to wait
                self.hear()
                self._answer_failure(error)

    # What is sent ----------------------------------------------------------------------------------------

    def _spread(self, content: Tensor) -> None:
        with self._connected():
            dist.broadcast(torch.tensor([content.numel()]), 0, group=self._group)
            dist.broadcast(content, 0, group=self._group)

    def _send_text(self, said: Any) -> None:
        content = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        with self._connected():
            dist.send(torch.tensor([content.numel()]), 0, group=self._group)
            dist.send(content, 0, group=self._group)

    def _text_from(self, rank: int) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        with self._connected():
            dist.recv(size, rank, group=self._group)
            content = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(content, rank, group=self._group)
        return json.loads(content.numpy().tobytes())

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # of the backend
            self._over = True
            raise RankLost(
                "another process of this run has ended, and so does this one: go on from the last checkpoint (resume), "
                "with as many processes or another number"
            ) from None


def _failure(said: Any) -> bool:
    return isinstance(said, dict) and _FAILED in said


def _raise_failures(heard: Sequence[Any]) -> None:
    failed = [f"rank {rank}: {said[_FAILED]}" for rank, said in enumerate(heard, 1) if _failure(said)]
    if failed:
        raise ValueError("; ".join(failed))


def _reason(error: BaseException) -> str:
    """What the others may show. Errors that are not ours may quote a row: of those, what kind they are, and where."""
    if isinstance(error, ValueError | OSError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"it ended with {type(error).__name__} ({Path(place.filename).name}, line {place.lineno})"


def _packed(message: Mapping[str, Any], tensors: Sequence[Tensor]) -> Tensor:
    """A message and tensors as bytes. No pickle: what arrives is numbers and text, whoever has sent it."""
    shapes = [[str(each.dtype).removeprefix("torch."), list(each.shape)] for each in tensors]
    header = json.dumps([message, shapes]).encode()
    parts = [_bytes_of(torch.tensor([len(header)])), torch.frombuffer(bytearray(header), dtype=torch.uint8)]
    parts += [_bytes_of(each.detach().cpu()) for each in tensors]
    return torch.cat([padded for part in parts for padded in (part, part.new_zeros(-len(part) % _ALIGNED))])


def _unpacked(content: Tensor) -> tuple[dict[str, Any], list[Tensor]]:
    length = int(content[:_ALIGNED].view(torch.int64))
    start = _ALIGNED + length
    message, shapes = json.loads(content[_ALIGNED:start].numpy().tobytes())
    tensors = []
    for name, shape in shapes:
        start += -start % _ALIGNED
        kind = getattr(torch, name)
        stop = start + kind.itemsize * torch.Size(shape).numel()
        tensors.append(content[start:stop].view(kind).view(shape))
        start = stop
    return message, tensors


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
