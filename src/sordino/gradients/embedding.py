"""Embeddings: a look-up whose gradient touches few rows."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.capture import Capture, rule_for
from sordino.gradients.factors import Rows


@rule_for(F.embedding)
def embedding(
    capture: Capture,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    index = capture.tracks(weight)
    # max_norm writes to the weight in the forward pass and scale_grad_by_freq mixes examples: refuse() has
    # already turned such modules away.
    if index is None or max_norm is not None or scale_grad_by_freq:
        return NotImplemented
    layout = capture.layout(index, input.shape)
    if layout is None:
        return NotImplemented
    padding = None if padding_idx is None else padding_idx % weight.shape[0]

    def contribute(grad: Tensor) -> None:
        if padding is not None:
            grad = grad.masked_fill((input == padding)[..., None], 0.0)
        tokens_BT = layout.split(input, capture.batch, input.dim()).long()
        grads_BTd = layout.split(grad, capture.batch, input.dim())
        capture.record(index, Rows(tokens_BT, grads_BTd, weight.shape[0]))

    return capture.watch(F.embedding(input, weight, padding_idx), contribute, input)
