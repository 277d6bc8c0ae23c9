"""`torchrun -m sordino train`: the processes it started find each other, and the first of them speaks for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# torch loads slowly: it is imported inside functions, so that --help is quick.


def started() -> int:
    """How many processes torchrun started, this one included."""
    count = os.environ.get("WORLD_SIZE", "1")
    return int(count) if count.isdecimal() else 1


def hush_all_but_one() -> None:
    """Whatever a process says that is not the first goes nowhere: each would say the same."""
    if started() > 1 and os.environ.get("RANK", "0") != "0":
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)


def refuse_under_torchrun(command: str | None) -> None:
    if started() > 1 and command not in (None, "train"):
        raise ValueError(
            f"torchrun started {started()} processes, and sordino {command} is for one: only sordino train shares its "
            "work among several"
        )


@contextmanager
def joined() -> Iterator[None]:
    """The processes of this command know of each other in here."""
    if started() == 1:
        yield
        return
    import torch.distributed as dist

    try:
        dist.init_process_group("gloo")
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"the {started()} processes that were started do not find each other ({type(error).__name__}): start them "
            "with torchrun"
        ) from None
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def told_to_all() -> Iterator[None]:
    """What goes wrong in here goes wrong for all: a file may be missing on one machine only."""
    try:
        yield
    except Exception:
        from sordino.ranks import gathered

        with gathered():
            raise


def own_device(device: str | None) -> str | None:
    """Each process of a machine has a GPU of its own."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if started() > 1 and device == "cuda" else device
