"""Multi-head attention projects by linear layers, some of them on blocks of rows of one weight."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn.core.clipping.capture import Capture
from privlearn.core.clipping.operations.elementwise import copied
from privlearn.core.clipping.operations.linear import projected


def attention(
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
    """`torch.nn.functional.multi_head_attention_forward`."""
    weights = [in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, out_proj_weight]
    if not (
        capture.trains(*weights, in_proj_bias, out_proj_bias, bias_k)
        and capture.knows(*weights, in_proj_bias)
    ):
        return NotImplemented
    if (
        query.dim() != 3
        or query.shape[-1] != embed_dim_to_check
        or static_k is not None
        or static_v is not None
    ):
        return NotImplemented

    apart = weights[1:4] if use_separate_proj_weight else None
    q, k, v = _projections(capture, (query, key, value), in_proj_weight, apart, in_proj_bias)
    mask = _mask(q, num_heads, attn_mask, key_padding_mask)
    if bias_k is not None and bias_v is not None:
        k, v, mask = (
            *(torch.cat([t, copied(capture, b, len(t))], 1) for t, b in ((k, bias_k), (v, bias_v))),
            _wider(mask),
        )
    if add_zero_attn:
        k, v, mask = *(F.pad(t, (0, 0, 0, 1)) for t in (k, v)), _wider(mask)
    # Each (batch, heads, positions, width).
    q, k, v = (t.reshape(*t.shape[:2], num_heads, -1).transpose(1, 2) for t in (q, k, v))
    dropout = dropout_p if training else 0.0
    seen: Tensor | None = None
    if need_weights:
        out, seen = _attend(q, k, v, mask, dropout)
        seen = seen.mean(1) if average_attn_weights else seen
    else:
        alone = is_causal and key_padding_mask is None
        out = F.scaled_dot_product_attention(q, k, v, None if alone else mask, dropout, alone)
    out = projected(capture, out.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return out.transpose(0, 1), seen


def _projections(
    capture: Capture,
    inputs: tuple[Tensor, Tensor, Tensor],
    weight: Tensor | None,
    apart: list[Tensor | None] | None,
    bias: Tensor | None,
) -> tuple[Tensor, ...]:
    """Queries, keys and values: by weights of their own (`apart`), or by blocks of one, at once for
    equal inputs.
    """
    query, key, value = inputs
    width = query.shape[2]
    blocks = [slice(n * width, (n + 1) * width) for n in range(3)]
    if apart is not None:
        parts = zip(inputs, apart, blocks, strict=True)
        return tuple(_first(capture, x, w, bias, None, block) for x, w, block in parts)
    if query is key and key is value:
        return _first(capture, query, weight, bias).chunk(3, 2)
    if key is value:
        both = _first(capture, key, weight, bias, slice(width, 3 * width)).chunk(2, 2)
        return _first(capture, query, weight, bias, blocks[0]), *both
    return tuple(
        _first(capture, x, weight, bias, block) for x, block in zip(inputs, blocks, strict=True)
    )


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """Values by attention weights, and these."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
    return weights @ v, weights


def _first(
    capture: Capture,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rows: slice | None = None,
    bias_rows: slice | None = None,
) -> Tensor:
    """A projection, with the batch moved to the front."""
    assert weight is not None
    return projected(capture, x.transpose(0, 1), weight, bias, rows, bias_rows or rows)


def _wider(mask: Tensor | None) -> Tensor | None:
    """The mask with one more key, which is seen."""
    return None if mask is None else F.pad(mask, (0, 1))


def _mask(q: Tensor, heads: int, mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
    """Both masks as one that is added to the scores, or None."""
    if mask is not None:
        mask = _additive(mask, q.dtype)
        mask = mask.view(len(q), heads, *mask.shape[1:]) if mask.dim() == 3 else mask
    if padding is None:
        return mask
    padded = _additive(padding, q.dtype)[:, None, None]
    return padded if mask is None else mask + padded


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
