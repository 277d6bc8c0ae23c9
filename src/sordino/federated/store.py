"""What clients keep between rounds. Only clients that ever took part take room, and a round commits as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_GROW = 1.5


class ClientStore:
    """A row of numbers for each client that was ever here: vectors by name, and a few plain numbers.

    ``read`` gives what was committed; ``write`` stages, ``commit`` makes it count, ``forget`` drops what was staged. A
    committed row is never written over before the next ``checkpoint``: a staged row goes to a free slot, so that a run
    killed at any time finds in its file what its last checkpoint points at.

    Rows live in memory, or with ``path`` in a memory-mapped file that may be larger than memory.
    """

    def __init__(self, vectors: Sequence[str], size: int, numbers: Sequence[str], path: Path | None = None) -> None:
        self.vectors, self.size, self.numbers, self.path = tuple(vectors), size, tuple(numbers), path
        self._width = len(self.vectors) * size
        self._slot: dict[int, int] = {}  # committed, by client
        self._number: dict[int, tuple[float, ...]] = {}
        self._staged: dict[int, tuple[int, tuple[float, ...]]] = {}
        self._free: list[int] = []
        self._held: list[int] = []  # not committed any more, but still in the last checkpoint
        self._in_checkpoint: set[int] = set()
        self._rows = self._open(0)

    def __len__(self) -> int:
        return len(self._number)

    def read(self, clients: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Vectors [P, d] and numbers [P] by name, and who was here before [P]; zeros for those who were not."""
        known = torch.tensor([client in self._number for client in clients])
        rows = torch.zeros(len(clients), self._width)
        for i, client in enumerate(clients):
            if client in self._slot:
                rows[i] = torch.from_numpy(self._rows[self._slot[client]].copy())
        parts = rows.view(len(clients), len(self.vectors), self.size).unbind(1)
        values = torch.tensor(
            [self._number.get(client, (0.0,) * len(self.numbers)) for client in clients], dtype=torch.float64
        ).view(len(clients), len(self.numbers))
        return (
            dict(zip(self.vectors, parts, strict=True)),
            dict(zip(self.numbers, values.unbind(1), strict=True)),
            known,
        )

    def write(self, client: int, vectors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        slot = -1
        if self._width:
            slot = self._free.pop() if self._free else self._new_slot()
            self._rows[slot] = torch.cat([vectors[name].reshape(-1) for name in self.vectors]).numpy()
        self._staged[client] = (slot, tuple(float(numbers[name]) for name in self.numbers))

    def commit(self) -> None:
        for client, (slot, numbers) in self._staged.items():
            old = self._slot.get(client)
            if old is not None:
                (self._held if old in self._in_checkpoint else self._free).append(old)
            if slot >= 0:
                self._slot[client] = slot
            self._number[client] = numbers
        self._staged.clear()

    def forget(self) -> None:
        self._free += [slot for slot, _ in self._staged.values() if slot >= 0]
        self._staged.clear()

    def checkpoint(self) -> dict[str, object]:
        """What a checkpoint needs to find the committed rows again; with a file, only where they are."""
        if self.path is not None:
            self._rows.flush()  # type: ignore[attr-defined]
        clients = sorted(self._number)
        state: dict[str, object] = {
            "clients": torch.tensor(clients, dtype=torch.int64),
            "slots": torch.tensor([self._slot.get(c, -1) for c in clients], dtype=torch.int64),
            "numbers": torch.tensor([self._number[c] for c in clients], dtype=torch.float64),
        }
        if self.path is None and self._width and clients:
            state["rows"] = torch.from_numpy(self._rows[[self._slot[c] for c in clients]])
        self._free += self._held
        self._held = []
        self._in_checkpoint = set(self._slot.values())
        return state

    def restore(self, state: Mapping[str, object]) -> None:
        clients, slots, numbers = (state[name] for name in ("clients", "slots", "numbers"))
        assert isinstance(clients, Tensor) and isinstance(slots, Tensor) and isinstance(numbers, Tensor)
        rows = state.get("rows")
        names = clients.tolist()
        if isinstance(rows, Tensor):
            slots = torch.arange(len(names))
            self._rows = self._open(len(names))
            self._rows[: len(names)] = rows.numpy()
        elif self._width:
            self._rows = self._open(int(slots.max()) + 1 if len(names) else 0)
        self._slot = {c: s for c, s in zip(names, slots.tolist(), strict=True) if s >= 0}
        self._number = {c: tuple(n) for c, n in zip(names, numbers.tolist(), strict=True)}
        taken = set(self._slot.values())
        self._free = [slot for slot in range(len(self._rows)) if slot not in taken]
        self._held, self._staged, self._in_checkpoint = [], {}, taken

    def _new_slot(self) -> int:
        first = len(self._rows)
        more = max(16, int(first * _GROW)) - first if first else 16
        self._rows = self._grown(first + more)
        self._free += range(first + more - 1, first, -1)
        return first

    def _open(self, rows: int) -> np.ndarray:
        if self.path is None or rows == 0:
            return np.zeros((rows, self._width), dtype=np.float32)
        mode = "r+" if self.path.exists() else "w+"
        return np.memmap(self.path, dtype=np.float32, mode=mode, shape=(rows, self._width))

    def _grown(self, rows: int) -> np.ndarray:
        if self.path is None:
            grown = np.zeros((rows, self._width), dtype=np.float32)
            grown[: len(self._rows)] = self._rows
            return grown
        if isinstance(self._rows, np.memmap):
            self._rows.flush()
        with self.path.open("ab") as file:
            file.truncate(rows * self._width * 4)
        return self._open(rows)
