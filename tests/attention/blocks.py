"""Synthetic KV for kernel tests: sealed blocks of any mix of formats in one memory, a hot window, a
chunk, and beside them what they mean as plain tensors.

Blocks lie shuffled, apart, and with other layers' bytes around the one that is read. Whatever is
not to be read is poisoned: 0xFF bytes, which are NaN as scales, and NaN in the hot window.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.attention.backend import Scoring
from kvchat.kvcache.quantize import (
    dequantize_keys,
    dequantize_values,
    quantize_keys,
    quantize_values,
)
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, part_bytes

_LAYERS, _LAYER = 3, 1  # of a block, and the one that the tests read
_GAP_BYTES = 48


@dataclass(frozen=True, slots=True)
class Case:
    """What to build. `pairs` are the blocks' formats, one a block, in the order of positions.

    `hot_tokens` precede the chunk of `chunk` new tokens, and follow the blocks.
    """

    pairs: tuple[str, ...]
    hot_tokens: int = 0
    chunk: int = 1
    key_dim: int = 64
    value_dim: int = 64
    kv_heads: int = 2
    ratio: int = 1
    dtype: torch.dtype = torch.float32
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def heads(self) -> int:
        return self.kv_heads * self.ratio

    def __str__(self) -> str:
        runs = [f"{self.pairs.count(pair)}x{pair}" for pair in dict.fromkeys(self.pairs)]
        dims = f"{self.key_dim}" + (f":{self.value_dim}" if self.value_dim != self.key_dim else "")
        words = [f"d{dims}", f"{self.kv_heads}*{self.ratio}", *runs, f"hot{self.hot_tokens}"]
        words += [f"chunk{self.chunk}", str(self.dtype).removeprefix("torch.")]
        words += [f"window{self.window}"] if self.window else []
        words += [f"softcap{self.softcap:g}"] if self.softcap else []
        return " ".join(words + ["sinks"] * self.sinks)


@dataclass(frozen=True, slots=True)
class Placed:
    """A block at its byte address; `layer_offset` leads to the layer that is read."""

    pair: FormatPair
    address: int
    layer_offset: int
    position: int


@dataclass(frozen=True, slots=True)
class Built:
    """A case in memory. `keys`, `values`: what all of it means, [kv_heads, tokens, dim], blocks
    first, then the hot window, then the chunk.

    `hot_keys`, `hot_values`: [kv_heads, places, dim], not contiguous, of which the places
    [first, stop) hold the hot window and the chunk. `poisoned`: the address of a block that must
    not be read. `memory` only keeps the bytes alive.
    """

    case: Case
    query: Tensor
    scoring: Scoring
    blocks: list[Placed]
    poisoned: int
    memory: Tensor
    hot_keys: Tensor
    hot_values: Tensor
    first: int
    stop: int
    keys: Tensor
    values: Tensor


def build(case: Case, seed: int = 0, device: str = "cpu") -> Built:
    """Random tensors of a case. Keys have a channel that stands out, as those of models do."""
    random = torch.Generator().manual_seed(seed)
    num_sealed = BLOCK_TOKENS * len(case.pairs)
    tokens = num_sealed + case.hot_tokens + case.chunk

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    query = normal(1, case.heads, case.chunk, case.key_dim) * 1.5
    keys = normal(case.kv_heads, tokens, case.key_dim)
    keys[..., 3] += 4.0
    values = normal(case.kv_heads, tokens, case.value_dim)
    query, keys, values = (x.to(case.dtype) for x in (query, keys, values))
    memory, blocks, poisoned = _sealed(case, keys, values, random, device)
    hot_keys, hot_values, first = _hot(keys[:, num_sealed:], values[:, num_sealed:], device)
    sinks = normal(case.heads).to(device) if case.sinks else None
    return Built(
        case,
        query.to(device),
        Scoring(case.key_dim**-0.5, case.softcap, sinks),
        blocks,
        poisoned,
        memory,
        hot_keys,
        hot_values,
        first,
        first + case.hot_tokens + case.chunk,
        keys.to(device),
        values.to(device),
    )


def _sealed(
    case: Case, keys: Tensor, values: Tensor, random: torch.Generator, device: str
) -> tuple[Tensor, list[Placed], int]:
    """The blocks' memory and their places. What the formats lose is lost in `keys` and `values`
    too.
    """
    widest = max(_layer_bytes(case, FormatPair.parse(name)) for name in ("fp", *case.pairs))
    step = _LAYERS * widest + _GAP_BYTES
    count = len(case.pairs)
    memory = torch.full(((count + 1) * step + 16,), 0xFF, dtype=torch.uint8, device=device)
    start = -memory.data_ptr() % 16
    order = torch.randperm(count, generator=random).tolist()
    blocks = []
    for block, (name, place) in enumerate(zip(case.pairs, order, strict=True)):
        pair = FormatPair.parse(name)
        layer_offset = _LAYER * _layer_bytes(case, pair)
        at = start + place * step
        tokens = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        k = quantize_keys(keys[:, tokens], pair.key)
        v = quantize_values(values[:, tokens], pair.value)
        segments = torch.cat([k, v], dim=-1).flatten()
        memory[at + layer_offset : at + layer_offset + len(segments)] = segments.to(device)
        keys[:, tokens] = dequantize_keys(k, pair.key, case.key_dim, case.dtype)
        values[:, tokens] = dequantize_values(v, pair.value, case.value_dim, case.dtype)
        blocks.append(Placed(pair, memory.data_ptr() + at, layer_offset, block * BLOCK_TOKENS))
    return memory, blocks, memory.data_ptr() + start + count * step


def _layer_bytes(case: Case, pair: FormatPair) -> int:
    itemsize = case.dtype.itemsize
    key_bytes = part_bytes(case.key_dim, pair.key, itemsize)
    return case.kv_heads * (key_bytes + part_bytes(case.value_dim, pair.value, itemsize))


def _hot(keys: Tensor, values: Tensor, device: str) -> tuple[Tensor, Tensor, int]:
    """[kv_heads, places, dim] of a wider storage, with places before and behind the tokens."""
    before, behind = 5, 70
    found = []
    for x in (keys, values):
        heads, tokens, dim = x.shape
        storage = torch.full((heads, 2, before + tokens + behind, dim), torch.nan, dtype=x.dtype)
        storage[:, 1, before : before + tokens] = x
        found.append(storage.to(device)[:, 1])
    return found[0], found[1], before
