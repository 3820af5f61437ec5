"""What an attention backend computes, and which one runs where.

A backend gets the queries of one forward and a view of one layer's KV: blocks where they lie, the hot window,
the chunk in flight. What it does not implement it refuses; `choose` then falls back to the plain reference.
Knows no model library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvchat.arch.spec import LayerSpec, ModelSpec


class LayerKV(Protocol):
    """One layer's KV as attention reads it. All tensors are views; nothing is copied to make them.

    The prefix covers [first visible position, num_cached), the chunk in flight the C positions after it.
    """

    window: int | None

    @property
    def new(self) -> tuple[Tensor, Tensor]:
        """The chunk in flight: keys [kv_heads, C, key_dim] and values [kv_heads, C, value_dim]."""
        ...

    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """All that a single new token sees, where it lies: keys and values [n, kv_heads, tokens, dim].

        Runs of blocks first, then the hot window with the new token in it.
        """
        ...

    def gathered(self) -> tuple[Tensor, Tensor]:
        """The prefix in one piece, [kv_heads, tokens, dim], in a workspace shared by the layers of a step."""
        ...


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores are made. `sinks`: one learned score a query head that takes part in the softmax only (gpt-oss)."""

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None


Attend = Callable[[Tensor, LayerKV, Scoring], Tensor]
"""(query [1, heads, C, key_dim], kv, scoring) -> [1, C, heads, value_dim]; mutates nothing."""


def choose(device: torch.device, query: Tensor, value_dim: int, scoring: Scoring) -> Attend:
    """The fastest backend that can do it."""
    from kvchat.attention import flash, reference

    if not scoring.is_plain or query.shape[-1] != value_dim:
        return reference.attend
    return flash.attend_cpu if device.type == "cpu" else flash.attend_sdpa


def describe(spec: ModelSpec | None, device: torch.device) -> list[dict[str, object]]:
    """Which backend runs each kind of layer of a model, for `doctor` and the screen.

    `fast` is False where only the plain reference or the library's own cache serves.
    """
    if spec is None:
        return [{"layers": "full, sliding", "backend": _paged(device), "fast": True}]
    kinds: dict[str, int] = {}
    for layer in spec.layers:
        kinds[_label(layer)] = kinds.get(_label(layer), 0) + 1
    return [
        {
            "layers": kind,
            "num_layers": number,
            "backend": _paged(device) if kind in ("full", "sliding") else "library cache",
            "fast": kind in ("full", "sliding"),
        }
        for kind, number in kinds.items()
    ]


def _label(layer: LayerSpec) -> str:
    return "shared" if layer.shares_with is not None else layer.kind


def _paged(device: torch.device) -> str:
    return "torch flash (CPU), paged" if device.type == "cpu" else "torch SDPA, paged"
