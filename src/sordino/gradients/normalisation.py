"""LayerNorm, RMSNorm, GroupNorm, InstanceNorm: normalise without the parameters, then scale and shift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.broadcast import scale, shift
from sordino.gradients.capture import Capture, rule_for


def _affine(
    capture: Capture, x: Tensor, weight: Tensor | None, bias: Tensor | None, core: tuple[int, ...]
) -> Any:
    if weight is not None:
        x = scale(capture, x, weight, core) if capture.tracks(weight) is not None else x * weight.view(core)
        if x is NotImplemented:
            return NotImplemented
    if bias is not None:
        return shift(capture, x, bias, core) if capture.tracks(bias) is not None else x + bias.view(core)
    return x


@rule_for(F.layer_norm)
def layer_norm(
    capture: Capture,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if capture.tracks(input) is not None:  # a derived parameter, not a batch
        return NotImplemented
    return _affine(
        capture, F.layer_norm(input, list(normalized_shape), eps=eps), weight, bias, tuple(normalized_shape)
    )


@rule_for(F.rms_norm)
def rms_norm(
    capture: Capture,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if capture.tracks(input) is not None:  # a derived parameter, not a batch
        return NotImplemented
    return _affine(
        capture, F.rms_norm(input, list(normalized_shape), eps=eps), weight, None, tuple(normalized_shape)
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
    return _affine(capture, F.group_norm(input, num_groups, eps=eps), weight, bias, _channels(input))


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
    normalised = torch.instance_norm(
        input,
        None,
        None,
        running_mean,
        running_var,
        use_input_stats,
        momentum,
        eps,
        torch.backends.cudnn.enabled,
    )
    return _affine(capture, normalised, weight, bias, _channels(input))


def _channels(x: Tensor) -> tuple[int, ...]:
    return (x.shape[1], *[1] * (x.dim() - 2))
