"""The gradients of weighted losses with respect to a model's outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> one value per example


class OutputGradients:
    """d/d outputs of sum_n weights[n] loss(outputs, targets)[n]."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._is_cross_entropy = (
            type(loss) is nn.CrossEntropyLoss
            and loss.reduction == "none"
            and loss.weight is None
            and loss.label_smoothing == 0
            and loss.ignore_index < 0
            and not (loss._forward_hooks or loss._forward_pre_hooks)
        )

    def __call__(self, outputs_N: Tensor, targets_N: Tensor, weights_N: Tensor) -> Tensor:
        classes = outputs_N.dim() == 2 and targets_N.dim() == 1 and targets_N.dtype == torch.int64
        # Whatever the targets are: no client may decide how others are computed.
        if self._is_cross_entropy and classes:
            left_out = targets_N == self.loss.ignore_index  # type: ignore[attr-defined]
            targets_N, weights_N = targets_N.masked_fill(left_out, 0), weights_N.masked_fill(left_out, 0.0)
            return _cross_entropy_gradients(outputs_N, targets_N, weights_N)
        outputs = outputs_N.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.loss(outputs, targets_N)
        if losses.shape != weights_N.shape:
            raise ValueError(
                f"the loss must give one value per example, not a tensor of shape {tuple(losses.shape)}: use "
                "reduction='none'"
            )
        with torch.enable_grad():
            total = (losses * weights_N).sum()  # and no `grad_outputs`, for which torch imports sympy
        return torch.autograd.grad(total, outputs)[0]


def _cross_entropy_gradients(outputs_N: Tensor, targets_N: Tensor, weights_N: Tensor) -> Tensor:
    """weight * (softmax - one-hot)."""
    gradients = outputs_N.softmax(1)
    gradients.scatter_add_(1, targets_N[:, None], gradients.new_full((1, 1), -1.0).expand(len(targets_N), 1))
    return gradients.mul_(weights_N[:, None])
