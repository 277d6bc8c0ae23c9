"""How a model is called on a batch of inputs, in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients.refuse import Unsuitable

Loss = Callable[[Any, Any], Tensor]


def call_model(model: nn.Module, inputs: Any) -> Any:
    """``model(x)``, ``model(*tuple)`` or ``model(**dict)``."""
    positional, named = arguments_of(inputs)
    return model(*positional, **named)


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def check_loss(losses: Any, batch: int) -> None:
    """Raise unless there is one loss per example."""
    if not isinstance(losses, Tensor) or losses.shape != (batch,):
        got = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise Unsuitable(
            f"the loss must return one value per example, {batch} for a batch of {batch}, but gave {got}: "
            "use reduction='none' and sum over everything but the batch"
        )


def where_scores_are(model: nn.Module, inputs: Any, problem: Exception) -> str | None:
    """What to do where a loss fails since the model returns no plain tensor; None where that is not the cause.

    ``inputs`` are made up, or public.
    """
    if not isinstance(problem, TypeError | AttributeError):
        return None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = call_model(model, inputs)
    except Exception:
        return None  # it is the model that fails
    if isinstance(output, Tensor):
        return None
    return (
        f"the model returns a {type(output).__name__}: say where the scores are, as in "
        f"classification(scores=lambda output: output.logits) ({type(problem).__name__}: {problem})"
    )
