"""One text's tables for the Triton kernels, in tensors that stay where they are from step to step.

What changes with every step are a few numbers, written by one copy before the forward; block lists
grow in place. So a decode step reads and writes the same addresses as the one before it, until
blocks move or the hot window is made anew, and could be captured as a CUDA graph. Imports no
Triton.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.attention.triton_paged.table import (
    HotWindow,
    LayerTable,
    SealedBlocks,
    num_splits,
)
from kvchat.device.cuda import num_processors
from kvchat.kvcache.block_lists import BlockList
from kvchat.kvcache.blocks import shape_of
from kvchat.kvcache.sequence import Sequence

_HOT_SPLITS = 8  # as many tiles of 64 tokens as R and a block fill, and some more


@dataclass(frozen=True, slots=True)
class Room:
    """The buffers of a decode step, one for all layers of a group; overwritten by each.

    out: fp32 [parts, heads, value_dim] and sums: fp32 [parts, heads], where the parts are `splits`
    of each format pair, then those of the hot window; rotated: [heads, key_dim].
    """

    out: Tensor
    sums: Tensor
    rotated: Tensor
    splits: int
    hot_splits: int

    @classmethod
    def make(
        cls, query: Tensor, rotated: torch.dtype, value_dim: int, splits: tuple[int, int, int]
    ) -> "Room":
        """For queries like this one, [1, heads, 1, key_dim], turned in the dtype `rotated`;
        `splits`: pairs of formats, programs of each, and programs of the hot window.
        """
        heads, key_dim = query.shape[1], query.shape[3]
        num_pairs, of_pair, of_hot = splits
        parts = num_pairs * of_pair + of_hot
        new = query.new_empty
        return cls(
            new(parts, heads, value_dim, dtype=torch.float32),
            new(parts, heads, dtype=torch.float32),
            new(heads, key_dim, dtype=rotated),
            of_pair,
            of_hot,
        )


class StandingTables:
    """`begin` before each forward, after the sequence has reserved its places."""

    def __init__(self, sequence: Sequence) -> None:
        device = sequence.pool.device
        self._sequence = sequence
        # Where the first query stands, the place of the chunk in the hot window, then for each
        # group the first place seen, the one after the last, the first one's position.
        num_groups = len(sequence.pool.geometries)
        self._numbers = torch.zeros(2 + 3 * num_groups, dtype=torch.int32, device=device)
        self._steps = torch.arange(1, device=device)
        self._places = torch.zeros_like(self._steps)
        self._made: dict[int, tuple[tuple[object, ...], tuple[LayerTable, ...]]] = {}
        self._fresh: set[int] = set()
        self._rooms: dict[tuple[object, ...], tuple[tuple[int, int, int], Room]] = {}

    def begin(self) -> None:
        sequence = self._sequence
        stop = sequence.num_hot + sequence.num_new
        numbers = [sequence.num_cached, sequence.hot_place(sequence.num_hot)]
        for geometry in sequence.pool.geometries:
            skip = max(0, geometry.first_visible(sequence.num_cached) - sequence.start)
            first = sequence.hot_place(skip)
            numbers += [first, sequence.hot_place(stop), sequence.start + skip]
        pinned = self._numbers.device.type == "cuda"  # so that nothing waits for the copy
        told = torch.tensor(numbers, dtype=torch.int32, pin_memory=pinned)
        self._numbers.copy_(told, non_blocking=True)
        if sequence.num_new > self._steps.shape[0]:
            self._steps = torch.arange(sequence.num_new, device=self._numbers.device)
            self._places = torch.zeros_like(self._steps)
        num_new = sequence.num_new
        torch.add(self._steps[:num_new], self._numbers[1], out=self._places[:num_new])
        self._fresh.clear()

    def write(self, group: int, layer: int, keys: Tensor, values: Tensor) -> None:
        """Puts [kv_heads, C, dim] into the hot window, at places that the device knows."""
        hot = self.of(group, layer).hot
        places = self._places[: keys.shape[1]]
        hot.keys.index_copy_(1, places, keys.to(hot.keys.dtype))
        hot.values.index_copy_(1, places, values.to(hot.values.dtype))

    def of(self, group: int, layer: int) -> LayerTable:
        """A layer's table, `layer` counted within the group."""
        if group not in self._fresh:
            self._fresh.add(group)
            hot = self._sequence.hot[group]
            lists = [one for one in self._sequence.lists(group) if one.num_blocks]
            lying = (hot.tensor, *(one.addresses for one in lists))
            known = self._made.get(group)
            if known is None or not _same(known[0], lying):
                self._made[group] = (lying, self._tables(group, lists))
        return self._made[group][1][layer]

    def _tables(self, group: int, lists: list[BlockList]) -> tuple[LayerTable, ...]:
        geometry, hot = self._sequence.pool.geometries[group], self._sequence.hot[group]
        start = 2 + 3 * group
        span = self._numbers[start : start + 3]
        filled = [(one, shape_of(geometry, one.pair)) for one in lists]
        tables = []
        for layer in range(len(geometry.layers)):
            sealed = tuple(
                SealedBlocks(
                    one.pair, one.addresses, one.positions, one.count, layer * shape.layer_bytes
                )
                for one, shape in filled
            )
            window = HotWindow(hot.keys[layer], hot.values[layer], span)
            tables.append(LayerTable(sealed, window, self._numbers[:1], geometry.window))
        return tuple(tables)

    def room(self, query: Tensor, rotated: torch.dtype, table: LayerTable) -> Room:
        """Buffers for a decode step over such a table; the same ones from step to step."""
        kv_heads, _, value_dim = table.hot.values.shape
        processors = num_processors(query.device) or 1  # of the interpreter
        capacity = max((blocks.addresses.shape[0] for blocks in table.sealed), default=1)
        splits = (
            len(table.sealed),
            num_splits(kv_heads, capacity, processors),
            min(_HOT_SPLITS, 2 * processors),
        )
        key = (query.shape, query.dtype, kv_heads, value_dim)
        found = self._rooms.get(key)
        if found is None or found[0] != splits:
            found = self._rooms[key] = (splits, Room.make(query, rotated, value_dim, splits))
        return found[1]


def _same(known: tuple[object, ...], lying: tuple[object, ...]) -> bool:
    return len(known) == len(lying) and all(
        one is other for one, other in zip(known, lying, strict=True)
    )
