"""The gradients of many clients at once, by the fastest way a model allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sordino.federated.engines.stacked import StackedGradients, can_stack
from sordino.vector import ParameterVector

Loss = Callable[[Tensor, Tensor], Tensor]


class Gradients(Protocol):
    """Gradients [P, d] of each row's mean loss over its own batch."""

    def __call__(self, x_Pd: Tensor, inputs_PB: Tensor, targets_PB: Tensor, weights_PB: Tensor) -> Tensor: ...


def stacked(model: nn.Module, loss: Loss, vector: ParameterVector) -> Gradients | None:
    """Batches of matrix products; None if a layer has no such form."""
    if not can_stack(model):
        return None
    parts = StackedGradients(model, loss, vector.slots)

    def gradients(x_Pd: Tensor, inputs_PB: Tensor, targets_PB: Tensor, weights_PB: Tensor) -> Tensor:
        found = parts(x_Pd, inputs_PB, targets_PB, weights_PB)
        return torch.cat([part.flatten(1) for part in found], dim=1)

    return gradients


def mapped(model: nn.Module, loss: Loss, vector: ParameterVector) -> Gradients:
    """`torch.func.vmap` over clients: for models made of anything that it can batch."""
    names = [slot.name for slot in vector.slots]
    shapes = [slot.parameter.shape for slot in vector.slots]
    sizes = [slot.stop - slot.start for slot in vector.slots]

    def mean_loss(x_d: Tensor, inputs_B: Tensor, targets_B: Tensor, weights_B: Tensor) -> Tensor:
        parts = [part.view(shape) for part, shape in zip(x_d.split(sizes), shapes, strict=True)]
        output = functional_call(model, dict(zip(names, parts, strict=True)), (inputs_B,))
        return (loss(output, targets_B) * weights_B).sum()

    return vmap(grad(mean_loss), randomness="error")  # type: ignore[no-any-return]


def looped(model: nn.Module, loss: Loss, vector: ParameterVector) -> Gradients:
    """One client after the other, in plain autograd: for everything, and to step through."""

    def gradients(x_Pd: Tensor, inputs_PB: Tensor, targets_PB: Tensor, weights_PB: Tensor) -> Tensor:
        found = torch.empty_like(x_Pd)
        parameters = [slot.parameter for slot in vector.slots]
        before = vector.theta.clone()
        for row, x_d, inputs_B, targets_B, weights_B in zip(
            found, x_Pd, inputs_PB, targets_PB, weights_PB, strict=True
        ):
            vector.theta.copy_(x_d)
            with torch.enable_grad():
                total = (loss(model(inputs_B), targets_B) * weights_B).sum()
                parts = torch.autograd.grad(total, parameters)
            torch.cat([part.flatten() for part in parts], out=row)
        vector.theta.copy_(before)
        return found

    return gradients
