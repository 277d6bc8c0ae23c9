"""Going on with an interrupted run: it must be the same run, and it is the same bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data import Examples
from sordino.gradients import Loss, call_model, evaluating
from sordino.noise import Streams
from sordino.runs.checkpoint import Checkpoint
from sordino.runs.directory import RunDirectory
from sordino.vector import holding


def find_checkpoint(directory: RunDirectory | None, resume: bool) -> dict[str, Any] | None:
    if directory is None:
        if resume:
            raise ValueError("to resume, say which run: give its directory as out")
        return None
    if not resume:
        if not directory.is_empty:
            raise ValueError(
                f"{directory.path} is not empty: choose another directory, or resume the run in it"
            )
        return None
    if not directory.path.is_dir() or not any(directory.path.iterdir()):
        raise ValueError(
            f"there is no interrupted run in {directory.path}: check the directory, or do not resume"
        )
    summary = directory.summary
    if summary is not None and summary.get("status") == "complete":
        raise ValueError(f"the run in {directory.path} is complete: there is nothing to resume")
    found = Checkpoint.load(directory.checkpoint_folder)
    if found is None and not directory.is_empty:
        raise ValueError(f"{directory.path} holds no checkpoint to resume from: choose an empty directory")
    return None if found is None else found.state


def streams_of(seed: int | None, saved: dict[str, Any] | None) -> Streams:
    if saved is not None:
        return Streams(bytes.fromhex(saved["key"]), seeded=saved["seeded"])
    return Streams.from_entropy() if seed is None else Streams.from_seed(seed)


def check_same_plan(saved: dict[str, Any], now: dict[str, Any]) -> None:
    # JSON turned tuples into lists; compare in that form.
    now = json.loads(json.dumps(now))
    different = [name for name in {**saved, **now} if saved.get(name) != now.get(name)]
    if different:
        raise ValueError(
            f"this is not the run that was interrupted: {', '.join(sorted(different))} changed; "
            "repeat the command as it was"
        )


_CONSTANTS = "constants.safetensors"


def _constants(model: nn.Module) -> dict[str, Tensor]:
    """What training does not move, frozen parameters and buffers, but releases depend on."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if id(t) not in trained}


def save_constants(model: nn.Module, directory: RunDirectory) -> None:
    constants = {name: value.detach() for name, value in _constants(model).items()}
    Checkpoint({"constants": constants}).save(directory.checkpoint_folder, _CONSTANTS)


def restore_constants(model: nn.Module, directory: RunDirectory) -> None:
    found = Checkpoint.load(directory.checkpoint_folder, _CONSTANTS)
    now = _constants(model)
    if found is None or {n: t.shape for n, t in now.items()} != {
        n: t.shape for n, t in found.state["constants"].items()
    }:
        raise ValueError("the model is not the one of the interrupted run: repeat the command as it was")
    with torch.no_grad():
        for name, value in now.items():
            value.copy_(found.state["constants"][name])


def marks(steps: int, count: int) -> set[int]:
    """About ``count`` evenly spaced steps; the last is always one."""
    return {round(steps * (i + 1) / count) for i in range(count)} - {0} | {steps}


def test_point(theta: Tensor) -> Tensor:
    return torch.linspace(-0.1, 0.1, len(theta), device=theta.device)


def behaviour(model: nn.Module, theta: Tensor, loss: Loss, examples: Examples) -> list[str] | None:
    """The losses of made-up rows at a made-up theta: a resumed run must compute the same, or its replayed noise would
    hide another sum. None if the model cannot run on made-up rows."""
    point = holding(theta, test_point(theta))
    try:
        with point, evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            inputs, targets = examples.template(5)
            values = loss(call_model(model, inputs), targets)
    except Exception:
        return None
    return [f"{value:.4g}" for value in values.flatten().tolist()]


class ReleaseJournal:
    """What was released, as digests under the run's key: a replayed release is the same, or the run does not go on.

    Noise is a function of (key, step). A replay that comes to another sum, because a client failed that did not fail
    before or the other way round, would give away the difference of the two.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        self._file, self._key = folder / "releases.txt", key
        lines = (
            self._file.read_text().split("\n")[:-1] if self._file.exists() else []
        )  # the last may be cut off
        self._known = dict(line.split(" ") for line in lines)

    def record(self, step: int, released: Tensor) -> None:
        """Before anything of a release is shown."""
        content = released.detach().cpu().contiguous().numpy().tobytes()
        digest = hashlib.blake2b(content, key=self._key, digest_size=16).hexdigest()
        known = self._known.get(str(step))
        if known is not None:
            if known != digest:
                raise ValueError(
                    "a repeated round came to another result, which under the same noise must not be shown: resume "
                    "once more (a client may have failed this time only), as the run was started"
                )
            return
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a") as file:
            file.write(f"{step} {digest}\n")
            file.flush()
            os.fsync(file.fileno())
