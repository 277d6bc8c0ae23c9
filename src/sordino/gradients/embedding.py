"""Embeddings: a look-up whose gradient touches few rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.capture import Capture, Layout, detached, rule_for
from sordino.gradients.factors import Rows


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        tokens: Tensor,
        weight: Tensor,
        padding_idx: int,
        capture: Capture,
        index: int,
        layout: Layout,
    ) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.use = capture, index, layout, padding_idx, weight.shape[0]
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (tokens,) = detached(ctx)
        capture, index, layout, padding_idx, rows = ctx.use
        (grad,) = grads
        if padding_idx >= 0:
            grad = grad.masked_fill((tokens == padding_idx)[..., None], 0.0)
        lead = tokens.dim()
        tokens_BT = layout.split(tokens, capture.batch, lead).long()
        capture.record(index, Rows(tokens_BT, layout.split(grad, capture.batch, lead), rows))
        return None, None, None, None, None, None, None


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
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return _Embedding.apply(capture.anchor, input, weight, padding, capture, index, layout)
