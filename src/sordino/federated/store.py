"""What clients keep between rounds. Only clients that ever took part take room, and a round commits as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.runs.writing import writing

_GROW = 1.5

Matrix = npt.NDArray[np.float32]


class ClientStore:
    """A row of numbers for each client that was ever here: vectors by name, and a few plain numbers.

    ``read`` gives what was committed; ``write`` and ``write_many`` stage, ``commit`` makes it count, ``forget`` drops
    what was staged.

    Rows live in memory, or with ``path`` in a memory-mapped file that may be larger than memory. In that file a
    committed row is never written over before the next ``checkpoint``: a staged row goes to a free slot, so that a run
    killed at any time finds in its file what its last checkpoint points at.
    """

    def __init__(
        self, vectors: Sequence[str], size: int, numbers: Sequence[str], path: Path | None = None
    ) -> None:
        self.vectors, self.size, self.numbers, self.path = tuple(vectors), size, tuple(numbers), path
        self._width = len(self.vectors) * size
        self._slot: dict[int, int] = {}  # committed, by client
        self._number: dict[int, tuple[float, ...]] = {}
        self._staged: dict[int, tuple[int, tuple[float, ...]]] = {}
        self._free: list[int] = []
        self._held: list[int] = []  # not committed any more, but the last checkpoint points at them
        self._in_checkpoint: set[int] = set()
        self._rows = self._open(0)

    def __len__(self) -> int:
        """How many clients were ever here."""
        return len(self._number)

    def read(self, clients: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Vectors [P, d] and numbers [P] by name, and who was here before [P]; zeros for those who were not."""
        known = [client in self._number for client in clients]
        nothing = (0.0,) * len(self.numbers)
        values = torch.tensor(
            [self._number.get(client, nothing) for client in clients], dtype=torch.float64
        ).view(len(clients), len(self.numbers))
        rows = np.empty((len(clients), self._width), dtype=np.float32)
        if self._width and any(known):
            slots = [self._slot.get(client, 0) for client in clients]
            np.take(self._rows, slots, axis=0, out=rows, mode="clip")  # a mode without which it copies twice
        if not all(known):
            rows[np.logical_not(known)] = 0.0
        parts = torch.from_numpy(rows).view(len(clients), len(self.vectors), self.size).unbind(1)
        return (
            dict(zip(self.vectors, parts, strict=True)),
            dict(zip(self.numbers, values.unbind(1), strict=True)),
            torch.tensor(known, dtype=torch.bool),
        )

    def column(self, name: str) -> dict[int, float]:
        """A number of every client that was ever here."""
        place = self.numbers.index(name)
        return {client: numbers[place] for client, numbers in self._number.items()}

    def write(self, client: int, vectors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Stage vectors [d] and numbers of a client."""
        columns = {name: torch.tensor([numbers[name]], dtype=torch.float64) for name in self.numbers}
        self.write_many([client], {name: vectors[name][None] for name in self.vectors}, columns)

    def write_many(
        self, clients: Sequence[int], vectors: Mapping[str, Tensor], numbers: Mapping[str, Tensor]
    ) -> None:
        """Stage vectors [P, d] and numbers [P] of these clients, in place of what was staged of them before."""
        if len(set(clients)) < len(clients):
            raise ValueError("a client can be written once at a time only")
        for name in self.vectors:
            if vectors[name].shape != (len(clients), self.size):
                raise ValueError(
                    f"{name} must be of shape {len(clients)} x {self.size}, not {list(vectors[name].shape)}"
                )
        slots = [-1] * len(clients)
        if self._width:
            slots = self._slots_for(clients)
            by_vector = self._rows.reshape(len(self._rows), len(self.vectors), self.size)
            for i, name in enumerate(self.vectors):
                by_vector[slots, i] = vectors[name].detach().numpy()
        values = [numbers[name].reshape(len(clients)).tolist() for name in self.numbers]
        for i, (client, slot) in enumerate(zip(clients, slots, strict=True)):
            self._staged[client] = (slot, tuple(float(of_clients[i]) for of_clients in values))

    def commit(self) -> None:
        """Make all that was staged count."""
        for client, (slot, numbers) in self._staged.items():
            old = self._slot.get(client)
            if old is not None:
                (self._held if old in self._in_checkpoint else self._free).append(old)
            if slot >= 0:
                self._slot[client] = slot
            self._number[client] = numbers
        self._staged.clear()

    def forget(self) -> None:
        """Drop all that was staged."""
        self._free += [slot for slot, _ in self._staged.values() if slot >= 0]
        self._staged.clear()

    def checkpoint(self) -> dict[str, object]:
        """What a checkpoint needs to find the committed rows again; with a file, only where they are.

        It has to be saved before anything more is written: the rows of the checkpoint before are free from here on.
        """
        clients = sorted(self._number)
        slots = [self._slot.get(client, -1) for client in clients]
        state: dict[str, object] = {
            "width": self._width,
            "clients": torch.tensor(clients, dtype=torch.int64),
            "slots": torch.tensor(slots, dtype=torch.int64),
            "numbers": torch.tensor([self._number[c] for c in clients], dtype=torch.float64),
        }
        if self.path is None:
            if self._width:
                state["rows"] = torch.from_numpy(self._rows[slots])
            return state
        if isinstance(self._rows, np.memmap):
            self._rows.flush()
        self._free += self._held
        self._held = []
        self._in_checkpoint = set(self._slot.values())
        return state

    def restore(self, state: Mapping[str, object]) -> None:
        """Go back to a checkpoint: nothing that was committed or staged since counts."""
        clients, slots, numbers = (state[name] for name in ("clients", "slots", "numbers"))
        assert isinstance(clients, Tensor)
        assert isinstance(slots, Tensor)
        assert isinstance(numbers, Tensor)
        if state["width"] != self._width:
            raise ValueError(
                f"the checkpoint has {state['width']} numbers for each client and this run {self._width}: "
                "resume with the model and the algorithm it was made with"
            )
        rows = state.get("rows")
        names, places = clients.tolist(), slots.tolist()
        if isinstance(rows, Tensor):
            places = list(range(len(names)))
            self._rows = self._open(len(names))
            self._rows[: len(names)] = rows.numpy()
        elif self._width:
            self._rows = self._reopened(1 + max(places, default=-1))
        self._slot = {client: slot for client, slot in zip(names, places, strict=True) if slot >= 0}
        self._number = {client: tuple(each) for client, each in zip(names, numbers.tolist(), strict=True)}
        taken = set(self._slot.values())
        self._free = [slot for slot in range(len(self._rows) - 1, -1, -1) if slot not in taken]
        self._held, self._staged = [], {}
        self._in_checkpoint = taken if self.path is not None else set()

    def _slots_for(self, clients: Sequence[int]) -> list[int]:
        """Where to stage: where these clients are staged already, or free slots, room made for as needed."""
        staged = [self._staged[client][0] if client in self._staged else None for client in clients]
        missing = staged.count(None) - len(self._free)
        if missing > 0:
            first = len(self._rows)
            last = max(first + missing, 16, int(first * _GROW))
            self._rows = self._grown(last)
            self._free[:0] = range(last - 1, first - 1, -1)
        return [self._free.pop() if slot is None else slot for slot in staged]

    def _open(self, rows: int) -> Matrix:
        if self.path is None or rows == 0:
            return np.zeros((rows, self._width), dtype=np.float32)
        self._make_room(self.path, rows)
        return np.memmap(self.path, dtype=np.float32, mode="r+", shape=(rows, self._width))

    def _make_room(self, path: Path, rows: int) -> None:
        """A file for the owner alone whatever the umask, and room on the disk for so many rows."""
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(descriptor, 0o600)
                there, needed = os.fstat(descriptor).st_size, rows * self._width * 4
                if needed > there:
                    # Taken now, and not when it is written to: a full disk is an error here, and there a signal that
                    # kills the process.
                    try:
                        os.posix_fallocate(descriptor, there, needed - there)
                    except OSError as error:
                        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                            raise
                        os.ftruncate(descriptor, needed)  # a file system that cannot promise
            finally:
                os.close(descriptor)

    def _reopened(self, rows: int) -> Matrix:
        """The file of an earlier run."""
        if self.path is None:
            raise ValueError(
                "the checkpoint's client states are in a file: resume with the store it was made with"
            )
        there = self.path.stat().st_size if self.path.exists() else 0
        if there < rows * self._width * 4:
            raise ValueError(
                f"the client states of the checkpoint are not in {self.path}: resume where that file is, or begin anew"
            )
        return self._open(rows)

    def _grown(self, rows: int) -> Matrix:
        if self.path is None:
            grown = np.zeros((rows, self._width), dtype=np.float32)  # takes no room before it is written to
            grown[: len(self._rows)] = self._rows
            return grown
        return self._open(rows)
