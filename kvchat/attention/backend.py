"""What an attention backend is given and what it gives back.

It gets the queries of one forward and a view of one layer's KV: blocks where they lie, the hot
window, the chunk in flight. Knows no model library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class LayerKV(Protocol):
    """One layer's KV as attention reads it. All tensors are views; nothing is copied to make them.

    The prefix covers [first visible position, num_cached), the chunk in flight the C positions
    after it.
    """

    window: int | None

    @property
    def new(self) -> tuple[Tensor, Tensor]:
        """The chunk in flight: keys [kv_heads, C, key_dim] and values [kv_heads, C, value_dim]."""
        ...

    @property
    def num_kv_heads(self) -> int: ...

    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """All that a single new token sees, where it lies: keys, values [n, kv_heads, tokens, dim].

        Runs of blocks first, then the hot window with the new token in it.
        """
        ...

    def gathered(self) -> tuple[Tensor, Tensor]:
        """The prefix in one piece, [kv_heads, tokens, dim], in a workspace shared by the layers of
        a step.
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
