"""Parameters added to, multiplied with, or expanded to a batch: scales, shifts, positions, class tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sordino.gradients.capture import Capture, Layout, rule_for
from sordino.gradients.factors import Dense


def per_example(values: Tensor, capture: Capture, layout: Layout, core: tuple[int, ...]) -> Dense:
    """``values`` summed to one ``core``-shaped gradient per example."""
    lead = values.dim() - len(core)
    summed = layout.split(values, capture.batch, lead)
    summed = summed.sum(1) if summed.shape[1] > 1 else summed[:, 0]
    ones = [i + 1 for i, size in enumerate(core) if size == 1 and summed.shape[i + 1] > 1]
    return Dense((summed.sum(ones) if ones else summed).reshape(capture.batch, -1))


def _core(parameter: Tensor) -> tuple[int, ...]:
    """The parameter's shape without leading ones."""
    core = list(parameter.shape)
    while core and core[0] == 1:
        core.pop(0)
    return tuple(core)


def _carrier(capture: Capture, input: Any, other: Any) -> tuple[Tensor, Tensor, int, Layout] | None:
    """(x, parameter, its number, layout) if one of the two is a parameter that broadcasts over the other's rows."""
    if not (isinstance(input, Tensor) and isinstance(other, Tensor)):
        return None
    x, parameter = (input, other) if capture.tracks(input) is None else (other, input)
    index, core = capture.tracks(parameter), _core(parameter)
    if index is None or capture.tracks(x) is not None:
        return None
    # The result must have x's shape: x is what carries the examples.
    if len(core) >= x.dim() or torch.broadcast_shapes(x.shape, core) != x.shape:
        return None
    layout = capture.layout(index, x.shape[: x.dim() - len(core)])
    return None if layout is None else (x, parameter, index, layout)


@rule_for(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply)
def multiply(capture: Capture, input: Any, other: Any) -> Any:
    found = _carrier(capture, input, other)
    if found is None:
        return NotImplemented
    x, parameter, index, layout = found
    held, core = x.detach(), _core(parameter)

    def contribute(grad: Tensor) -> None:
        # A parameter with more dimensions than x only adds leading ones to the result.
        capture.record(index, per_example(grad.view(held.shape) * held, capture, layout, core))

    return capture.watch(x * parameter, contribute, held)


@rule_for(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def add(capture: Capture, input: Any, other: Any, **kwargs: Any) -> Any:
    found = None if kwargs else _carrier(capture, input, other)
    if found is None:
        return NotImplemented
    x, parameter, index, layout = found
    shape, core = x.shape, _core(parameter)

    def contribute(grad: Tensor) -> None:
        capture.record(index, per_example(grad.view(shape), capture, layout, core))

    return capture.watch(x + parameter, contribute)


@rule_for(Tensor.expand)
def expand(capture: Capture, input: Tensor, *sizes: Any) -> Any:
    index, core = capture.tracks(input), _core(input)
    output = input.expand(*sizes)
    lead = output.shape[: output.dim() - len(core)]
    layout = capture.layout(index, lead) if index is not None and lead else None
    if layout is None:
        return NotImplemented

    def contribute(grad: Tensor) -> None:
        assert index is not None
        capture.record(index, per_example(grad, capture, layout, core))

    return capture.watch(output, contribute)
