"""Attention by torch's own fused kernels over paged KV.

A prefill chunk on a CPU is a causal part over the chunk and an unmasked one over each tile of the
prefix, merged by their log-sum-exps. All else gathers one layer's prefix. Refuses softcap, sinks,
and keys and values of different width: `choose` sends those to the reference.
"""

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from kvchat.attention.backend import LayerKV, Scoring
from kvchat.attention.reference import attend_dense, visible

_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def attend_cpu(query: Tensor, kv: LayerKV, scoring: Scoring) -> Tensor:
    """See `backend.Attend`; any float dtype, on a CPU."""
    if query.shape[2] == 1 or kv.window is not None:
        return _over_all(query, kv, scoring)
    return _prefill_cpu(query, kv, scoring.scale)


def _prefill_cpu(query: Tensor, kv: LayerKV, scale: float) -> Tensor:
    new_keys, new_values = kv.new
    first, total = _flash_cpu(
        query, new_keys.unsqueeze(0), new_values.unsqueeze(0), is_causal=True, scale=scale
    )
    out = first.float()  # in bf16 each of many tiles would round what is there so far
    for keys, values in kv.tiles():
        old, old_sum = _flash_cpu(query, keys.unsqueeze(0), values.unsqueeze(0), scale=scale)
        out.lerp_(old.float(), torch.sigmoid(old_sum - total).unsqueeze(-1))
        total = torch.logaddexp(total, old_sum)
    return out.to(query.dtype).transpose(1, 2)  # type: ignore[no-any-return]


def attend_sdpa(query: Tensor, kv: LayerKV, scoring: Scoring) -> Tensor:
    """See `backend.Attend`; any device. Gathers one layer, then calls the device's fused
    attention.
    """
    return _over_all(query, kv, scoring)


def _over_all(query: Tensor, kv: LayerKV, scoring: Scoring) -> Tensor:
    old_keys, old_values = kv.gathered()
    new_keys, new_values = kv.new
    keys = torch.cat([old_keys, new_keys], dim=1)
    values = torch.cat([old_values, new_values], dim=1)
    return attend_joined(query, keys, values, scoring, kv.window)


def attend_joined(
    query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring, window: int | None
) -> Tensor:
    """Causal attention over one layer's KV in one piece; the queries are its last positions.

    query [1, heads, C, D], keys [kv_heads, T, D], values [kv_heads, T, Dv] -> [1, C, heads, Dv].
    A sliding chunk needs a mask of chunk × (window + chunk), never wider; otherwise the mask is
    torch's lower-right bias, which the fused kernels of a GPU take without making a tensor of it.
    """
    if not scoring.is_plain:
        return attend_dense(query, keys, values, scoring, window)
    num_new, num_total = query.shape[2], keys.shape[1]
    mask: Tensor | None = None
    if window is not None and num_total > window:
        mask = visible(num_new, num_total, window, query.device)
    elif num_new > 1:
        mask = causal_lower_right(num_new, num_total)
    out = scaled_dot_product_attention(
        query,
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=mask,
        scale=scoring.scale,
        enable_gqa=query.shape[1] != keys.shape[0],
    )
    return out.transpose(1, 2)
