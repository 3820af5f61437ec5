"""What a model is made of, as far as memory goes: layers, heads, widths. Bytes follow by
arithmetic.

Knows no library and no tensor; `from_hf.py` fills it in from a config.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

LayerKind = Literal["full", "sliding", "latent", "recurrent", "none"]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer's KV. Dims are values per head (for `latent`: per token, one head).

    `shares_with` names the layer whose KV this one reads instead of its own (Gemma 3n, some Qwen);
    such a layer holds nothing. `recurrent_bytes` is the size of a recurrent layer's states, at any
    length. `work_values` is what computing makes of each token: in a latent layer, of every token
    of the text, for all heads; in a recurrent one, of every token of a prefill chunk, in fp32.
    """

    kind: LayerKind
    num_kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    shares_with: int | None = None
    recurrent_bytes: int = 0
    work_values: int = 0

    @property
    def values_per_token(self) -> int:
        """num_kv_heads * (key_dim + value_dim); 0 for a layer that holds no KV of its own."""
        if self.shares_with is not None or self.kind in ("recurrent", "none"):
            return 0
        return self.num_kv_heads * (self.key_dim + self.value_dim)

    def tokens_held(self, num_tokens: int) -> int:
        """Of n tokens, those that this layer can still attend to: all, or its window's."""
        return num_tokens if self.window is None else min(num_tokens, self.window)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole model. `weight_bytes` is what its weights take in the dtype they will be held in.

    `dense_scores`: its attention has a softcap or sinks, which fused kernels do not know, so that
    all scores of a chunk stand in memory at once (Gemma 2, gpt-oss).
    """

    name: str
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_query_heads: int
    weight_bytes: int
    max_positions: int
    dense_scores: bool = False

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the layers of equal KV geometry, one tuple a group, in order of their first
        layer.

        Layers that hold no KV of their own belong to no group.
        """
        return _groups(self.layers)

    def kv_bytes(self, num_tokens: int, bits: float) -> int:
        """KV of n tokens at `bits` a value (16 for fp16, 8 for int8 without scales), all layers."""
        values = sum(
            layer.values_per_token * layer.tokens_held(num_tokens) for layer in self.layers
        )
        return int(values * bits / 8)


@lru_cache(maxsize=256)
def _groups(layers: tuple[LayerSpec, ...]) -> tuple[tuple[int, ...], ...]:
    found: dict[LayerSpec, list[int]] = {}
    for i, layer in enumerate(layers):
        if layer.values_per_token:
            found.setdefault(layer, []).append(i)
    return tuple(sorted(map(tuple, found.values())))
