"""How one layer goes forward and backward for many clients at once, each with its own copy of the parameters.

Activations are [N, ...] with N = P * B: the examples of client 0, then those of client 1, ... . Parameters and their
gradients are [P, *shape]: views of the matrices of parameter vectors and of the result, so nothing is copied or joined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

aten = torch.ops.aten
Parts = Sequence[Tensor | None]  # by parameter of the layer; None where it has none (or none to be trained)
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True, eq=False)
class Rule(ABC):
    """What a layer does. ``forward`` returns what its ``backward`` needs beside its output."""

    wanted: bool  # the gradient of the input: not below the first layer that is trained

    keeps_output = True  # whether backward needs the output as forward left it
    one_by_one = False  # whether clients are better worked on one after the other, through the whole model

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        return ()

    @abstractmethod
    def forward(self, x_N: Tensor, values: Parts, clients: int) -> tuple[Tensor, Any]: ...

    @abstractmethod
    def backward(self, gradient_N: Tensor, saved: Any, values: Parts, found: Parts) -> Tensor | None:
        """Write the gradients of the parameters to ``found``; return that of the input if it is wanted."""


@dataclass(frozen=True, eq=False)
class LinearRule(Rule):
    """A batch of matrix products."""

    layer: nn.Linear
    keeps_output = False

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        return self.layer.weight, self.layer.bias

    def forward(self, x_N: Tensor, values: Parts, clients: int) -> tuple[Tensor, Any]:
        weight, bias = values
        assert weight is not None
        x = x_N.reshape(clients, -1, x_N.shape[-1])
        y = torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)
        return y.view(*x_N.shape[:-1], -1), (x, x_N.shape)

    def backward(self, gradient_N: Tensor, saved: Any, values: Parts, found: Parts) -> Tensor | None:
        x, shape = saved
        weight = values[0]
        assert weight is not None
        gradient = gradient_N.reshape(len(x), -1, gradient_N.shape[-1])
        if found[0] is not None:
            torch.bmm(gradient.mT, x, out=found[0])
        if found[1] is not None:
            torch.sum(gradient, 1, out=found[1])
        return torch.bmm(gradient, weight).view(shape) if self.wanted else None


@dataclass(frozen=True, eq=False)
class ConvolutionRule(Rule):
    """One client after the other: a grouped convolution and products with unfolded patches are both slower.

    Images are laid out with the channels last, which makes convolutions and the pools between them faster.
    """

    layer: Convolution
    keeps_output = False
    one_by_one = True

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        return self.layer.weight, self.layer.bias

    def forward(self, x_N: Tensor, values: Parts, clients: int) -> tuple[Tensor, Any]:
        layer, (weight, bias) = self.layer, values
        assert weight is not None
        if x_N.dim() != weight.dim() - 1:
            raise ValueError(
                f"a {type(layer).__name__} of many clients needs batches of {weight.dim() - 1} dimensions"
            )
        if x_N.dim() == 4:
            x_N = x_N.contiguous(memory_format=torch.channels_last)
        parts = [
            aten.convolution(
                x_B, weight[p], None if bias is None else bias[p], layer.stride, padding_of(layer), layer.dilation,
                False, [0], layer.groups,
            )
            for p, x_B in enumerate(x_N.chunk(clients))
        ]  # fmt: skip
        return _joined(parts), x_N

    def backward(self, gradient_N: Tensor, saved: Any, values: Parts, found: Parts) -> Tensor | None:
        layer, weight = self.layer, values[0]
        assert weight is not None
        clients = len(weight)
        mask = [self.wanted, found[0] is not None, found[1] is not None]
        inputs = []
        for p, (gradient, x_B) in enumerate(
            zip(gradient_N.chunk(clients), saved.chunk(clients), strict=True)
        ):
            parts = aten.convolution_backward(
                gradient, x_B, weight[p], [layer.out_channels], layer.stride, padding_of(layer), layer.dilation, False,
                [0], layer.groups, mask,
            )  # fmt: skip
            inputs.append(parts[0])
            for result, part in zip(found, parts[1:], strict=True):
                if result is not None:
                    result[p].copy_(part)
        return _joined(inputs) if self.wanted else None


def padding_of(layer: Convolution) -> tuple[int, ...] | None:
    """How many zeros on both sides of each dimension; None if it is not the same on both."""
    if not isinstance(layer.padding, str):
        return tuple(layer.padding)
    if layer.padding == "valid":
        return (0,) * len(layer.kernel_size)
    both = [step * (size - 1) for step, size in zip(layer.dilation, layer.kernel_size, strict=True)]
    return None if any(total % 2 for total in both) else tuple(total // 2 for total in both)


@dataclass(frozen=True, eq=False)
class EmbeddingRule(Rule):
    """Rows of a table by number. The numbers have no gradient."""

    layer: nn.Embedding
    keeps_output = False

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        return (self.layer.weight,)

    def forward(self, x_N: Tensor, values: Parts, clients: int) -> tuple[Tensor, Any]:
        assert values[0] is not None
        return _joined(
            [F.embedding(x, table) for x, table in zip(x_N.chunk(clients), values[0], strict=True)]
        ), x_N

    def backward(self, gradient_N: Tensor, saved: Any, values: Parts, found: Parts) -> Tensor | None:
        if found[0] is None:
            return None
        found[0].zero_()
        clients = len(found[0])
        for table, numbers, gradient in zip(
            found[0], saved.chunk(clients), gradient_N.chunk(clients), strict=True
        ):
            table.index_add_(0, numbers.flatten(), gradient.reshape(-1, table.shape[1]))
        if self.layer.padding_idx is not None:
            found[0][:, self.layer.padding_idx] = 0
        return None


@dataclass(frozen=True, eq=False)
class NormRule(Rule):
    """Normalising each example by itself, then a scale and a shift that are the client's own."""

    layer: nn.LayerNorm | nn.GroupNorm

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        return self.layer.weight, self.layer.bias

    def forward(self, x_N: Tensor, values: Parts, clients: int) -> tuple[Tensor, Any]:
        layer = self.layer
        x = x_N.detach().requires_grad_(self.wanted)
        with torch.enable_grad():
            if isinstance(layer, nn.LayerNorm):
                normal = F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)
            else:
                normal = F.group_norm(x, layer.num_groups, None, None, layer.eps)
        y = normal.detach()
        scale, shift = (None if value is None else self._spread(value, y, clients) for value in values)
        if scale is not None:
            split = y.view(clients, -1, *normal.shape[1:])
            y = (split * scale if shift is None else torch.addcmul(shift, split, scale)).flatten(0, 1)
        return y, (x, normal, scale)

    def backward(self, gradient_N: Tensor, saved: Any, values: Parts, found: Parts) -> Tensor | None:
        x, normal, scale = saved
        if scale is not None:
            clients = len(scale)
            over = [
                dim for dim in range(1, scale.dim()) if scale.shape[dim] == 1 and dim not in self._own(scale)
            ]
            gradient = gradient_N.view(clients, -1, *normal.shape[1:])
            if found[0] is not None:
                products = gradient * normal.detach().view(clients, -1, *normal.shape[1:])
                found[0].copy_(products.sum(over).view(found[0].shape))
            if found[1] is not None:
                found[1].copy_(gradient.sum(over).view(found[1].shape))
            gradient_N = (gradient * scale).flatten(0, 1)
        return torch.autograd.grad(normal, x, gradient_N)[0] if self.wanted else None

    def _own(self, scale: Tensor) -> range:
        """The dimensions of [P, B, ...] along which a scale has entries of its own."""
        if isinstance(self.layer, nn.GroupNorm):
            return range(2, 3)
        return range(scale.dim() - len(self.layer.normalized_shape), scale.dim())

    def _spread(self, value: Tensor, x_N: Tensor, clients: int) -> Tensor:
        dims = x_N.dim() + 1
        if isinstance(self.layer, nn.GroupNorm):
            return value.reshape(clients, 1, -1, *[1] * (dims - 3))
        return value.reshape(clients, *[1] * (dims - value.dim()), *value.shape[1:])


@dataclass(frozen=True)
class Activation:
    """A function whose derivative follows from its value."""

    value: Callable[[Tensor], Tensor]
    value_: Callable[[Tensor], Tensor]  # in place
    backward: Callable[[Tensor, Tensor], Tensor]  # (gradient, output) -> gradient of the input


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu, torch.relu_, lambda g, y: aten.threshold_backward(g, y, 0)),
    nn.Tanh: Activation(torch.tanh, torch.tanh_, aten.tanh_backward),
    nn.Sigmoid: Activation(torch.sigmoid, torch.sigmoid_, aten.sigmoid_backward),
}


@dataclass(frozen=True, eq=False)
class ActivationRule(Rule):
    """The output is all that backward needs, so it may take the place of the input."""

    function: Activation
    in_place: bool

    def forward(self, x_N: Tensor, values: Parts, clients: int) -> tuple[Tensor, Any]:
        y = self.function.value_(x_N) if self.in_place else self.function.value(x_N)
        return y, y

    def backward(self, gradient_N: Tensor, saved: Any, values: Parts, found: Parts) -> Tensor | None:
        return self.function.backward(gradient_N, saved) if self.wanted else None


@dataclass(frozen=True, eq=False)
class ShapeRule(Rule):
    """Layers that only change the shape."""

    layer: nn.Flatten | nn.Unflatten | nn.Identity

    def forward(self, x_N: Tensor, values: Parts, clients: int) -> tuple[Tensor, Any]:
        return self.layer(x_N), x_N.shape

    def backward(self, gradient_N: Tensor, saved: Any, values: Parts, found: Parts) -> Tensor | None:
        return gradient_N.reshape(saved)


@dataclass(frozen=True, eq=False)
class AutogradRule(Rule):
    """Any layer without parameters that treats every example alike: autograd on that layer alone."""

    layer: nn.Module

    def forward(self, x_N: Tensor, values: Parts, clients: int) -> tuple[Tensor, Any]:
        x = x_N.detach().requires_grad_(self.wanted)
        with torch.enable_grad():
            # A layer that works in place must not write over what the layer before it has saved.
            y = self.layer(x.clone() if getattr(self.layer, "inplace", False) else x)
        return y.detach(), (x, y)

    def backward(self, gradient_N: Tensor, saved: Any, values: Parts, found: Parts) -> Tensor | None:
        x, y = saved
        return torch.autograd.grad(y, x, gradient_N)[0] if self.wanted else None


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))
