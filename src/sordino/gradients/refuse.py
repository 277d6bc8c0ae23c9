"""Layers that mix examples: found before any data is touched, and replaced on request."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sordino.registry import said


class Unsuitable(ValueError):
    """The model cannot be trained privately as it is; the message says what to change."""


def refuse(model: nn.Module) -> None:
    """Raise ValueError, naming module and remedy, if a layer mixes examples while training."""
    if not isinstance(model, nn.Module):
        called = ", which has to be called" if isinstance(model, type) else ""
        raise Unsuitable(
            f"the model must be a torch.nn.Module such as nn.Linear(10, 2), not {said(model)}{called}"
        )
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, _BatchNorm):
            if module.training or not module.track_running_stats:
                raise Unsuitable(
                    f"{where} mixes the examples of a batch, so no example's influence is bounded: use "
                    "sordino.replace_batchnorm(model), which puts GroupNorm in its place"
                )
        elif isinstance(module, _InstanceNorm):
            if module.track_running_stats:
                raise Unsuitable(
                    f"{where} keeps running statistics of private data: set track_running_stats=False"
                )
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            if module.max_norm is not None:
                raise Unsuitable(f"{where} rewrites its weights in the forward pass: set max_norm=None")
            if module.scale_grad_by_freq:
                raise Unsuitable(f"{where} scales by counts over the batch: set scale_grad_by_freq=False")


def replace_batchnorm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Put GroupNorm in the place of every BatchNorm, in place, and return the model.

    Batch normalisation mixes the examples of a batch, so that no example's influence is bounded: the gate
    refuses it. Scale and shift are kept.

    Args:
        model: Any module; one that is a BatchNorm itself comes back as another.
        groups: As many groups at most, of at least four channels each, or one group.

    >>> replace_batchnorm(nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16)))[1].num_groups
    4
    """
    if isinstance(model, _BatchNorm):
        return _group_norm(model, groups)
    for name, child in list(model._modules.items()):  # named_children() would skip a layer's second name
        if child is not None:
            setattr(model, name, replace_batchnorm(child, groups))
    return model


def _group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    # Groups of one channel would turn plain feature vectors into zeros.
    count = max(g for g in range(1, max(1, min(groups, channels // 4)) + 1) if channels % g == 0)
    replacement = nn.GroupNorm(count, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        # The parameters move over as they are, so that tied or frozen ones stay tied or frozen.
        replacement.weight, replacement.bias = norm.weight, norm.bias
    return replacement
