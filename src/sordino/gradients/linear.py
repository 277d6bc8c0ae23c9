"""Linear maps: ``F.linear``, and matrix products with a parameter on the right."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.capture import Capture, Layout, detached, rule_for
from sordino.gradients.factors import Dense, Factor, Outer, Product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        capture: Capture,
        weight_index: int | None,
        bias_index: int | None,
        layout: Layout,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.use = capture, weight_index, bias_index, layout
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = detached(ctx)
        capture, weight_index, bias_index, layout = ctx.use
        (grad,) = grads
        if weight_index is not None:
            capture.record(weight_index, _factor(x, grad, capture, layout))
        if bias_index is not None:
            capture.record(bias_index, Dense(_sum_positions(grad, capture, layout)))
        grad_x = grad @ weight if ctx.needs_input_grad[1] else None
        return None, grad_x, None, None, None, None, None, None


def _factor(inputs: Tensor, grads: Tensor, capture: Capture, layout: Layout) -> Factor:
    """sum_t g_t a_t' for each example, from tensors whose last dimension alone is not leading."""
    lead = grads.dim() - 1
    if lead == 1 and layout.fold == 1:
        return Product(inputs, grads)
    return Outer(layout.split(inputs, capture.batch, lead), layout.split(grads, capture.batch, lead))


def _sum_positions(grads: Tensor, capture: Capture, layout: Layout) -> Tensor:
    lead = grads.dim() - 1
    return grads if lead == 1 and layout.fold == 1 else layout.split(grads, capture.batch, lead).sum(1)


@rule_for(F.linear)
def linear(capture: Capture, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if capture.tracks(input) is not None or input.dim() < 2:
        return NotImplemented
    weight_index, bias_index = capture.tracks(weight), capture.tracks(bias)
    if weight_index is not None:
        layout = capture.layout(weight_index, input.shape[:-1])
    else:
        assert bias_index is not None
        if weight.requires_grad:
            return NotImplemented
        layout = capture.layout(bias_index, input.shape[:-1])
    if layout is None:
        return NotImplemented
    return _Linear.apply(capture.anchor, input, weight, bias, capture, weight_index, bias_index, layout)


class _MatrixProduct(torch.autograd.Function):
    """x @ weight, the transpose of the linear rule: the weight gradient is sum_t a_t g_t'."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, capture: Capture, index: int, layout: Layout
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.use = capture, index, layout
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = detached(ctx)
        capture, index, layout = ctx.use
        (grad,) = grads
        capture.record(index, _factor(grad, x, capture, layout))
        return None, (grad @ weight.mT if ctx.needs_input_grad[1] else None), None, None, None, None


@rule_for(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matrix_product(capture: Capture, input: Tensor, other: Tensor) -> Any:
    index = capture.tracks(other)
    if index is None or capture.tracks(input) is not None or other.dim() != 2 or input.dim() < 2:
        return NotImplemented
    layout = capture.layout(index, input.shape[:-1])
    if layout is None:
        return NotImplemented
    return _MatrixProduct.apply(capture.anchor, input, other, capture, index, layout)
