"""The memory of the KV cache: blocks in their tiers and hot windows, under byte limits.

Every byte of KV is allocated here, so what is shown is counted, not computed. The pool never gives
anything up by itself: near the limit it moves blocks together, which gives whole slabs back, then
it raises PoolFull, and the planner decides what to do. Idea of a ref-counted block pool with
chained keys: PagedAttention (vLLM), nano-vllm.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from kvchat.kvcache.block_store import BlockStore
from kvchat.kvcache.blocks import FP, Block, Geometry, HotWindow, shape_of
from kvchat.kvcache.prefix_index import Holed, IdleTail, Match, num_common
from kvchat.kvcache.slabs import PoolFull as PoolFull
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair

MOST_IDLE_TAILS = 16
MOST_HOLED = 16 + MOST_IDLE_TAILS  # texts, and other replies whose newest tokens are held


@dataclass(frozen=True, slots=True)
class Storing:
    """How texts are stored. `seal`: the formats of new blocks; `floor`: the lowest formats that a
    text may reuse; the first `sink_tokens` tokens stay as computed (StreamingLLM's sinks), and at
    least `newest_tokens` of the newest.
    """

    seal: FormatPair = FP
    floor: FormatPair = FP
    sink_tokens: int = 0
    newest_tokens: int = 0

    @property
    def hot_tokens(self) -> int:
        """R: the newest tokens that stay as computed, beside those that fill the next block."""
        return self.recent_tokens(self.seal)

    def recent_tokens(self, pair: FormatPair) -> int:
        """The same where older text is stored in `pair`; in whole blocks, 0 where nothing is lost
        by it.
        """
        wanted = -(-self.newest_tokens // BLOCK_TOKENS) * BLOCK_TOKENS
        return max(pair.hot_tokens, wanted) if pair.hot_tokens else 0

    def pair_at(self, depth: int) -> FormatPair:
        """The formats of the block that has so many before it."""
        return FP if depth * BLOCK_TOKENS < self.sink_tokens else self.seal


AS_COMPUTED = Storing()


class Pool(BlockStore):
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
        super().__init__(geometries, device, root)
        self.limit_bytes = limit_bytes
        self.storing = AS_COMPUTED
        self.hot_bytes = 0
        self.hot_floor_bytes = 0

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
        """Places in slabs on the device that hold no block."""
        return self.on_device.free_bytes

    @property
    def idle_bytes(self) -> int:
        """On the device: sealed blocks that no sequence holds, and the hot windows of idle
        sequences.
        """
        return sum(block.nbytes for block in self.idle("device")) + self.idle_tail_bytes

    @property
    def idle_tail_bytes(self) -> int:
        return sum(hot.nbytes for tail in self.index.tails for hot in tail.hot)

    @property
    def hot_reserve_bytes(self) -> int:
        """What blocks must leave free, so that a hot window can grow to its usual size."""
        return max(0, self.hot_floor_bytes + self.idle_tail_bytes - self.hot_bytes)

    def device_left_bytes(self) -> int | None:
        if self.limit_bytes is None:
            return None
        return max(0, self.limit_bytes - self.device_bytes - self.hot_reserve_bytes)

    def bytes_of(self, key: bytes) -> int:
        """What the blocks of that name take, in all groups, copies and tiers; 0 where it is
        gone.
        """
        copies = self.index.blocks.get(key, {}).values()
        return sum(block.nbytes for group in copies for block in group)

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
        go, and those that it begins with: wherever they served it serves as well.
        """
        for one in list(self.index.tails):
            begins = tail.parent == one.parent and num_common(tail.token_ids, one.token_ids)
            if begins == len(one.token_ids) and tail.over.at_least(one.over):
                self.drop_tail(one)
        tail.last_used = next(self._ticks)
        self.index.tails.append(tail)
        while len(self.index.tails) > MOST_IDLE_TAILS:
            self.drop_tail(min(self.index.tails, key=lambda one: one.last_used))

    def keep_holed(self, text: Holed) -> None:
        """Remembers a text that does without evicted blocks, so that it can go on; the oldest
        beyond a few are forgotten, and those that it begins with, but for one whose newest tokens
        are still held: another reply after the same blocks.
        """
        going_on = {tail.parent for tail in self.index.tails}
        kept = [
            one
            for one in self.index.holed
            if one.parent in going_on or text.keys[: len(one.keys)] != one.keys
        ]
        self.index.holed = [*kept, text][-MOST_HOLED:]

    def drop_tail(self, tail: IdleTail) -> None:
        self.index.tails.remove(tail)
        for hot in tail.hot:
            self.free_hot(hot)

    # --- what there is of a text ------------------------------------------------------------------

    def match(self, token_ids: Sequence[int]) -> Match:
        """What a text of these ids would find, stored as texts are by now."""
        return self.index.match(token_ids, self.storing.floor, self.storing.hot_tokens)

    # --- giving up what is idle -------------------------------------------------------------------

    @contextmanager
    def keeping(self, token_ids: Sequence[int]) -> Iterator[int]:
        """Within, what the pool has of these ids is not idle; gives how many tokens of them."""
        match = self.match(token_ids)
        held = [block for table in match.blocks for block in table if block is not None]
        for block in held:
            self.hold(block)
        try:
            yield match.num_tokens
        finally:
            for block in reversed(held):
                self.release(block)

    @torch.inference_mode()
    def drop_idle(self, needed_bytes: int, *, to_host: bool = False) -> tuple[int, int]:
        """Frees idle memory of the device, oldest first and leaves before their parents, until
        `needed_bytes` are free for blocks. What stays is moved together. With `to_host` blocks go
        to the host where there is room, and what was used longer ago there leaves it to them.

        Returns the number of blocks that left and the bytes freed (free places, or given back).
        """
        num_blocks, freed = 0, self._drop_tails(needed_bytes)
        for block in sorted(self.idle("device"), key=lambda one: (one.last_used, -one.depth)):
            if freed >= needed_bytes:
                break
            freed += block.nbytes
            num_blocks += 1
            self._leave(block, to_host)
        self.pack()
        return num_blocks, freed

    @torch.inference_mode()
    def drop_idle_slabs(self, needed_bytes: int, *, to_host: bool = False) -> tuple[int, int]:
        """Frees idle memory until `needed_bytes` went back to the device: idle hot windows, then
        whole slabs that hold nothing but idle blocks, the least recently used first, then blocks
        whose slabs can be emptied. Otherwise as `drop_idle`.
        """
        before = self.device_bytes
        self._drop_tails(needed_bytes)
        num_blocks = 0
        for blocks in sorted(self._idle_slabs(), key=lambda one: max(b.last_used for b in one)):
            if before - self.device_bytes >= needed_bytes:
                break
            num_blocks += len(blocks)
            for block in blocks:
                self._leave(block, to_host)
        while before - self.device_bytes < needed_bytes and self.idle_bytes:
            short = needed_bytes - (before - self.device_bytes)
            num_blocks += self.drop_idle(short, to_host=to_host)[0]
        return num_blocks, before - self.device_bytes

    def _idle_slabs(self) -> list[list[Block]]:
        """By slab of the device the blocks of those that hold no others than idle ones."""
        blocks = (one for one in self.index.all() if one.tier == "device")
        return [
            inside
            for slab, inside in self.on_device.by_slab(blocks).items()
            if slab.free_bytes + sum(b.nbytes for b in inside if not b.ref_count) == slab.nbytes
        ]

    def _leave(self, block: Block, to_host: bool) -> None:
        """An idle block leaves the device, for the host where that has room and no such copy."""
        if to_host and not self.is_on_host(block):
            try:
                self.offload(block, used_before=block.last_used)
                return
            except PoolFull:
                pass
        self._drop(block)

    def _drop_tails(self, needed_bytes: int) -> int:
        freed = 0
        for tail in sorted(self.index.tails, key=lambda one: one.last_used):
            if freed < needed_bytes:
                freed += sum(hot.nbytes for hot in tail.hot)
                self.drop_tail(tail)
        return freed

    def check_integrity(self, held: int | None = None) -> None:
        """Raises AssertionError unless free + idle + live = all bytes of the slabs, in each tier;
        `held`: live bytes of both that should be.
        """
        sealed = list(self.index.all())
        live = 0
        for slabs in (self.on_device, self.on_host):
            here = [block for block in sealed if block.tier == slabs.tier]
            slabs.check(here)
            idle = sum(block.nbytes for block in here if not block.ref_count)
            rest = slabs.nbytes - slabs.free_bytes - idle
            assert rest >= 0, f"{-rest} idle bytes too many on the {slabs.tier}"
            live += rest
        assert held is None or live == held, f"live bytes {live}, held by texts {held}"
        for block in sealed:
            expected = shape_of(self.geometries[block.group], block.pair).block_bytes
            assert block.nbytes == expected, f"a block of {block.nbytes} bytes, not {expected}"
            assert block.ref_count >= 0, f"a block is held {block.ref_count} times"
        hot, idle = self.hot_bytes, self.idle_tail_bytes
        assert hot >= idle, f"bytes of hot windows {hot}, of idle ones {idle}"
