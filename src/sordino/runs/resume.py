"""Going on with an interrupted run: it must be the same run, and it is the same bit for bit."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data import Examples
from sordino.data.chance import seeded
from sordino.gradients import Loss, call_model
from sordino.noise import Streams
from sordino.runs.checkpoint import Checkpoint, Saved
from sordino.runs.directory import RunDirectory
from sordino.vector import holding


def streams_of(seed: int | None, saved: Saved | None) -> Streams:
    if saved is not None:
        return Streams(bytes.fromhex(saved.key), seeded=saved.seeded)
    return Streams.from_entropy() if seed is None else Streams.from_seed(seed)


# What follows from another thing that changed, and would only distract from it.
_FOLLOWS = {
    "noise_multiplier": {"epsilon", "delta", "accountant", "epochs", "rounds", "before", "metric_epsilon"},
    "steps": {"epochs", "rounds"},
    "batches": {"epochs"},
    "epochs": {"minutes"},
    "batch_size": {"minutes"},
    "steps_per_epoch": {"minutes"},
    "units_in_no_batch": {"minutes"},
    "method": {"minutes"},  # bands or trees that the plan chose
}
_FOLLOWS_FROM_DATA = {
    "assumptions", "batch_size", "batches", "chunk", "clients", "clients_never_asked", "engine", "epochs", "groups",
    "method", "model", "model or loss", "n", "noise_multiplier", "parameters", "participation", "partition",
    "public_examples", "rows", "rows of the clients", "rows of the data", "steps", "steps_per_epoch", "test",
    "units_in_no_batch",
}  # fmt: skip


def check_same_plan(saved: dict[str, Any], now: dict[str, Any]) -> None:
    # JSON turned tuples into lists; compare in that form.
    now = json.loads(json.dumps(now))
    if ("rounds" in saved) != ("rounds" in now):  # which only federations have
        kind = "federate" if "rounds" in saved else "train"
        raise ValueError(
            f"this directory holds a run of sordino {kind}: go on with it so, or choose another one"
        )
    different = {name for name in {**saved, **now} if saved.get(name) != now.get(name)}
    different -= {name for name, causes in _FOLLOWS.items() if causes & different}
    if "data" in different:
        different -= _FOLLOWS_FROM_DATA
    if different:
        raise ValueError(
            f"this is not the run that was interrupted: {', '.join(sorted(different))} changed; "
            "repeat the command as it was"
        )


_CONSTANTS = "constants.safetensors"


def constants_of(model: nn.Module) -> dict[str, Tensor]:
    """What training does not move, frozen parameters and buffers, but releases depend on."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if id(t) not in trained}


def save_constants(model: nn.Module, directory: RunDirectory) -> None:
    constants = {name: value.detach() for name, value in constants_of(model).items()}
    Checkpoint({"constants": constants}).save(directory.checkpoint_folder, _CONSTANTS)


def restore_constants(model: nn.Module, directory: RunDirectory) -> None:
    found = Checkpoint.load(directory.checkpoint_folder, _CONSTANTS)
    now = constants_of(model)
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


def made_up_theta(theta: Tensor) -> Tensor:
    return torch.linspace(-0.1, 0.1, len(theta), device=theta.device)


def behaviour(model: nn.Module, theta: Tensor, loss: Loss, examples: Examples) -> dict[str, str | None]:
    """The losses of made-up rows at a made-up theta, to the last bit: a resumed run must compute the same, or its
    replayed noise would hide another sum. In the modes the modules are in, in training mode (where dropout has its
    share) and in evaluation mode; None where the model cannot run on made-up rows."""
    modes = {module: module.training for module in model.modules()}
    found: dict[str, str | None] = {}
    for name, mode in (("as given", None), ("training", True), ("evaluating", False)):
        try:
            if mode is not None:
                model.train(mode)
            found[name] = _digest_of_losses(model, theta, loss, examples)
        finally:
            for module, before in modes.items():
                module.training = before
    return found


def _digest_of_losses(model: nn.Module, theta: Tensor, loss: Loss, examples: Examples) -> str | None:
    # A pass in training mode may move buffers, or put others in their place.
    buffers = [(m, n, b, b.clone()) for m in model.modules() for n, b in m._buffers.items() if b is not None]
    try:
        with holding(theta, made_up_theta(theta)), torch.no_grad(), seeded(0):
            inputs, targets = examples.template(5)
            values = loss(call_model(model, inputs), targets)
    except Exception:
        return None
    finally:
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer.copy_(before)
    return digest(values)


def digest(value: Tensor) -> str:
    """Tells one tensor from another by every bit. Not for private values: it has no key."""
    array = value.detach().cpu().contiguous()
    content = array.reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(
        f"{array.dtype} {tuple(array.shape)} ".encode() + content, digest_size=16
    ).hexdigest()
