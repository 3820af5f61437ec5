"""Blocks of 64 tokens, the slabs they lie in, and the geometry that both follow.

A block holds the keys and values of 64 tokens for all layers of one group, contiguous, so that one
copy moves it. It is sealed: written once, then only read, shared and counted (PagedAttention's
idea, with vLLM's chained keys). It may be stored in any pair of formats: then a head's keys and
values are bytes as kvcache/quantize.py packs them. Knows no sequence and no prefix; the pool
decides which block is used for what.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import torch
from torch import Tensor

from kvchat.arch.spec import ModelSpec
from kvchat.kvcache.quantize import (
    dequantize_keys,
    dequantize_values,
    quantize_keys,
    quantize_values,
)
from kvchat.memory.formats import (
    BLOCK_TOKENS,
    FORMATS,
    FormatPair,
    KVFormat,
    part_bytes,
    stored_pair,
)

FP = FormatPair(FORMATS["fp"], FORMATS["fp"])
Tier = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the layers of one group have in common. `layers` are the model's layer numbers; `least`:
    the lowest pair that they are ever stored in, None where the text's own formats hold.
    """

    layers: tuple[int, ...]
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    dtype: torch.dtype
    least: FormatPair | None = None

    @property
    def bytes_per_token(self) -> int:
        """layers * kv heads * (key dim + value dim) * bytes of a value"""
        values = len(self.layers) * self.num_kv_heads * (self.key_dim + self.value_dim)
        return values * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Of a block as computed."""
        return BLOCK_TOKENS * self.bytes_per_token

    def head_bytes(self, num_tokens: int) -> int:
        """One head's keys and values of n tokens in one layer, as computed."""
        return num_tokens * (self.key_dim + self.value_dim) * self.dtype.itemsize

    def served(self, pair: FormatPair) -> FormatPair:
        """What is stored where the pair is asked for: see `memory.formats.stored_pair`."""
        return stored_pair(pair, self.key_dim, self.value_dim, self.least)

    def first_visible(self, position: int) -> int:
        """The first position that a query at `position` attends to."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def blocks_held(self, num_tokens: int, prefill_chunk: int) -> int:
        """Blocks that a sequence of n sealed tokens holds at most: all of them, or ceil((W + chunk)
        / 64) + 1.
        """
        needed = max(0, num_tokens) // BLOCK_TOKENS
        if self.window is None:
            return needed
        return min(needed, -(-(self.window + prefill_chunk) // BLOCK_TOKENS) + 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """Bytes of a stored block: of a head's keys, of its keys and values, of a layer, of all."""

    key_bytes: int
    head_bytes: int
    layer_bytes: int
    block_bytes: int


@lru_cache(maxsize=256)
def shape_of(geometry: Geometry, pair: FormatPair) -> Shape:
    """layers * kv heads * (keys + values), scales included: see kvcache/quantize.py."""
    size = geometry.dtype.itemsize
    key = part_bytes(geometry.key_dim, pair.key, size)
    head = key + part_bytes(geometry.value_dim, pair.value, size)
    layer = head * geometry.num_kv_heads
    return Shape(key, head, layer, layer * len(geometry.layers))


def geometries(
    spec: ModelSpec, dtype: torch.dtype, least: Mapping[int, FormatPair] | None = None
) -> tuple[Geometry, ...]:
    """One geometry for each group of paged layers: full and sliding attention with KV of their own.
    `least`: by layer the lowest pair that it is stored in; layers that differ in it are groups
    apart.

    The rest stays in the library's own cache layers: latent and recurrent ones, and those whose
    keys and values other layers read as well, since the library hands these on as whole tensors.
    """
    lent = {layer.shares_with for layer in spec.layers}
    found = []
    for group in spec.groups():
        layer = spec.layers[group[0]]
        if layer.kind not in ("full", "sliding"):
            continue
        heads = layer.num_kv_heads, layer.key_dim, layer.value_dim
        by_least: dict[FormatPair | None, list[int]] = {}
        for i in group:
            if i not in lent:
                by_least.setdefault((least or {}).get(i), []).append(i)
        for pair, layers in by_least.items():
            found.append(Geometry(tuple(layers), *heads, layer.window, dtype, pair))
    return tuple(found)


def chain(previous: bytes, token_ids: Sequence[int]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Names and ids of the whole blocks that these ids fill after the block named `previous`."""
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        piece = tuple(token_ids[start : start + BLOCK_TOKENS])
        previous = chain_key(previous, piece)
        yield previous, piece


def chain_key(previous: bytes, token_ids: Iterable[int]) -> bytes:
    """The name of a block: a hash of the previous block's name and its own 64 ids.

    The first `previous` is the pool's root, which stands for the model; so equal names mean equal
    KV.
    """
    ids = b"".join(token.to_bytes(4, "little") for token in token_ids)
    return blake2b(previous + ids, digest_size=16).digest()


def own_name(previous: bytes) -> bytes:
    """What comes next after that block is named after this instead, where it was computed without
    all that came before: no other text ever finds it.
    """
    return blake2b(previous + os.urandom(16), digest_size=16).digest()


class HotWindow:
    """Memory for the newest tokens of one sequence in one group, as computed, and views into it.

    tensor: [layers, kv_heads, num_tokens * (key_dim + value_dim)]: a head's keys, then its values;
    keys, values: [layers, kv_heads, num_tokens, dim], views of it.
    """

    __slots__ = ("keys", "num_tokens", "tensor", "values")

    def __init__(self, geometry: Geometry, num_tokens: int, device: torch.device) -> None:
        of_keys = num_tokens * geometry.key_dim
        width = of_keys + num_tokens * geometry.value_dim
        self.num_tokens = num_tokens
        shape = len(geometry.layers), geometry.num_kv_heads, width
        with torch.inference_mode(False):  # it may be written to outside of that, too
            self.tensor = torch.empty(shape, dtype=geometry.dtype, device=device)
        self.keys: Tensor = self.tensor[..., :of_keys].unflatten(2, (num_tokens, geometry.key_dim))
        self.values: Tensor = self.tensor[..., of_keys:].unflatten(
            2, (num_tokens, geometry.value_dim)
        )

    @property
    def nbytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()


def copy_tokens(
    source: tuple[Tensor, Tensor], start: int, target: HotWindow, to_start: int, num: int
) -> None:
    """Copies `num` tokens of all layers, [layers, kv_heads, tokens, dim], into a hot window.

    Allocates nothing; no-op for none. Within one window the two ranges must not overlap.
    """
    if num:
        for old, new in zip(source, (target.keys, target.values), strict=True):
            new[:, :, to_start : to_start + num] = old[:, :, start : start + num]


class Slab:
    """One allocation of bytes. Blocks of any group and format may lie in it; `unit_bytes` is the
    size of those that it was made for. An empty slab goes back to where it came from.

    holes: free ranges [start, stop), in order, never touching each other.
    """

    __slots__ = ("holes", "memory", "tier", "unit_bytes")

    def __init__(
        self,
        num_bytes: int,
        unit_bytes: int,
        device: torch.device,
        tier: Tier = "device",
        *,
        pinned: bool = False,
    ) -> None:
        with torch.inference_mode(False):  # it may be written to outside of that, too
            self.memory = torch.empty(
                num_bytes, dtype=torch.uint8, device=device, pin_memory=pinned
            )
        self.unit_bytes = unit_bytes
        self.tier = tier
        self.holes = [(0, num_bytes)]

    @property
    def nbytes(self) -> int:
        return self.memory.untyped_storage().nbytes()

    @property
    def free_bytes(self) -> int:
        return sum(stop - start for start, stop in self.holes)

    @property
    def is_empty(self) -> bool:
        return self.free_bytes == self.memory.shape[0]

    def has(self, start: int, num_bytes: int) -> bool:
        """Whether this very range is free."""
        return any(a <= start and start + num_bytes <= b for a, b in self.holes)

    def take(self, start: int, num_bytes: int) -> None:
        stop = start + num_bytes
        at, (low, high) = next(
            (i, hole) for i, hole in enumerate(self.holes) if hole[0] <= start and stop <= hole[1]
        )
        rest = [(low, start), (stop, high)]
        self.holes[at : at + 1] = [(a, b) for a, b in rest if a < b]

    def give(self, start: int, num_bytes: int) -> None:
        joined: list[tuple[int, int]] = []
        for low, high in sorted([*self.holes, (start, start + num_bytes)]):
            if joined and joined[-1][1] == low:
                joined[-1] = (joined[-1][0], high)
            else:
                joined.append((low, high))
        self.holes = joined


@dataclass(slots=True, eq=False)
class Block:
    """64 tokens' KV of one group in one pair of formats, at a place in a slab: one copy of what
    `key` names, None until it is sealed. Another copy of the same name may be held beside it.

    ref_count: sequences that hold it. A sealed block that nobody holds is idle: kept for reuse
    until dropped. `over`: the lowest formats of what came before it when it was computed.
    """

    group: int
    pair: FormatPair
    slab: Slab
    start: int
    nbytes: int
    key: bytes | None = None
    parent: bytes = b""
    token_ids: tuple[int, ...] = ()
    depth: int = 0
    over: FormatPair = FP
    ref_count: int = 1
    last_used: int = field(default=0)

    @property
    def stop(self) -> int:
        return self.start + self.nbytes

    @property
    def tier(self) -> Tier:
        return self.slab.tier

    @property
    def memory(self) -> Tensor:
        """Its bytes, uint8 [nbytes], a view."""
        return self.slab.memory[self.start : self.stop]

    @property
    def address(self) -> int:
        """Of its first byte, as the device's kernels read it: those of CUDA also read pinned
        memory of the host.
        """
        return self.slab.memory.data_ptr() + self.start


class Run:
    """Blocks of one pair of formats that lie side by side: read in one call.

    keys[i], values[i] of the group's i-th layer, where they lie: as computed [blocks, kv_heads, 64,
    dim], otherwise packed bytes [blocks, kv_heads, part]. `device`: where they are read.
    """

    __slots__ = ("device", "geometry", "keys", "num_blocks", "pair", "values")

    def __init__(
        self,
        geometry: Geometry,
        first: Block,
        num_blocks: int,
        device: torch.device | None = None,
    ) -> None:
        shape = shape_of(geometry, first.pair)
        self.geometry, self.pair, self.num_blocks = geometry, first.pair, num_blocks
        self.device = first.slab.memory.device if device is None else device
        memory = first.slab.memory[first.start : first.start + num_blocks * first.nbytes]
        heads = memory.view(
            num_blocks, len(geometry.layers), geometry.num_kv_heads, shape.head_bytes
        )
        keys, values = heads[..., : shape.key_bytes], heads[..., shape.key_bytes :]
        self.keys = _of_layers(keys, geometry.key_dim, self.pair.key, geometry.dtype)
        self.values = _of_layers(values, geometry.value_dim, self.pair.value, geometry.dtype)

    def read(self, layer: int, start: int = 0, stop: int | None = None) -> tuple[Tensor, Tensor]:
        """One layer's keys and values of some of the blocks, as near as the formats kept them:
        [blocks, kv_heads, 64, dim], on `device`: copied there packed if they lie elsewhere.
        """
        geometry = self.geometry
        keys = self.keys[layer][start:stop].to(self.device)
        values = self.values[layer][start:stop].to(self.device)
        if self.pair.key.bits is not None:
            keys = dequantize_keys(keys, self.pair.key, geometry.key_dim, geometry.dtype)
        if self.pair.value.bits is not None:
            values = dequantize_values(values, self.pair.value, geometry.value_dim, geometry.dtype)
        return keys, values


def _of_layers(parts: Tensor, dim: int, fmt: KVFormat, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """[blocks, layers, kv_heads, bytes] as one view a layer, of values where they are as
    computed.
    """
    if fmt.bits is None:
        parts = parts.view(dtype).unflatten(-1, (BLOCK_TOKENS, dim))
    return parts.unbind(1)


def write_block(geometry: Geometry, block: Block, keys: Tensor, values: Tensor) -> None:
    """Stores [layers, kv_heads, 64, dim] as computed in the block's formats."""
    write_packed(geometry, block.pair, block.memory, keys, values)


def write_packed(
    geometry: Geometry, pair: FormatPair, memory: Tensor, keys: Tensor, values: Tensor
) -> None:
    """The same into any bytes of a block's size, uint8 [n], on the device of keys and values."""
    shape = shape_of(geometry, pair)
    heads = memory.view(len(geometry.layers), geometry.num_kv_heads, shape.head_bytes)
    quantize_keys(keys, pair.key, heads[..., : shape.key_bytes])
    quantize_values(values, pair.value, heads[..., shape.key_bytes :])


def read_block(
    geometry: Geometry, block: Block, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Keys and values of all layers, [layers, kv_heads, 64, dim], in a block's own dtype; on its
    own device if no other is named. Always a copy.
    """
    run = Run(geometry, block, 1, device)
    layers = [run.read(layer) for layer in range(len(geometry.layers))]
    return torch.cat([keys for keys, _ in layers]), torch.cat([values for _, values in layers])
