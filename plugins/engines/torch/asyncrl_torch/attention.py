"""Attention of one new token a row on a CPU: two batched matrix products, which beat torch's fused kernel there (by a third in a batch of
64 short rows, where that kernel handles row by row). Everything else goes to the fused kernel as before.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "asyncrl_decode"


def decode_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from float[rows, heads, new, size] to float[rows, key heads, length, size]; returns float[rows, new, heads, size]."""
    rows, heads, new, size = query.shape
    _, shared, length, _ = key.shape
    plain = new == 1 and key.device.type == "cpu" and attention_mask is not None and not kwargs.get("output_attentions")
    if not plain or kwargs.get("position_bias") is not None or attention_mask.shape[1] != 1 or not _is_view(key, value):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    many = rows * shared
    scores = torch.bmm(query.reshape(many, heads // shared, size), key.flatten(0, 1).transpose(1, 2))
    scores = scores.mul_(size**-0.5 if scaling is None else scaling).view(rows, shared, -1, length).add_(attention_mask)
    weights = torch.softmax(scores, dim=-1).view(many, -1, length)
    return torch.bmm(weights, value.flatten(0, 1)).view(rows, 1, heads, value.shape[-1]), None


def _is_view(key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether rows and heads can be joined without a copy."""
    return all(each.stride(0) == each.stride(1) * each.shape[1] for each in (key, value))


def use_decode_attention(model: Any) -> None:
    """Let a float32 model that uses torch's fused kernel use this attention."""
    if model.dtype != torch.float32 or model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, decode_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
