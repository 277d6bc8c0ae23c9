"""What the clients of a node keep between rounds, on the node's own disk.

A node does not know whether what it sends will count: its answer may be lost, or come too late. So each client has two
places: the state after the last round that counted, and the one after the last round it worked in. The server says with
every round which round of a client counted last, and a round that is asked for again starts from where it started.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from sordino.federated.store import ClientStore
from sordino.network.wire import Refused
from sordino.runs.checkpoint import Checkpoint
from sordino.runs.lock import LOCK, locked
from sordino.runs.writing import replace_file, writing

_FILE = "clients.safetensors"
_ROWS = "clients.f32"
_PINNED = "pinned.json"


class Kept:
    """Rows of numbers for each client and each of its two places, in ``folder``; a round is written whole or not."""

    def __init__(self, folder: Path, vectors: Sequence[str], size: int) -> None:
        self._folder = folder
        self._store = ClientStore(vectors, size, ("round", "rate"), folder / _ROWS if vectors else None)
        found = Checkpoint.load(folder, _FILE)
        if found is not None:
            self._store.restore(found.state)

    @staticmethod
    @contextmanager
    def opened(folder: Path, vectors: Sequence[str], size: int) -> Iterator[Kept]:
        """Nobody else writes there meanwhile: an answer that nobody waits for any more may still be under way."""
        with writing(folder, "ask again"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(folder):
            yield Kept(folder, vectors, size)

    def read(
        self, clients: Sequence[int], counted: Sequence[int], number: int
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Vectors [P, d] and rates [P] after the rounds that counted, and who has such [P]; zeros for a client without,
        or whose state is lost. Raises `Refused` for a round before the last one that was worked in."""
        places = [self._place(client, since) for client, since in zip(clients, counted, strict=True)]
        _, newest, _ = self._store.read([2 * client + side for client in clients for side in (0, 1)])
        if bool((newest["round"] > number).any()):
            raise Refused("of an earlier round")
        vectors, numbers, known = self._store.read([-1 if place is None else place for place in places])
        return vectors, numbers["rate"], known

    def write(
        self,
        clients: Sequence[int],
        counted: Sequence[int],
        number: int,
        vectors: Mapping[str, Tensor],
        rates: Tensor,
    ) -> None:
        """What these clients have after a round, beside what they had before it. On the disk when this returns."""
        taken = [self._place(client, since) for client, since in zip(clients, counted, strict=True)]
        places = [2 * client + (place == 2 * client) for client, place in zip(clients, taken, strict=True)]
        rounds = torch.full((len(places),), float(number), dtype=torch.float64)
        self._store.write_many(places, vectors, {"round": rounds, "rate": rates.double()})
        self._store.commit()
        Checkpoint(self._store.checkpoint()).save(self._folder, _FILE)

    def _place(self, client: int, since: int) -> int | None:
        """Where a client's state after that round is, if it is anywhere."""
        if since == 0:
            return None
        both = [2 * client, 2 * client + 1]
        _, numbers, known = self._store.read(both)
        for place, number, there in zip(both, numbers["round"].tolist(), known.tolist(), strict=True):
            if there and number == since:
                return place
        return None


def pinned(folder: Path, digest: Callable[[bytes], str], number: int) -> None:
    """Note down what a node begins a federation with, and how far it is; raise `Refused` for a round that is over, or
    if the rows are others by now: who client 3 is must not change, or somebody comes more often than was planned."""
    path = folder / _PINNED
    if path.exists():
        noted = json.loads(path.read_text())
        if noted["digest"] != digest(bytes.fromhex(noted["key"])):
            raise Refused("the node has other rows than it began with")
        if noted["round"] > number:
            raise Refused("of an earlier round")
        if noted["round"] == number:
            return
    else:
        key = secrets.token_bytes(16)
        noted = {"key": key.hex(), "digest": digest(key)}
    replace_file(path, json.dumps({**noted, "round": number}).encode(), mode=0o600)


def forget(folder: Path) -> None:
    """The federation is over: nothing of its clients stays. Nothing is deleted that is not ours."""
    for name in (_FILE, _ROWS, _PINNED, LOCK):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
