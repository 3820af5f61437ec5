"""Attention in plain torch, in fp32, as the formula says: the truth that every other backend is
held to.

Serves every feature: grouped queries, sliding windows, softcap (Gemma 2), sinks (gpt-oss). Slow and
clear.
"""

import torch
from torch import Tensor

from kvchat.attention.backend import LayerKV, Scoring


def attend(query: Tensor, kv: LayerKV, scoring: Scoring) -> Tensor:
    """See `backend.Attend`. Copies one layer's prefix, and makes scores of [heads, C, tokens] in
    fp32.
    """
    old_keys, old_values = kv.gathered()
    new_keys, new_values = kv.new
    keys = torch.cat([old_keys, new_keys], dim=1)
    values = torch.cat([old_values, new_values], dim=1)
    return attend_dense(query, keys, values, scoring, kv.window)


def attend_dense(
    query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring, window: int | None
) -> Tensor:
    """Causal attention where the queries are the last positions of the keys.

    query [1, heads, C, D], keys [kv_heads, T, D], values [kv_heads, T, Dv], C <= T -> [1, C, heads,
    Dv].
    """
    heads, num_new = query.shape[1], query.shape[2]
    ratio = heads // keys.shape[0]
    wide_keys = keys.float().repeat_interleave(ratio, dim=0)
    wide_values = values.float().repeat_interleave(ratio, dim=0)
    scores = query[0].float() @ wide_keys.transpose(1, 2) * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores.masked_fill(~visible(num_new, keys.shape[1], window, query.device), -torch.inf)
    if scoring.sinks is not None:
        sinks = scoring.sinks.float().reshape(heads, 1, 1).expand(heads, num_new, 1)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return (weights @ wide_values).to(query.dtype).transpose(0, 1).unsqueeze(0)


def visible(num_new: int, num_total: int, window: int | None, device: torch.device) -> Tensor:
    """Bool [C, T]: query i stands at position T - C + i and sees itself and what is before it, in
    its window.
    """
    queries = torch.arange(num_total - num_new, num_total, device=device).unsqueeze(1)
    keys = torch.arange(num_total, device=device).unsqueeze(0)
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)
