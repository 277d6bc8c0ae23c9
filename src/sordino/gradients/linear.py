"""Linear maps: ``F.linear``, and matrix products with a parameter on the right."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.capture import Capture, Layout, rule_for
from sordino.gradients.factors import Dense, Outer, Product


@rule_for(F.linear)
def linear(capture: Capture, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    weight_index, bias_index = capture.tracks(weight), capture.tracks(bias)
    index = weight_index if weight_index is not None else bias_index
    if index is None or capture.tracks(input) is not None or input.dim() < 2:
        return NotImplemented
    layout = capture.layout(index, input.shape[:-1])
    if layout is None:
        return NotImplemented
    x = input.detach()

    def contribute(grad: Tensor) -> None:
        factor = _factor(x, grad, capture, layout)
        if weight_index is not None:
            capture.record(weight_index, factor)
        if bias_index is not None:
            if isinstance(factor, Product):
                capture.record(bias_index, Dense(grad, product=factor))
            else:
                capture.record(bias_index, Dense(factor.grads_BTp.sum(1)))

    held = x if weight_index is not None else None
    return capture.watch(F.linear(input, weight, bias), contribute, held)


def _factor(inputs: Tensor, grads: Tensor, capture: Capture, layout: Layout) -> Product | Outer:
    """sum_t g_t a_t' for each example, from tensors whose last dimension alone is not leading."""
    lead = grads.dim() - 1
    if lead == 1 and layout.fold == 1:
        return Product(inputs, grads)
    return Outer(layout.split(inputs, capture.batch, lead), layout.split(grads, capture.batch, lead))


@rule_for(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matrix_product(capture: Capture, input: Tensor, other: Tensor) -> Any:
    """x @ weight, the transpose of the linear rule: the weight gradient is sum_t a_t g_t'."""
    index = capture.tracks(other)
    if index is None or capture.tracks(input) is not None or other.dim() != 2 or input.dim() < 2:
        return NotImplemented
    layout = capture.layout(index, input.shape[:-1])
    if layout is None:
        return NotImplemented
    x = input.detach()

    def contribute(grad: Tensor) -> None:
        capture.record(index, _factor(grad, x, capture, layout))

    return capture.watch(input @ other, contribute, x)
