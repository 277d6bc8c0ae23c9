"""Checkpoints: everything a run needs to go on bit for bit, in one file, for the owner's eyes only.

A checkpoint holds the key of the noise. With it the noise can be subtracted, so the folder is readable by the
owner alone, it is deleted when the run completes, and it never goes into a report or an export.
"""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sordino.runs.writing import replace_file, writing

_FILE = "state.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Plain numbers and tensors, by name. ``state`` may nest dicts; tensors in it are stored as tensors."""

    state: dict[str, Any]

    def save(self, folder: Path, file: str = _FILE) -> None:
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)  # whatever the umask, and whoever made it
        tensors: dict[str, Tensor] = {}
        numbers = _split(self.state, "", tensors)
        replace_file(folder / file, save(tensors, {"state": json.dumps(numbers)}), mode=0o600)

    @classmethod
    def load(cls, folder: Path, file: str = _FILE) -> Checkpoint | None:
        """The checkpoint in ``folder``, or None if there is none."""
        path = folder / file
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as opened:
                numbers = json.loads(opened.metadata()["state"])
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise ValueError(
                f"the checkpoint {path} cannot be read ({error}): start the run afresh"
            ) from error
        return cls(_merge(numbers, tensors))


@dataclass(frozen=True, kw_only=True, eq=False)
class Saved:
    """Where a run stood: what a checkpoint holds."""

    plan: dict[str, Any]
    pinned: dict[str, Any]
    step: int  # so many are done
    unlogged: bool  # the last of them has not been shown yet
    key: str
    seeded: bool
    threads: int  # the order of additions depends on it
    history_size: int
    process: dict[str, Any]

    def save(self, folder: Path) -> None:
        Checkpoint({each.name: getattr(self, each.name) for each in fields(self)}).save(folder)

    @staticmethod
    def load(folder: Path) -> Saved | None:
        found = Checkpoint.load(folder)
        if found is None:
            return None
        if set(found.state) != {each.name for each in fields(Saved)}:
            raise ValueError(
                f"the checkpoint in {folder} is of another version of Sordino: start the run afresh"
            )
        return Saved(**found.state)


def delete_checkpoint(folder: Path) -> None:
    if not folder.exists():
        return
    try:
        shutil.rmtree(folder)
    except OSError as error:
        warnings.warn(f"{folder} holds the key of the noise and could not be deleted: {error}", stacklevel=2)


def _split(state: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            tensors[prefix + name] = value.detach().to("cpu", copy=True)
            numbers[name] = {"__tensor__": prefix + name}
        elif isinstance(value, dict):
            numbers[name] = _split(value, f"{prefix}{name}/", tensors)
        else:
            numbers[name] = value
    return numbers


def _merge(numbers: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, value in numbers.items():
        if isinstance(value, dict):
            merged[name] = tensors[value["__tensor__"]] if "__tensor__" in value else _merge(value, tensors)
        else:
            merged[name] = value
    return merged


def restore_(state: dict[str, Any], saved: dict[str, Any]) -> None:
    """Put ``saved`` values into ``state`` in place, tensors by copying."""
    for name, value in saved.items():
        if isinstance(value, Tensor) and isinstance(state.get(name), Tensor):
            with torch.no_grad():
                state[name].copy_(value)
        else:
            state[name] = value
