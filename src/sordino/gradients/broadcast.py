"""Parameters added to, multiplied with, or expanded to a batch: scales, shifts, positions, class tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sordino.gradients.capture import Capture, Layout, detached, rule_for
from sordino.gradients.factors import Dense


def _per_example(values: Tensor, capture: Capture, layout: Layout, core: tuple[int, ...]) -> Tensor:
    """``values`` summed to one ``core``-shaped gradient per example, flattened to [B, size]."""
    lead = values.dim() - len(core)
    summed = layout.split(values, capture.batch, lead)
    summed = summed.sum(1) if summed.shape[1] > 1 else summed[:, 0]
    ones = [i + 1 for i, size in enumerate(core) if size == 1 and summed.shape[i + 1] > 1]
    return (summed.sum(ones) if ones else summed).reshape(capture.batch, -1)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, scale: Tensor, capture: Capture, index: int, layout: Layout
    ) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.use = capture, index, layout
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, scale = detached(ctx)
        capture, index, layout = ctx.use
        (grad,) = grads
        capture.record(index, Dense(_per_example(grad * x, capture, layout, tuple(scale.shape))))
        return None, (grad * scale if ctx.needs_input_grad[1] else None), None, None, None, None


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, shift: Tensor, capture: Capture, index: int, layout: Layout
    ) -> Tensor:
        ctx.use = capture, index, layout, tuple(shift.shape)
        return x + shift

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        capture, index, layout, core = ctx.use
        (grad,) = grads
        capture.record(index, Dense(_per_example(grad, capture, layout, core)))
        return None, (grad if ctx.needs_input_grad[1] else None), None, None, None, None


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, shape: torch.Size, capture: Capture, index: int, layout: Layout
    ) -> Tensor:
        ctx.use = capture, index, layout, tuple(x.shape)
        return x.expand(shape).clone()  # a copy, so that in-place operations may follow

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        capture, index, layout, core = ctx.use
        (grad,) = grads
        capture.record(index, Dense(_per_example(grad, capture, layout, core)))
        return None, None, None, None, None, None


def scale(capture: Capture, x: Tensor, parameter: Tensor, core: tuple[int, ...]) -> Any:
    """``x * parameter`` where the parameter, seen in shape ``core``, broadcasts over the examples."""
    return _broadcast(_Scale, capture, x, parameter, core)


def shift(capture: Capture, x: Tensor, parameter: Tensor, core: tuple[int, ...]) -> Any:
    """``x + parameter``, likewise."""
    return _broadcast(_Shift, capture, x, parameter, core)


def _broadcast(
    function: type[torch.autograd.Function],
    capture: Capture,
    x: Tensor,
    parameter: Tensor,
    core: tuple[int, ...],
) -> Any:
    index = capture.tracks(parameter)
    assert index is not None
    # The result must have x's shape: x is what carries the examples.
    if len(core) >= x.dim() or torch.broadcast_shapes(x.shape, core) != x.shape:
        return NotImplemented
    layout = capture.layout(index, x.shape[: x.dim() - len(core)])
    if layout is None:
        return NotImplemented
    with torch.no_grad():
        view = parameter.view(core)
    return function.apply(capture.anchor, x, view, capture, index, layout)


def _core(parameter: Tensor) -> tuple[int, ...]:
    core = list(parameter.shape)
    while core and core[0] == 1:
        core.pop(0)
    return tuple(core)


@rule_for(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply)
def multiply(capture: Capture, input: Any, other: Any) -> Any:
    if isinstance(input, Tensor) and isinstance(other, Tensor):
        if capture.tracks(other) is not None and capture.tracks(input) is None:
            return scale(capture, input, other, _core(other))
        if capture.tracks(input) is not None and capture.tracks(other) is None:
            return scale(capture, other, input, _core(input))
    return NotImplemented


@rule_for(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def add(capture: Capture, input: Any, other: Any, **kwargs: Any) -> Any:
    if isinstance(input, Tensor) and isinstance(other, Tensor) and not kwargs:
        if capture.tracks(other) is not None and capture.tracks(input) is None:
            return shift(capture, input, other, _core(other))
        if capture.tracks(input) is not None and capture.tracks(other) is None:
            return shift(capture, other, input, _core(input))
    return NotImplemented


@rule_for(Tensor.expand)
def expand(capture: Capture, input: Tensor, *sizes: Any) -> Any:
    index = capture.tracks(input)
    shape = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if index is None:
        return NotImplemented
    core = _core(input)
    result = torch.Size(input.detach().expand(*shape).shape)
    lead = result[: len(result) - len(core)]
    layout = capture.layout(index, lead) if lead else None
    if layout is None:
        return NotImplemented
    with torch.no_grad():
        view = input.view(core)
    return _Expand.apply(capture.anchor, view, result, capture, index, layout)
