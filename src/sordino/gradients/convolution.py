"""Convolutions and transposed convolutions of one to three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.capture import Capture, Layout, detached, rule_for
from sordino.gradients.factors import Dense, Factor, Outer, gram_is_cheaper


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: tuple[list[int], list[int], list[int], bool, list[int], int],
        capture: Capture,
        weight_index: int | None,
        bias_index: int | None,
        layout: Layout,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        ctx.use = capture, weight_index, bias_index, layout
        return torch.convolution(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = detached(ctx)
        stride, padding, dilation, transposed, output_padding, groups = ctx.geometry
        capture, weight_index, bias_index, layout = ctx.use
        (grad,) = grads
        if weight_index is not None:
            # The transposed convolution is the adjoint: input and output gradient change places.
            unfolded, other = (grad, x) if transposed else (x, grad)
            columns = unfold(
                unfolded, weight.shape[2:], stride, padding, dilation, other.shape[2:]
            )  # [N, C_in k, L]
            capture.unfolded_bytes = max(capture.unfolded_bytes, columns.numel() * columns.element_size())
            capture.record(weight_index, _factor(columns, other.flatten(2), groups, capture.batch, layout))
        if bias_index is not None:
            per_row = layout.split(grad.flatten(2).sum(2), capture.batch, 1)
            capture.record(bias_index, Dense(per_row.sum(1)))
        grad_x = None
        if ctx.needs_input_grad[1]:
            grad_x = torch.ops.aten.convolution_backward(
                grad,
                x,
                weight,
                None,
                stride,
                padding,
                dilation,
                transposed,
                output_padding,
                groups,
                [True, False, False],
            )[0]
        return None, grad_x, *[None] * 7


def _factor(columns: Tensor, other: Tensor, groups: int, batch: int, layout: Layout) -> Factor:
    """The weight gradient sum_l other_l columns_l', block-diagonal over groups, as the cheaper factor."""
    rows, width, positions = columns.shape
    height = other.shape[1]
    if groups == 1:
        if layout.fold == 1 and not gram_is_cheaper(positions, width, height):
            return Dense(torch.bmm(other, columns.mT).flatten(1))
        return Outer(
            layout.split(columns.mT, batch, 1).flatten(1, 2), layout.split(other.mT, batch, 1).flatten(1, 2)
        )
    blocks = torch.matmul(
        other.view(rows, groups, height // groups, positions),
        columns.view(rows, groups, width // groups, positions).mT,
    )
    return Dense(layout.split(blocks.flatten(1), batch, 1).sum(1))


def unfold(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output: Sequence[int],
) -> Tensor:
    """The patches of ``x`` [N, C, ...] that meet each of ``output`` positions: [N, C * kernel, positions]."""
    rows, channels = x.shape[:2]
    if all(k == 1 for k in kernel) and all(s == 1 for s in stride) and not any(padding):
        return x.flatten(2)
    # A strided view copied by one parallel kernel is three to five times as fast as im2col (F.unfold).
    padded = F.pad(x, [n for p in reversed(padding) for n in (p, p)]) if any(padding) else x.contiguous()
    strides = padded.stride()
    windows = padded.as_strided(
        (rows, channels, *kernel, *output),
        (
            strides[0],
            strides[1],
            *(st * d for st, d in zip(strides[2:], dilation, strict=True)),
            *(st * s for st, s in zip(strides[2:], stride, strict=True)),
        ),
    )
    return windows.reshape(rows, channels * _product(kernel), _product(output))


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _tuple(value: Any, dims: int) -> list[int]:
    if isinstance(value, int):
        return [value] * dims
    values = list(value)
    return values * dims if len(values) == 1 else values


def _convolve(
    capture: Capture,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    dims = weight.dim() - 2
    weight_index, bias_index = capture.tracks(weight), capture.tracks(bias)
    index = weight_index if weight_index is not None else bias_index
    if index is None or capture.tracks(x) is not None or x.dim() != dims + 2:
        return NotImplemented
    if weight_index is None and weight.requires_grad:
        return NotImplemented
    stride, dilation = _tuple(stride, dims), _tuple(dilation, dims)
    if isinstance(padding, str):
        if padding == "valid":
            padding = [0] * dims
        else:  # "same": the total may be odd, then the end gets one more
            totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
            x = (
                F.pad(x, [n for t in reversed(totals) for n in (0, t % 2)])
                if any(t % 2 for t in totals)
                else x
            )
            padding = [t // 2 for t in totals]
    else:
        padding = _tuple(padding, dims)
    layout = capture.layout(index, x.shape[:1])
    if layout is None:
        return NotImplemented
    geometry = (stride, padding, dilation, transposed, _tuple(output_padding, dims), groups)
    return _Convolution.apply(
        capture.anchor, x, weight, bias, geometry, capture, weight_index, bias_index, layout
    )


@rule_for(torch.conv1d, torch.conv2d, torch.conv3d, F.conv1d, F.conv2d, F.conv3d)
def convolution(
    capture: Capture,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    return _convolve(capture, input, weight, bias, stride, padding, dilation, False, 0, groups)


@rule_for(
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
)
def transposed_convolution(
    capture: Capture,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    return _convolve(capture, input, weight, bias, stride, padding, dilation, True, output_padding, groups)
