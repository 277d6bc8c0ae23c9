"""The directory a run writes: run.json, history.jsonl, certificate.json, model.safetensors, checkpoint/."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from sordino.runs.checkpoint import delete_checkpoint
from sordino.runs.lock import LOCK
from sordino.runs.writing import Lines, replace_file, writing

_CHECKPOINT = "checkpoint"
MODEL = "model.safetensors"
INPUTS = "inputs.json"
ACCOUNT = ".account.json"  # under which name a run is in which ledger, until it is complete


class RunDirectory:
    """Files of one run. Whole files are replaced atomically; the history grows by whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint_folder = path / _CHECKPOINT
        self._history = Lines(path / "history.jsonl")

    def create(self) -> None:
        with writing(self._history.path, "repeat the command"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._history.path.touch()

    @property
    def summary(self) -> dict[str, Any] | None:
        """run.json, if there is one that can be read."""
        try:
            read = json.loads((self.path / "run.json").read_text())
        except (OSError, ValueError):
            return None
        return read if isinstance(read, dict) else None

    @property
    def is_complete(self) -> bool:
        summary = self.summary
        return summary is not None and summary.get("status") == "complete"

    @property
    def is_empty(self) -> bool:
        """Nothing there, or only what a run killed before its first checkpoint has left."""
        if not self.path.exists():
            return True
        if not self.path.is_dir():
            return False
        return all(_is_leftover(entry) for entry in self.path.iterdir())

    @property
    def is_of_a_run(self) -> bool:
        """Whether a run has left something here, or is under way."""
        return any((self.path / name).exists() for name in (LOCK, "run.json", _CHECKPOINT))

    def tidy(self) -> None:
        """Finish what a killed run could not: delete a checkpoint, which holds the key of the noise, that nobody
        can want any more. Every command that opens the directory of a run calls it, with the lock held."""
        if self.is_complete:
            summary = self.summary or {}
            # Kept on purpose is said in run.json, and a folder of that name may be somebody else's.
            if "sordino_version" in summary and not summary.get("checkpoint_kept"):
                delete_checkpoint(self.checkpoint_folder)
            self.forget_account()
        elif self.is_empty and self.path.exists():
            delete_checkpoint(self.checkpoint_folder)  # half a file may hold a whole key

    def forget_account(self) -> None:
        (self.path / ACCOUNT).unlink(missing_ok=True)

    def append_history(self, line: dict[str, Any]) -> None:
        self._history.append(to_json(line))

    def history_size(self) -> int:
        """How long the history is, once all of it is on the disk: a checkpoint must not know of more."""
        self._history.sync()
        return self._history.size()

    def cut_history(self, size: int) -> list[dict[str, Any]]:
        """Drop what was written after a checkpoint was taken; return what is left."""
        if not self._history.path.exists() or self._history.size() < size:
            raise ValueError(
                f"{self._history.path} is shorter than when the checkpoint was taken: put it back, or start afresh"
            )
        self._history.cut(size)
        return [json.loads(line) for line in self._history.read()]

    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._history.read()]

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        replace_file(self.path / name, (to_json(content, indent=2) + "\n").encode())

    def write(self, name: str, content: bytes) -> None:
        replace_file(self.path / name, content)

    def write_model(self, model: nn.Module) -> dict[str, str]:
        """What a certificate says of the file: its name, and the hash of what was written."""
        # Parameters share one storage, and tied ones memory: safetensors wants each tensor on its own.
        tensors = {name: t.detach().cpu().clone().contiguous() for name, t in model.state_dict().items()}
        content = save(tensors)
        replace_file(self.path / MODEL, content)
        return {"file": MODEL, "sha256": hashlib.sha256(content).hexdigest()}


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
    if entry.name in (LOCK, ACCOUNT):
        return True
    temporary = entry.name.startswith(".") and entry.name.endswith(".tmp")
    # The constants of the model are written before the first checkpoint, and without one they are of no use.
    orphan = entry.name == "constants.safetensors" and entry.parent.name == _CHECKPOINT
    return temporary or orphan or (entry.name == "history.jsonl" and entry.stat().st_size == 0)
