"""LayerNorm, RMSNorm, GroupNorm, InstanceNorm: scale and shift see the normalised input, computed once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.broadcast import per_example
from sordino.gradients.capture import Capture, rule_for


def _normalise(
    capture: Capture,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    core: tuple[int, ...],
    normalise: Callable[[Tensor, Tensor | None, Tensor | None], Tensor],
) -> Any:
    """``normalise(x, weight, bias)``, whose parameters, seen in shape ``core``, act on the normalised input."""
    weight_index, bias_index = capture.tracks(weight), capture.tracks(bias)
    index = weight_index if weight_index is not None else bias_index
    if index is None or capture.tracks(x) is not None or x.dim() <= len(core):
        return NotImplemented
    layout = capture.layout(index, x.shape[: x.dim() - len(core)])
    if layout is None:
        return NotImplemented
    held = x.detach()

    def contribute(grad: Tensor) -> None:
        if weight_index is not None:
            normalised = normalise(held, None, None)
            capture.record(weight_index, per_example(grad * normalised, capture, layout, core))
        if bias_index is not None:
            capture.record(bias_index, per_example(grad, capture, layout, core))

    return capture.watch(normalise(x, weight, bias), contribute, held)


@rule_for(F.layer_norm)
def layer_norm(
    capture: Capture,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    shape = list(normalized_shape)
    return _normalise(
        capture, input, weight, bias, tuple(shape), lambda x, w, b: F.layer_norm(x, shape, w, b, eps)
    )


@rule_for(F.rms_norm)
def rms_norm(
    capture: Capture,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    shape = list(normalized_shape)
    return _normalise(
        capture, input, weight, None, tuple(shape), lambda x, w, b: F.rms_norm(x, shape, w, eps)
    )


@rule_for(F.group_norm)
def group_norm(
    capture: Capture,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    return _normalise(
        capture, input, weight, bias, _channels(input), lambda x, w, b: F.group_norm(x, num_groups, w, b, eps)
    )


@rule_for(F.instance_norm)
def instance_norm(
    capture: Capture,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if running_mean is not None:
        return NotImplemented
    cudnn = torch.backends.cudnn.enabled
    return _normalise(
        capture,
        input,
        weight,
        bias,
        _channels(input),
        lambda x, w, b: torch.instance_norm(x, w, b, None, None, True, momentum, eps, cudnn),
    )


def _channels(x: Tensor) -> tuple[int, ...]:
    return (x.shape[1], *[1] * (x.dim() - 2))
