"""The memory of the KV cache: slabs of blocks and hot windows, under one byte limit.

Every byte of KV on the device is allocated here, so what is shown is counted, not computed. The
pool never gives anything up by itself: near the limit it moves blocks together, which gives whole
slabs back, then it raises PoolFull, and the planner decides what to do. Idea of a ref-counted block
pool with chained keys: PagedAttention (vLLM), nano-vllm.

Slabs grow with what is held, so that free places are a small part of it. Each is made for blocks of
one size; where the limit leaves no room for another, holes of other slabs serve as well.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import count, pairwise

import torch

from kvchat.kvcache.blocks import (
    FP,
    Block,
    Geometry,
    HotWindow,
    Slab,
    read_block,
    shape_of,
    write_block,
)
from kvchat.kvcache.prefix_index import IdleTail, PrefixIndex
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, lower_of

SLAB_BYTES = 32 * 1024**2
SLAB_PART = 32  # a new slab is at most this part of what is held: 3 % may stand free
MOST_IDLE_TAILS = 16


class PoolFull(Exception):
    """An allocation would pass the limit. Caught by the guard, which acts on `needed_bytes`.

    `for_hot`: a hot window was wanted, which free places in slabs do not serve.
    """

    def __init__(self, needed_bytes: int, *, for_hot: bool = False) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes
        self.for_hot = for_hot


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
        self.slabs: list[Slab] = []
        self.hot_bytes = 0
        self.hot_floor_bytes = 0
        self.num_moved = 0  # blocks that are no longer where a sequence may have seen them
        self._ticks = count(1)

    # --- bytes -----------------------------------------------------------------------------------

    @property
    def slab_bytes(self) -> int:
        return sum(slab.nbytes for slab in self.slabs)

    @property
    def device_bytes(self) -> int:
        """All that the pool has allocated on the device: slabs and hot windows."""
        return self.slab_bytes + self.hot_bytes

    @property
    def free_block_bytes(self) -> int:
        """Places in slabs that hold no block."""
        return sum(slab.free_bytes for slab in self.slabs)

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

    def num_places(self, num_bytes: int) -> int:
        """Free places in the slabs that were made for blocks of this size."""
        return sum(
            (stop - start) // num_bytes
            for slab in self.slabs
            if slab.unit_bytes == num_bytes
            for start, stop in slab.holes
        )

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
                slab.take(start, num_bytes)
                after = Block(group, pair, slab, start, num_bytes)
                taken.append(after)
        except BaseException:
            for block in taken:
                self._free(block)
            self.slabs = [slab for slab in self.slabs if not slab.is_empty]
            raise
        return taken

    def _place(self, num_bytes: int, wanted_bytes: int, after: Block | None) -> tuple[Slab, int]:
        """Where a block of that size goes. `wanted_bytes`: with those that come after it."""
        if (
            after is not None
            and after.nbytes == num_bytes
            and after.slab.has(after.stop, num_bytes)
        ):
            return after.slab, after.stop
        own = [slab for slab in self.slabs if slab.unit_bytes == num_bytes]
        found = _largest_hole(own, num_bytes)
        if found is None and not self._has_room(num_bytes):
            found = _smallest_hole(self.slabs, num_bytes)
            if found is None and self.pack():
                found = _smallest_hole(self.slabs, num_bytes)
        return found or (self._grow(num_bytes, wanted_bytes), 0)

    def _has_room(self, num_bytes: int) -> bool:
        return self.limit_bytes is None or self._left_bytes() >= num_bytes

    def _left_bytes(self) -> int:
        assert self.limit_bytes is not None
        return max(0, self.limit_bytes - self.device_bytes - self.hot_reserve_bytes)

    def _grow(self, num_bytes: int, wanted_bytes: int) -> Slab:
        """One more slab, near the limit a smaller one: hot windows need room too."""
        usual = min(SLAB_BYTES, max(self.slab_bytes // SLAB_PART, wanted_bytes))
        if self.limit_bytes is not None:
            left = self._left_bytes()
            if left < min(usual, wanted_bytes):
                raise PoolFull(min(usual, wanted_bytes) - left)
            usual = min(usual, max(wanted_bytes, left // 4))
        slab = Slab(max(1, usual // num_bytes) * num_bytes, num_bytes, self.device)
        self.slabs.append(slab)
        return slab

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
        block.slab.give(block.start, block.nbytes)
        if block.slab.is_empty:
            self.slabs.remove(block.slab)

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
        """Moves blocks out of slabs where others have places for them, so that emptied slabs go
        back to the device. Allocates nothing. Returns the bytes given back.

        Not during a forward, which reads blocks where they lay.
        """
        before = self.slab_bytes
        held = self._blocks_by_slab()
        for slab in sorted(self.slabs, key=lambda one: one.nbytes - one.free_bytes):
            blocks = held[slab]
            # What is taken by no sealed block is being written to: it stays.
            if slab.nbytes - slab.free_bytes == sum(block.nbytes for block in blocks):
                for block, place in self._places_elsewhere(slab, blocks):
                    self._move(block, *place)
                    held[block.slab].append(block)
        return before - self.slab_bytes

    def _places_elsewhere(
        self, slab: Slab, blocks: list[Block]
    ) -> list[tuple[Block, tuple[Slab, int]]]:
        """A place in other slabs for each of the blocks, or none for any."""
        others = [one for one in self.slabs if one is not slab]
        if sum(one.free_bytes for one in others) < sum(block.nbytes for block in blocks):
            return []
        found: list[tuple[Block, tuple[Slab, int]]] = []
        for block in sorted(blocks, key=lambda one: (-one.nbytes, one.depth)):
            place = _smallest_hole(others, block.nbytes)
            if place is None:
                break
            place[0].take(place[1], block.nbytes)
            found.append((block, place))
        for block, (other, start) in found:
            other.give(start, block.nbytes)
        return found if len(found) == len(blocks) else []

    def _move(self, block: Block, slab: Slab, start: int) -> None:
        slab.take(start, block.nbytes)
        source = block.slab.memory[block.start : block.stop]
        slab.memory[start : start + block.nbytes].copy_(source)
        self._free(block)
        block.slab, block.start = slab, start
        self.num_moved += 1

    def _blocks_by_slab(self) -> dict[Slab, list[Block]]:
        held: dict[Slab, list[Block]] = {slab: [] for slab in self.slabs}
        for block in self.index.all():
            held[block.slab].append(block)
        return held

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
            for slab, blocks in self._blocks_by_slab().items()
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
        for slab in self.slabs:
            ranges = [(b.start, b.stop) for b in sealed if b.slab is slab]
            ranges = sorted([*ranges, *slab.holes])
            assert all(0 <= low < high <= slab.nbytes for low, high in ranges)
            assert all(a[1] <= b[0] for a, b in pairwise(ranges)), "two blocks in one place"
        assert all(any(b.slab is slab for slab in self.slabs) for b in sealed)
        assert all(
            b.nbytes == shape_of(self.geometries[b.group], b.pair).block_bytes for b in sealed
        )
        idle = sum(block.nbytes for block in sealed if block.ref_count == 0)
        live = self.slab_bytes - self.free_block_bytes - idle
        assert live >= 0
        assert held is None or live == held, (live, held)
        assert all(block.ref_count >= 0 for block in sealed)
        assert self.hot_bytes >= self.idle_tail_bytes


def _largest_hole(slabs: list[Slab], num_bytes: int) -> tuple[Slab, int] | None:
    """The first place in the longest hole that has one: blocks that follow lie beside it."""
    return _hole(slabs, num_bytes, lambda length: -length)


def _smallest_hole(slabs: list[Slab], num_bytes: int) -> tuple[Slab, int] | None:
    """The place in the shortest hole that has one: the longer ones stay whole."""
    return _hole(slabs, num_bytes, lambda length: length)


def _hole(slabs: list[Slab], num_bytes: int, rank: Callable[[int], int]) -> tuple[Slab, int] | None:
    """The hole of the lowest rank by its length, of those that are long enough."""
    fitting = [
        (rank(stop - start), slab, start)
        for slab in slabs
        for start, stop in slab.holes
        if stop - start >= num_bytes
    ]
    if not fitting:
        return None
    _, slab, start = min(fitting, key=lambda hole: hole[0])
    return slab, start
