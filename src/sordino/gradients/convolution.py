"""Convolutions and transposed convolutions of one to three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.capture import Capture, Layout, rule_for
from sordino.gradients.factors import Dense, Factor, Outer, gram_is_cheaper


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
    padding: tuple[Sequence[int], Sequence[int]],
    dilation: Sequence[int],
    output: torch.Size,
) -> Tensor:
    """The patches of ``x`` [N, C, ...] that meet each of ``output`` positions: [N, C * kernel, positions]."""
    rows, channels = x.shape[:2]
    before, after = padding
    padded_at_all = any(before) or any(after)
    pointwise = all(k == 1 for k in kernel) and all(s == 1 for s in stride) and not padded_at_all
    if pointwise and x.shape[2:] == output:  # a transposed convolution's output may have been padded
        return x.flatten(2)
    sides = [n for sides in zip(reversed(before), reversed(after), strict=True) for n in sides]
    padded = F.pad(x, sides) if padded_at_all else x.contiguous()
    # A strided view copied by one parallel kernel is three to five times as fast as im2col (F.unfold).
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


def _watch_convolution(
    capture: Capture,
    function: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    arguments: tuple[Any, ...],
) -> Any:
    dims = weight.dim() - 2
    weight_index, bias_index = capture.tracks(weight), capture.tracks(bias)
    index = weight_index if weight_index is not None else bias_index
    if index is None or capture.tracks(x) is not None or x.dim() != dims + 2:
        return NotImplemented
    layout = capture.layout(index, x.shape[:1])
    if layout is None:
        return NotImplemented
    kernel, stride, dilation = weight.shape[2:], _per_dim(stride, dims), _per_dim(dilation, dims)
    before, after = _padding(padding, kernel, dilation)
    groups = arguments[3]
    held = x.detach()

    def contribute(grad: Tensor) -> None:
        if weight_index is not None:
            # The transposed convolution is the adjoint: input and output gradient change places.
            unfolded, other = (grad, held) if transposed else (held, grad)
            columns = unfold(unfolded, kernel, stride, (before, after), dilation, other.shape[2:])
            capture.unfolded_bytes = max(capture.unfolded_bytes, columns.numel() * columns.element_size())
            capture.record(weight_index, _factor(columns, other.flatten(2), groups, capture.batch, layout))
        if bias_index is not None:
            per_row = layout.split(grad.flatten(2).sum(2), capture.batch, 1)
            capture.record(bias_index, Dense(per_row.sum(1)))

    return capture.watch(function(x, weight, bias, *arguments), contribute, held)


def _per_dim(value: Any, dims: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _padding(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding before and after each dimension."""
    if padding == "valid":
        return [0] * len(kernel), [0] * len(kernel)
    if padding == "same":  # the total may be odd, then the end gets one more
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [t // 2 for t in totals], [t - t // 2 for t in totals]
    both = _per_dim(padding, len(kernel))
    return both, both


def _convolution(function: Any) -> None:
    @rule_for(function)
    def rule(
        capture: Capture,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        arguments = (stride, padding, dilation, groups)
        return _watch_convolution(
            capture, function, input, weight, bias, stride, padding, dilation, False, arguments
        )


def _transposed_convolution(function: Any) -> None:
    @rule_for(function)
    def rule(
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
        arguments = (stride, padding, output_padding, groups, dilation)
        return _watch_convolution(
            capture, function, input, weight, bias, stride, padding, dilation, True, arguments
        )


_convolution(torch.conv1d)
_convolution(torch.conv2d)
_convolution(torch.conv3d)
_transposed_convolution(torch.conv_transpose1d)
_transposed_convolution(torch.conv_transpose2d)
_transposed_convolution(torch.conv_transpose3d)
