"""The directory a run writes: run.json, history.jsonl, certificate.json, model.safetensors, checkpoint/."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

_CHECKPOINT = "checkpoint"


class RunDirectory:
    """Files of one run. Whole files are replaced atomically; the history grows by whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint_folder = path / _CHECKPOINT
        self._history = path / "history.jsonl"

    def create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._history.touch()

    @property
    def summary(self) -> dict[str, Any] | None:
        """run.json, if there is one that can be read."""
        try:
            read = json.loads((self.path / "run.json").read_text())
        except (OSError, ValueError):
            return None
        return read if isinstance(read, dict) else None

    @property
    def is_empty(self) -> bool:
        """Nothing there, or only what a run killed before its first checkpoint has left."""
        if not self.path.exists():
            return True
        if not self.path.is_dir():
            return False
        return all(_is_leftover(entry) for entry in self.path.iterdir())

    def append_history(self, line: dict[str, Any]) -> None:
        with self._history.open("a") as file:
            file.write(to_json(line) + "\n")

    def history_size(self) -> int:
        return self._history.stat().st_size

    def cut_history(self, size: int) -> list[dict[str, Any]]:
        """Drop what was written after a checkpoint was taken; return what is left."""
        with self._history.open("r+b") as file:
            file.truncate(size)
        return [json.loads(line) for line in self._history.read_text().splitlines()]

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        replace_file(self.path / name, (to_json(content, indent=2) + "\n").encode())

    def write_model(self, model: nn.Module) -> None:
        # Parameters share one storage, and tied ones memory: safetensors wants each tensor on its own.
        tensors = {name: t.detach().cpu().clone().contiguous() for name, t in model.state_dict().items()}
        replace_file(self.path / "model.safetensors", save(tensors))


def to_json(content: Any, indent: int | None = None) -> str:
    """JSON, with numbers that it has not (a diverged loss) as the strings "nan", "inf" and "-inf"."""

    def finite(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, dict):
            return {name: finite(part) for name, part in value.items()}
        return [finite(part) for part in value] if isinstance(value, (list, tuple)) else value

    return json.dumps(finite(content), indent=indent, allow_nan=False)


def _is_leftover(entry: Path) -> bool:
    if entry.name == _CHECKPOINT:
        return entry.is_dir() and all(_is_leftover(part) for part in entry.iterdir())
    temporary = entry.name.startswith(".") and entry.name.endswith(".tmp")
    return temporary or (entry.name == "history.jsonl" and entry.stat().st_size == 0)


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write ``path`` so that a reader, or a crash, sees the old file or the new one and nothing between."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
