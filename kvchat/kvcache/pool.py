"""The memory of the KV cache: slabs of blocks and hot windows, under one byte limit.

Every byte of KV on the device is allocated here, so what is shown is counted, not computed. The
pool never gives anything up by itself: near the limit it moves blocks together, which gives whole
slabs back, then it raises PoolFull, and the planner decides what to do. Idea of a ref-counted block
pool with chained keys: PagedAttention (vLLM), nano-vllm.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import count

import torch

from kvchat.kvcache.blocks import (
    FP,
    Block,
    Geometry,
    HotWindow,
    read_block,
    shape_of,
    write_block,
)
from kvchat.kvcache.prefix_index import IdleTail, PrefixIndex
from kvchat.kvcache.slabs import Place, Slabs
from kvchat.kvcache.slabs import PoolFull as PoolFull
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, lower_of

MOST_IDLE_TAILS = 16


@dataclass(frozen=True, slots=True)
class Storing:
    """How texts are stored. `seal`: the formats of new blocks; `floor`: the lowest formats that a
    text may reuse; the first `sink_tokens` tokens stay as computed (StreamingLLM's sinks).
    """

    seal: FormatPair = FP
    floor: FormatPair = FP
    sink_tokens: int = 0

    @property
    def hot_tokens(self) -> int:
        """R: the newest tokens that stay as computed, beside those that fill the next block."""
        return self.seal.hot_tokens

    def pair_at(self, depth: int) -> FormatPair:
        """The formats of the block that has so many before it."""
        return FP if depth * BLOCK_TOKENS < self.sink_tokens else self.seal


AS_COMPUTED = Storing()


class Pool:
    """Blocks and hot windows of one model on one device. `limit_bytes` None: only the device
    limits.

    `root` stands for everything but the ids that the KV depends on (the model, its rope, its
    dtype). `storing` may change at any time; it holds for texts that begin after it.
    """

    def __init__(
        self,
        geometries: tuple[Geometry, ...],
        device: torch.device,
        root: bytes,
        limit_bytes: int | None = None,
    ) -> None:
        self.geometries = geometries
        self.device = device
        self.limit_bytes = limit_bytes
        self.storing = AS_COMPUTED
        self.index = PrefixIndex(geometries, root)
        self.on_device = Slabs(device)
        self.hot_bytes = 0
        self.hot_floor_bytes = 0
        self.num_moved = 0  # blocks that are no longer where a sequence may have seen them
        self._ticks = count(1)

    # --- bytes -----------------------------------------------------------------------------------

    @property
    def slab_bytes(self) -> int:
        return self.on_device.nbytes

    @property
    def device_bytes(self) -> int:
        """All that the pool has allocated on the device: slabs and hot windows."""
        return self.slab_bytes + self.hot_bytes

    @property
    def free_block_bytes(self) -> int:
        """Places in slabs that hold no block."""
        return self.on_device.free_bytes

    @property
    def idle_bytes(self) -> int:
        """Sealed blocks that no sequence holds, and the hot windows of idle sequences."""
        blocks = sum(b.nbytes for b in self.index.all() if not b.ref_count)
        return blocks + self.idle_tail_bytes

    @property
    def idle_tail_bytes(self) -> int:
        return sum(hot.nbytes for tail in self.index.tails for hot in tail.hot)

    @property
    def hot_reserve_bytes(self) -> int:
        """What blocks must leave free, so that a hot window can grow to its usual size."""
        return max(0, self.hot_floor_bytes + self.idle_tail_bytes - self.hot_bytes)

    def bytes_of(self, key: bytes) -> int:
        """What the blocks of that name take, in all groups and copies; 0 where it is gone."""
        copies = self.index.blocks.get(key, {}).values()
        return sum(block.nbytes for group in copies for block in group)

    # --- blocks ----------------------------------------------------------------------------------

    def reserve(
        self, group: int, pairs: Many[FormatPair], after: Block | None = None
    ) -> list[Block]:
        """Unsealed blocks to write into, one a pair of formats; next to `after` where there is
        room. Raises PoolFull, takes nothing then.
        """
        sizes = [shape_of(self.geometries[group], pair).block_bytes for pair in pairs]
        taken: list[Block] = []
        try:
            for i, (pair, num_bytes) in enumerate(zip(pairs, sizes, strict=True)):
                slab, start = self._place(num_bytes, sum(sizes[i:]), after)
                after = Block(group, pair, slab, start, num_bytes)
                taken.append(after)
        except BaseException:
            for block in taken:
                self._free(block)
            raise
        return taken

    def _place(self, num_bytes: int, wanted_bytes: int, after: Block | None) -> Place:
        """Where a block of that size goes. `wanted_bytes`: with those that come after it."""
        try:
            return self.on_device.take(num_bytes, wanted_bytes, self._left_bytes(), after)
        except PoolFull:
            if not self.pack():
                raise
        return self.on_device.take(num_bytes, wanted_bytes, self._left_bytes(), after)

    def _left_bytes(self) -> int | None:
        """What slabs may still grow by; None where only the device limits it."""
        if self.limit_bytes is None:
            return None
        return max(0, self.limit_bytes - self.device_bytes - self.hot_reserve_bytes)

    def seal(
        self, block: Block, key: bytes, parent: bytes, token_ids: tuple[int, ...], depth: int
    ) -> None:
        """Names a written block, so that others find it."""
        block.key, block.parent, block.token_ids, block.depth = key, parent, token_ids, depth
        self.index.add(block)

    def hold(self, block: Block) -> None:
        block.ref_count += 1

    def release(self, block: Block) -> None:
        """One holder less. A sealed block becomes idle and stays findable; an unsealed one is free
        at once.
        """
        block.ref_count -= 1
        block.last_used = next(self._ticks)
        if block.ref_count == 0 and block.key is None:
            self._free(block)

    def _free(self, block: Block) -> None:
        self.on_device.give((block.slab, block.start), block.nbytes)

    @torch.inference_mode()
    def requantize(self, block: Block, pair: FormatPair) -> int:
        """Stores a sealed block in other formats from what it holds now; whoever holds it reads it
        so from the next step on. What it has lost already stays lost, and it counts as made over
        that. Returns the bytes that became free. Raises PoolFull: nothing is changed then.
        """
        assert block.key is not None
        (made,) = self.reserve(block.group, [pair])
        try:
            geometry = self.geometries[block.group]
            write_block(geometry, made, *read_block(geometry, block))
        except BaseException:
            self._free(made)
            raise
        freed = block.nbytes - made.nbytes
        self._free(block)
        block.over = lower_of(block.over, block.pair)
        block.pair, block.slab = pair, made.slab
        block.start, block.nbytes = made.start, made.nbytes
        self.num_moved += 1
        return freed

    # --- moving together --------------------------------------------------------------------------

    @torch.inference_mode()
    def pack(self) -> int:
        """Moves blocks together (`Slabs.pack`). Returns the bytes given back to the device."""
        before = self.slab_bytes
        self.num_moved += self.on_device.pack(self.index.all())
        return before - self.slab_bytes

    # --- hot windows -----------------------------------------------------------------------------

    def new_hot(self, group: int, num_tokens: int) -> HotWindow:
        """Memory for the newest tokens of one sequence. Raises PoolFull."""
        needed = num_tokens * self.geometries[group].bytes_per_token
        if self.limit_bytes is not None and self.device_bytes + needed > self.limit_bytes:
            self.pack()
            short = self.device_bytes + needed - self.limit_bytes
            if short > 0:
                raise PoolFull(short, for_hot=True)
        hot = HotWindow(self.geometries[group], num_tokens, self.device)
        self.hot_bytes += hot.nbytes
        return hot

    def free_hot(self, hot: HotWindow) -> None:
        self.hot_bytes -= hot.nbytes

    def keep_tail(self, tail: IdleTail) -> None:
        """Keeps an idle sequence's hot window for the next turn; the oldest beyond a few are let
        go.
        """
        tail.last_used = next(self._ticks)
        self.index.tails.append(tail)
        while len(self.index.tails) > MOST_IDLE_TAILS:
            self.drop_tail(min(self.index.tails, key=lambda one: one.last_used))

    def drop_tail(self, tail: IdleTail) -> None:
        self.index.tails.remove(tail)
        for hot in tail.hot:
            self.free_hot(hot)

    # --- giving up what is idle -------------------------------------------------------------------

    def drop_idle(self, needed_bytes: int) -> tuple[int, int]:
        """Frees idle memory, oldest first and leaves before their parents, until `needed_bytes`
        are free for blocks. What stays is moved together.

        Returns the number of blocks dropped and the bytes freed (free places, or given back).
        """
        num_blocks, freed = 0, self._drop_tails(needed_bytes)
        idle = [block for block in self.index.all() if block.ref_count == 0]
        for block in sorted(idle, key=lambda one: (one.last_used, -one.depth)):
            if freed >= needed_bytes:
                break
            self._drop(block)
            freed += block.nbytes
            num_blocks += 1
        self.pack()
        return num_blocks, freed

    def drop_idle_slabs(self, needed_bytes: int) -> tuple[int, int]:
        """Frees idle memory until `needed_bytes` went back to the device: idle hot windows, then
        whole slabs that hold nothing but idle blocks, the least recently used first, then blocks
        whose slabs can be emptied. Returns as `drop_idle`.
        """
        before = self.device_bytes
        self._drop_tails(needed_bytes)
        num_blocks = 0
        idle = [
            blocks
            for slab, blocks in self.on_device.by_slab(self.index.all()).items()
            if slab.free_bytes + sum(b.nbytes for b in blocks if not b.ref_count) == slab.nbytes
        ]
        for blocks in sorted(idle, key=lambda one: max(b.last_used for b in one)):
            if before - self.device_bytes >= needed_bytes:
                break
            num_blocks += len(blocks)
            for block in blocks:
                self._drop(block)
        while before - self.device_bytes < needed_bytes and self.idle_bytes:
            dropped, _ = self.drop_idle(needed_bytes - (before - self.device_bytes))
            num_blocks += dropped
        return num_blocks, before - self.device_bytes

    def _drop_tails(self, needed_bytes: int) -> int:
        freed = 0
        for tail in sorted(self.index.tails, key=lambda one: one.last_used):
            if freed < needed_bytes:
                freed += sum(hot.nbytes for hot in tail.hot)
                self.drop_tail(tail)
        return freed

    def _drop(self, block: Block) -> None:
        self.index.remove(block)
        self._free(block)

    def check_integrity(self, held: int | None = None) -> None:
        """Raises AssertionError unless free + idle + live = all bytes of the slabs; `held`: live
        bytes that should be.
        """
        sealed = list(self.index.all())
        self.on_device.check(sealed)
        assert all(
            b.nbytes == shape_of(self.geometries[b.group], b.pair).block_bytes for b in sealed
        )
        idle = sum(block.nbytes for block in sealed if block.ref_count == 0)
        live = self.slab_bytes - self.free_block_bytes - idle
        assert live >= 0
        assert held is None or live == held, (live, held)
        assert all(block.ref_count >= 0 for block in sealed)
        assert self.hot_bytes >= self.idle_tail_bytes
