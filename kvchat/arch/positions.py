"""How many tokens a model can read: its declared length and what its rope scaling adds, counted
once.

`max_position_embeddings` is the length before the scaling in some files and after it in others:

rope type           limit                                   why
none, default, …    max_position_embeddings
llama3, longrope    max_position_embeddings                 written after scaling
yarn                larger of it and original x factor      Qwen writes it before, DeepSeek after
yarn, no original   max_position_embeddings                 nothing says that it is unscaled
linear, dynamic     max_position_embeddings x factor        written before, as the library asks
  original less     max_position_embeddings                 written after
some layers only    max_position_embeddings                 Gemma 3 scales its full layers

A tokenizer's `model_max_length` never raises the limit, and 1e30 means that nobody set it; it
settles whether a `linear` file is scaled already (deepseek-coder). A sliding window does not
shorten the text.
"""

from collections.abc import Mapping
from typing import Any

from kvchat.arch.fields import Fields

# A recurrent model has no positions, and so no limit of its own; this one keeps plans finite.
WITHOUT_POSITIONS = 2**20
_LONGEST_BELIEVED = 2**31


def max_positions(fields: Fields, tokenizer_limit: float | None = None) -> int:
    """The longest text in tokens. Raises ModelError where the config's values are absurd."""
    if not fields.has("max_position_embeddings") and _is_recurrent(fields):
        return WITHOUT_POSITIONS
    declared = fields.count("max_position_embeddings")
    limit = _scaled(declared, fields, tokenizer_limit)
    chunk = fields.get("attention_chunk_size")
    if chunk and "chunked_attention" in (fields.get("layer_types") or ()):
        # Inside the first chunk, chunked attention is plain causal attention; beyond it, it is not.
        return min(limit, int(chunk))
    return limit


def _scaled(declared: int, fields: Fields, tokenizer_limit: float | None) -> int:
    written = [fields.get(name) or {} for name in ("rope_scaling", "rope_parameters")]
    if any(isinstance(part, Mapping) for rope in written for part in rope.values()):
        return declared
    rope = written[0] or written[1]
    kind = rope.get("rope_type") or rope.get("type")
    factor = _number(rope.get("factor"))
    original = _number(rope.get("original_max_position_embeddings"))
    if fields.has("rope_local_base_freq"):
        return declared
    if kind not in ("yarn", "linear", "dynamic") or factor is None or factor <= 1:
        return declared
    if kind == "yarn":
        return declared if original is None else max(declared, int(original * factor))
    if original is not None and original < declared:
        return declared
    longest = int((original or declared) * factor)
    if tokenizer_limit is not None and declared <= tokenizer_limit < _LONGEST_BELIEVED:
        return min(longest, int(tokenizer_limit))
    return longest


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return float(value) if usable else None


def _is_recurrent(fields: Fields) -> bool:
    kinds = fields.get("layer_types") or ()
    return bool(kinds) and all(kind in ("linear_attention", "mamba", "conv") for kind in kinds)
