"""Blocks of 64 tokens, the slabs they lie in, and the geometry that both follow.

A block holds the keys and values of 64 tokens for all layers of one group, contiguous, so that one
copy moves it. It is sealed: written once, then only read, shared and counted (PagedAttention's
idea, with vLLM's chained keys). Knows no sequence and no prefix; the pool decides which block is
used for what.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from torch import Tensor

from kvchat.arch.spec import ModelSpec
from kvchat.memory.footprint import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the layers of one group have in common. `layers` are the model's layer numbers."""

    layers: tuple[int, ...]
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """layers * kv heads * (key dim + value dim) * bytes of a value"""
        values = len(self.layers) * self.num_kv_heads * (self.key_dim + self.value_dim)
        return values * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return BLOCK_TOKENS * self.bytes_per_token

    def head_bytes(self, num_tokens: int) -> int:
        """One head's keys and values of n tokens in one layer."""
        return num_tokens * (self.key_dim + self.value_dim) * self.dtype.itemsize

    def first_visible(self, position: int) -> int:
        """The first position that a query at `position` attends to."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def blocks_held(self, num_tokens: int, prefill_chunk: int) -> int:
        """Blocks that a sequence of n tokens holds at most: all of them, or ceil((W + chunk) / 64)
        + 1.
        """
        needed = num_tokens // BLOCK_TOKENS
        if self.window is None:
            return needed
        return min(needed, -(-(self.window + prefill_chunk) // BLOCK_TOKENS) + 1)


def geometries(spec: ModelSpec, dtype: torch.dtype) -> tuple[Geometry, ...]:
    """One geometry for each group of paged layers: full and sliding attention with KV of their own.

    The rest stays in the library's own cache layers: latent and recurrent ones, and those whose
    keys and values other layers read as well, since the library hands these on as whole tensors.
    """
    lent = {layer.shares_with for layer in spec.layers}
    found = []
    for group in spec.groups():
        layers = tuple(i for i in group if i not in lent)
        layer = spec.layers[group[0]]
        if layers and layer.kind in ("full", "sliding"):
            found.append(
                Geometry(
                    layers, layer.num_kv_heads, layer.key_dim, layer.value_dim, layer.window, dtype
                )
            )
    return tuple(found)


def chain_key(previous: bytes, token_ids: Iterable[int]) -> bytes:
    """The name of a block: a hash of the previous block's name and its own 64 ids.

    The first `previous` is the pool's root, which stands for the model; so equal names mean equal
    KV.
    """
    ids = b"".join(token.to_bytes(4, "little") for token in token_ids)
    return blake2b(previous + ids, digest_size=16).digest()


class Storage:
    """Memory for `num_units` runs of `num_tokens` tokens each, in one allocation, and views into
    it.

    tensor: [num_units, layers, kv_heads, num_tokens * (key_dim + value_dim)]: a head's keys, then
    its values; keys, values: [num_units, layers, kv_heads, num_tokens, dim], views of it.
    """

    __slots__ = ("keys", "num_tokens", "tensor", "values")

    def __init__(
        self, geometry: Geometry, num_units: int, num_tokens: int, device: torch.device
    ) -> None:
        of_keys = num_tokens * geometry.key_dim
        of_values = num_tokens * geometry.value_dim
        self.num_tokens = num_tokens
        self.tensor = torch.empty(
            num_units,
            len(geometry.layers),
            geometry.num_kv_heads,
            of_keys + of_values,
            dtype=geometry.dtype,
            device=device,
        )
        self.keys: Tensor = self.tensor[..., :of_keys].unflatten(3, (num_tokens, geometry.key_dim))
        self.values: Tensor = self.tensor[..., of_keys:].unflatten(
            3, (num_tokens, geometry.value_dim)
        )

    @property
    def nbytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()

    def address(self, unit: int) -> int:
        """Of the unit's first byte in the device's memory."""
        return self.tensor.data_ptr() + unit * self.tensor.stride(0) * self.tensor.itemsize


def copy_tokens(
    source: Storage, unit: int, start: int, target: Storage, to_unit: int, to_start: int, num: int
) -> None:
    """Copies `num` tokens of all layers from one storage into another, or further to the front of
    the same one. Allocates nothing; no-op for none.
    """
    if num:
        for old, new in ((source.keys, target.keys), (source.values, target.values)):
            new[to_unit, :, :, to_start : to_start + num] = old[unit, :, :, start : start + num]


class Run:
    """Blocks that lie side by side in one slab: attended to in one call without gathering.

    keys[i], values[i]: [blocks, kv_heads, tokens, dim] of the group's i-th layer. `skip` leading
    tokens of a run of one block are outside a sliding window.
    """

    __slots__ = ("keys", "values")

    def __init__(self, storage: Storage, start: int, stop: int, skip: int) -> None:
        self.keys = storage.keys[start:stop, :, :, skip:].unbind(1)
        self.values = storage.values[start:stop, :, :, skip:].unbind(1)


class Slab:
    """One allocation that holds blocks of one group. An empty slab goes back to the device."""

    __slots__ = ("free", "group", "num_blocks", "storage")

    def __init__(self, group: int, storage: Storage) -> None:
        self.group = group
        self.storage = storage
        self.num_blocks = storage.tensor.shape[0]
        self.free = set(range(self.num_blocks))

    @property
    def is_empty(self) -> bool:
        return len(self.free) == self.num_blocks


@dataclass(slots=True, eq=False)
class Block:
    """64 tokens' KV of one group, at a place in a slab. `key` is None until it is sealed.

    ref_count: sequences that hold it. A sealed block that nobody holds is idle: kept for reuse
    until dropped.
    """

    group: int
    slab: Slab
    index: int
    key: bytes | None = None
    parent: bytes = b""
    token_ids: tuple[int, ...] = ()
    depth: int = 0
    ref_count: int = 1
    last_used: int = field(default=0)
