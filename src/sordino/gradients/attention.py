"""``nn.MultiheadAttention``, written out so that its projections go through the linear rule."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.capture import Capture, rule_for


@rule_for(F.multi_head_attention_forward)
def multi_head_attention(
    capture: Capture,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    if query.dim() != 3 or static_k is not None or static_v is not None:
        return NotImplemented
    length, batch, width = query.shape
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = _projected(capture, (query, key, value), in_proj_weight, in_proj_bias, separate)
    mask, padding = _additive(attn_mask, q), _additive(key_padding_mask, q)
    if mask is not None and mask.dim() == 3:
        mask = mask.view(batch, num_heads, length, -1)
    if is_causal and mask is None:
        return NotImplemented
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, capture.call(Tensor.expand, bias_k, -1, batch, -1)])
        v = torch.cat([v, capture.call(Tensor.expand, bias_v, -1, batch, -1)])
        mask, padding = _one_more(mask), _one_more(padding)
    heads = (num_heads, width // num_heads)
    q, k, v = (x.unflatten(-1, heads).permute(1, 2, 0, 3) for x in (q, k, v))  # [B, heads, T, head]
    if add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(batch, num_heads, 1, heads[1])], 2) for x in (k, v))
        mask, padding = _one_more(mask), _one_more(padding)
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    mixed, attention = _mixed(q, k, v, mask, dropout_p if training else 0.0, need_weights)
    output = capture.call(F.linear, mixed.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    return output, attention.mean(1) if attention is not None and average_attn_weights else attention


def _projected(
    capture: Capture,
    inputs: tuple[Tensor, Tensor, Tensor],
    packed: Tensor | None,
    bias: Tensor | None,
    separate: tuple[Tensor | None, ...] | None,
) -> tuple[Tensor, ...]:
    """Queries, keys and values [T, B, width]: by weights of their own, or by the parts of a packed one."""
    query, key, value = inputs
    width = query.shape[-1]
    if separate is not None:
        biases = bias.chunk(3) if bias is not None else (None, None, None)
        return tuple(
            _add(capture, capture.call(F.linear, x, w, None), bias, b, i * width)
            for i, (x, w, b) in enumerate(zip(inputs, separate, biases, strict=True))
        )
    if query is key and key is value:
        parts: tuple[Tensor, ...] = capture.call(F.linear, query, packed, bias).chunk(3, -1)
        return parts
    # The packed weight is one parameter: apply the whole of it to each input and keep the part that counts.
    return tuple(
        capture.call(F.linear, x, packed, bias)[..., i * width : (i + 1) * width]
        for i, x in enumerate(inputs)
    )


def _mixed(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Values by attention [B, heads, T, head], and the attention if it is needed."""
    if not need_weights:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout), None
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    attention = torch.softmax(scores if mask is None else scores + mask, -1)
    if dropout:
        attention = F.dropout(attention, dropout, True)
    return attention @ v, attention


def _add(capture: Capture, x: Tensor, whole: Tensor | None, part: Tensor | None, start: int) -> Tensor:
    """``x`` plus a slice of the packed bias, through the shift rule by padding ``x`` to the bias's width."""
    if whole is None or part is None:
        return x
    if capture.tracks(whole) is None:
        return x + part
    padded = F.pad(x, (start, whole.numel() - start - x.shape[-1]))
    shifted: Tensor = capture.call(torch.add, padded, whole)
    return shifted[..., start : start + x.shape[-1]]


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(mask, float("-inf"))


def _one_more(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else F.pad(mask, (0, 1))
