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
    head = width // num_heads
    if use_separate_proj_weight:
        biases = in_proj_bias.chunk(3) if in_proj_bias is not None else (None, None, None)
        q, k, v = (
            _add(capture, capture.call(F.linear, x, w, None), in_proj_bias, b, i * width)
            for i, (x, w, b) in enumerate(
                zip((query, key, value), (q_proj_weight, k_proj_weight, v_proj_weight), biases, strict=True)
            )
        )
    elif query is key and key is value:
        q, k, v = capture.call(F.linear, query, in_proj_weight, in_proj_bias).chunk(3, -1)
    else:
        # The packed weight is one parameter: apply the whole of it to each input and keep the part that counts.
        q, k, v = (
            capture.call(F.linear, x, in_proj_weight, in_proj_bias)[..., i * width : (i + 1) * width]
            for i, x in enumerate((query, key, value))
        )
    mask = _additive(attn_mask, q)
    if mask is not None and mask.dim() == 3:
        mask = mask.view(batch, num_heads, length, -1)
    if is_causal and mask is None:
        return NotImplemented
    padding = _additive(key_padding_mask, q)
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, capture.call(Tensor.expand, bias_k, -1, batch, -1)])
        v = torch.cat([v, capture.call(Tensor.expand, bias_v, -1, batch, -1)])
        mask, padding = _one_more(mask), _one_more(padding)
    q, k, v = (
        x.unflatten(-1, (num_heads, head)).permute(1, 2, 0, 3) for x in (q, k, v)
    )  # [B, heads, T, head]
    if add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(batch, num_heads, 1, head)], 2) for x in (k, v))
        mask, padding = _one_more(mask), _one_more(padding)
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    if not need_weights:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout_p if training else 0.0)
        return capture.call(
            F.linear, mixed.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias
        ), None
    scores = (q * head**-0.5) @ k.mT
    attention = torch.softmax(scores if mask is None else scores + mask, -1)
    if training and dropout_p:
        attention = F.dropout(attention, dropout_p, True)
    mixed = (attention @ v).permute(2, 0, 1, 3).flatten(2)  # [T, B, width]
    output = capture.call(F.linear, mixed, out_proj_weight, out_proj_bias)
    return output, attention.mean(1) if average_attn_weights else attention


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
