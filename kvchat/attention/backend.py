"""What an attention backend is given and what it gives back.

It gets the queries of one forward and a view of one layer's KV: blocks where they lie, the hot
window, the chunk in flight. Knows no model library.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvchat.attention.triton_paged.standing import Room
from kvchat.attention.triton_paged.table import LayerTable
from kvchat.kvcache.block_lists import BlockList
from kvchat.kvcache.blocks import Shape


@dataclass(frozen=True, slots=True)
class Lying:
    """Where a group's KV lies, in bytes, for a kernel that reads it there.

    Of a block, layer l and head h begin `l * layer_bytes + h * head_bytes` further on: keys, then
    values; the two distances are those of the pair of formats. hot_keys, hot_values: addresses of
    the newest `num_hot` tokens, the new ones included, of the first layer and head.
    """

    lists: list[tuple[BlockList, Shape]]
    formats: frozenset[str]  # names of those that occur in the lists
    dtype: torch.dtype  # of what is held as computed
    hot_keys: int
    hot_values: int
    hot_layer_bytes: int
    hot_head_bytes: int
    num_hot: int
    num_tokens: int
    value_dim: int


class LayerKV(Protocol):
    """One layer's KV as attention reads it. All tensors are views; nothing is copied to make them.

    The prefix covers [first visible position, num_cached), the chunk in flight the C positions
    after it.
    """

    window: int | None
    layer: int
    """Its number within the group."""

    @property
    def new(self) -> tuple[Tensor, Tensor]:
        """The chunk in flight: keys [kv_heads, C, key_dim] and values [kv_heads, C, value_dim]."""
        ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def value_dim(self) -> int: ...

    @property
    def on_card(self) -> bool:
        """Whether the Triton kernels run this layer: only then it has a `table` and `room`."""
        ...

    @property
    def table(self) -> LayerTable: ...

    def room(self, query: Tensor, rotated: torch.dtype) -> Room:
        """What the Triton kernels write a decode step's parts to, see there."""
        ...

    def lying(self) -> Lying: ...

    def scratch(self, num_floats: int) -> Tensor:
        """fp32 room for a kernel, shared by the layers of a step."""
        ...

    def gathered(self) -> tuple[Tensor, Tensor]:
        """The prefix in one piece, [kv_heads, tokens, dim], in a workspace shared by the layers of
        a step.
        """
        ...

    def tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The prefix in pieces [kv_heads, tokens, dim], each in the place of the one before it.
        Not for a sliding layer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores are made. `sinks`: one learned score a query head that takes part in the softmax
    only (gpt-oss).
    """

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None


Attend = Callable[[Tensor, LayerKV, Scoring], Tensor]
"""(query [1, heads, C, key_dim], kv, scoring) -> [1, C, heads, value_dim]; mutates nothing."""
