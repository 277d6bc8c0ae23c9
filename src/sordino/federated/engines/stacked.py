"""Many copies of a model stepped at once: the gradients of a matrix of parameter vectors, one row per client.

Where a model is made of layers that have a batched form (linear layers, convolutions, and whatever acts on each example
by itself), all clients go through one product of batches of matrices. A linear layer of P clients is one `baddbmm`, a
convolution one grouped convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.vector import Slot

Loss = Callable[[Tensor, Tensor], Tensor]

# Layers without parameters that treat every example alike: clients and examples become one dimension for them.
_PER_EXAMPLE = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Hardtanh, nn.Identity,
    nn.Flatten, nn.Unflatten, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip


def can_stack(model: nn.Module) -> bool:
    """Whether every layer has a batched form."""
    if isinstance(model, nn.Sequential):
        return all(can_stack(layer) for layer in model)
    if isinstance(model, nn.Conv2d):
        return model.groups == 1 and model.padding_mode == "zeros" and not isinstance(model.padding, str)
    return isinstance(model, (nn.Linear, *_PER_EXAMPLE))


@dataclass(frozen=True, eq=False)
class StackedGradients:
    """Gradients of mean losses, client by client, for models that `can_stack`."""

    model: nn.Module
    loss: Loss
    slots: tuple[Slot, ...]

    def __call__(self, x_Pd: Tensor, inputs_PB: Tensor, targets_PB: Tensor, weights_PB: Tensor) -> list[Tensor]:
        """One gradient [P, *shape] for each slot; ``weights`` are those of the examples in their client's mean."""
        clients, batch = inputs_PB.shape[:2]
        leaves = [_part(x_Pd, slot).detach().requires_grad_() for slot in self.slots]
        parameters = {slot.name: leaf for slot, leaf in zip(self.slots, leaves, strict=True)}
        with torch.enable_grad():
            output = _through(self.model, "", parameters, inputs_PB.flatten(0, 1), clients)
            losses = self.loss(output, targets_PB.flatten(0, 1)).view(clients, batch)
            total = (losses * weights_PB).sum()
        return list(torch.autograd.grad(total, leaves))


def _part(x_Pd: Tensor, slot: Slot) -> Tensor:
    return x_Pd[:, slot.start : slot.stop].view(len(x_Pd), *slot.parameter.shape)


def _through(layer: nn.Module, name: str, parameters: dict[str, Tensor], x_N: Tensor, clients: int) -> Tensor:
    """x [P * B, ...] through a layer of which every client has its own copy."""
    if isinstance(layer, nn.Sequential):
        for child, module in layer.named_children():
            x_N = _through(module, f"{name}{child}.", parameters, x_N, clients)
        return x_N
    if isinstance(layer, nn.Linear):
        weight = parameters[f"{name}weight"]
        x = x_N.view(clients, -1, x_N.shape[-1])
        bias = parameters.get(f"{name}bias")
        product = torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)
        return product.view(*x_N.shape[:-1], -1)
    if isinstance(layer, nn.Conv2d):
        weight, bias = parameters[f"{name}weight"], parameters.get(f"{name}bias")
        # Clients as groups of channels: [P * B, C, H, W] -> [B, P * C, H, W].
        x = x_N.view(clients, -1, *x_N.shape[1:]).transpose(0, 1).flatten(1, 2)
        y = nn.functional.conv2d(
            x, weight.flatten(0, 1), None if bias is None else bias.flatten(), layer.stride, layer.padding,
            layer.dilation, groups=clients,
        )  # fmt: skip
        return y.unflatten(1, (clients, -1)).transpose(0, 1).flatten(0, 1)
    result: Tensor = layer(x_N)
    return result
