"""The memory of the KV cache: slabs of blocks and hot windows, under one byte limit.

Every byte of KV on the device is allocated here, so what is shown is counted, not computed. The
pool never gives anything up by itself: near the limit it moves blocks together, which gives whole
slabs back, then it raises PoolFull, and the planner decides what to do. Idea of a ref-counted block
pool with chained keys: PagedAttention (vLLM), nano-vllm.
"""

from itertools import count

import torch

from kvchat.kvcache.blocks import Block, Geometry, Slab, Storage, copy_tokens
from kvchat.kvcache.prefix_index import IdleTail, PrefixIndex
from kvchat.memory.footprint import BLOCK_TOKENS

SLAB_BYTES = 32 * 1024**2
SLABS_AT_LIMIT = 64
MOST_IDLE_TAILS = 16


class PoolFull(Exception):
    """An allocation would pass the limit. Caught by the guard, which acts on `needed_bytes`.

    `for_hot`: a hot window was wanted, which free places in slabs do not serve.
    """

    def __init__(self, needed_bytes: int, *, for_hot: bool = False) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes
        self.for_hot = for_hot


class Pool:
    """Blocks and hot windows of one model on one device. `limit_bytes` None: only the device
    limits.

    `root` stands for everything but the ids that the KV depends on (the model, its rope, its
    dtype).
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
        self.index = PrefixIndex(geometries, root)
        self.slabs: list[list[Slab]] = [[] for _ in geometries]
        self.hot_bytes = 0
        self.hot_floor_bytes = 0
        self.num_moved = 0  # blocks that are no longer where a sequence may have seen them
        self._ticks = count(1)

    # --- bytes -----------------------------------------------------------------------------------

    @property
    def slab_bytes(self) -> int:
        return sum(slab.storage.nbytes for group in self.slabs for slab in group)

    @property
    def device_bytes(self) -> int:
        """All that the pool has allocated on the device: slabs and hot windows."""
        return self.slab_bytes + self.hot_bytes

    @property
    def free_block_bytes(self) -> int:
        """Places in slabs that hold no block."""
        return sum(
            len(slab.free) * self.geometries[g].block_bytes
            for g, group in enumerate(self.slabs)
            for slab in group
        )

    @property
    def idle_bytes(self) -> int:
        """Sealed blocks that no sequence holds, and the hot windows of idle sequences."""
        blocks = sum(
            self.geometries[b.group].block_bytes for b in self.index.all() if not b.ref_count
        )
        return blocks + self.idle_tail_bytes

    @property
    def idle_tail_bytes(self) -> int:
        return sum(storage.nbytes for tail in self.index.tails for storage in tail.storages)

    @property
    def hot_reserve_bytes(self) -> int:
        """What blocks must leave free, so that a hot window can grow to its usual size."""
        return max(0, self.hot_floor_bytes + self.idle_tail_bytes - self.hot_bytes)

    def bytes_of(self, key: bytes) -> int:
        """What the blocks of that name take, in all groups; 0 where it is gone."""
        groups = self.index.blocks.get(key, {})
        return sum(self.geometries[group].block_bytes for group in groups)

    def num_free_blocks(self, group: int) -> int:
        return sum(len(slab.free) for slab in self.slabs[group])

    # --- blocks ----------------------------------------------------------------------------------

    def reserve(self, group: int, num_blocks: int, after: Block | None = None) -> list[Block]:
        """Unsealed blocks to write into; next to `after` where there is room. Raises PoolFull,
        takes nothing then.
        """
        missing = num_blocks - self.num_free_blocks(group)
        taken: list[Block] = []
        try:
            while missing > 0:
                missing -= self._grow(group, missing)
            for _ in range(num_blocks):
                slab, index = self._free_place(group, after)
                slab.free.remove(index)
                after = Block(group, slab, index)
                taken.append(after)
        except BaseException:
            for block in taken:
                self._free(block.slab, block.index)
            self.slabs[group] = [slab for slab in self.slabs[group] if not slab.is_empty]
            raise
        return taken

    def _grow(self, group: int, num_blocks: int) -> int:
        """One more slab of the usual size, near the limit a smaller one: hot windows need room too.

        Returns its number of blocks.
        """
        block_bytes = self.geometries[group].block_bytes
        usual = max(1, min(64, self._slab_bytes // block_bytes))
        if self.limit_bytes is not None:
            least = min(num_blocks, usual)
            if self._left_bytes() < least * block_bytes:
                self.pack(but=group)  # free places of this group would have been taken
            left = self._left_bytes() // block_bytes
            if left < least:
                raise PoolFull((least - left) * block_bytes)
            usual = min(usual, max(num_blocks, left // 4))
        storage = Storage(self.geometries[group], usual, BLOCK_TOKENS, self.device)
        self.slabs[group].append(Slab(group, storage))
        return usual

    @property
    def _slab_bytes(self) -> int:
        """Groups cannot use each other's free places: what one of them may waste is a small part of
        the limit.
        """
        if self.limit_bytes is None or len(self.geometries) == 1:
            return SLAB_BYTES
        return min(SLAB_BYTES, self.limit_bytes // SLABS_AT_LIMIT)

    def _left_bytes(self) -> int:
        assert self.limit_bytes is not None
        return max(0, self.limit_bytes - self.device_bytes - self.hot_reserve_bytes)

    def _free_place(self, group: int, after: Block | None) -> tuple[Slab, int]:
        if after is not None and after.index + 1 in after.slab.free:
            return after.slab, after.index + 1
        slab = max(self.slabs[group], key=lambda one: len(one.free))
        return slab, min(slab.free)

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
            self._free(block.slab, block.index)

    def _free(self, slab: Slab, index: int) -> None:
        slab.free.add(index)
        if slab.is_empty:
            self.slabs[slab.group].remove(slab)

    # --- moving together --------------------------------------------------------------------------

    @torch.inference_mode()
    def pack(self, but: int | None = None) -> int:
        """Moves blocks out of slabs where those of the same group have places for them, so that
        emptied slabs go back to the device. Allocates nothing. Returns the bytes given back.

        Not during a forward, which reads blocks where they lay. `but`: a group to leave alone.
        """
        before = self.slab_bytes
        held = self._blocks_by_slab()
        for group, slabs in enumerate(self.slabs):
            for slab in sorted(slabs, key=lambda one: one.num_blocks - len(one.free)):
                num_used = slab.num_blocks - len(slab.free)
                room = self.num_free_blocks(group) - len(slab.free)
                # A place whose block is not sealed is being written to: it stays.
                if group != but and num_used <= room and num_used == len(held[slab]):
                    for block in sorted(held[slab], key=lambda one: one.depth):
                        held[self._move(block)].append(block)
        return before - self.slab_bytes

    def _move(self, block: Block) -> Slab:
        """Into the fullest other slab with a free place; returns that."""
        slab, index = block.slab, block.index
        others = [one for one in self.slabs[block.group] if one is not slab and one.free]
        target = min(others, key=lambda one: len(one.free))
        place = min(target.free)
        copy_tokens(slab.storage, index, 0, target.storage, place, 0, BLOCK_TOKENS)
        target.free.remove(place)
        block.slab, block.index = target, place
        self.num_moved += 1
        self._free(slab, index)
        return target

    def _blocks_by_slab(self) -> dict[Slab, list[Block]]:
        held: dict[Slab, list[Block]] = {slab: [] for slabs in self.slabs for slab in slabs}
        for block in self.index.all():
            held[block.slab].append(block)
        return held

    # --- hot windows -----------------------------------------------------------------------------

    def new_hot(self, group: int, num_tokens: int) -> Storage:
        """Memory for the newest tokens of one sequence. Raises PoolFull."""
        needed = num_tokens * self.geometries[group].bytes_per_token
        if self.limit_bytes is not None and self.device_bytes + needed > self.limit_bytes:
            self.pack()
            short = self.device_bytes + needed - self.limit_bytes
            if short > 0:
                raise PoolFull(short, for_hot=True)
        storage = Storage(self.geometries[group], 1, num_tokens, self.device)
        self.hot_bytes += storage.nbytes
        return storage

    def free_hot(self, storage: Storage) -> None:
        self.hot_bytes -= storage.nbytes

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
        for storage in tail.storages:
            self.free_hot(storage)

    # --- giving up what is idle -------------------------------------------------------------------

    def drop_idle(self, needed_bytes: int) -> tuple[int, int]:
        """Frees idle memory, oldest first and leaves before their parents, until `needed_bytes`
        are free for blocks.

        Returns the number of blocks dropped and the bytes freed (free places, or given back).
        """
        num_blocks, freed = 0, self._drop_tails(needed_bytes)
        idle = [block for block in self.index.all() if block.ref_count == 0]
        for block in sorted(idle, key=lambda one: (one.last_used, -one.depth)):
            if freed >= needed_bytes:
                break
            self._drop(block)
            freed += self.geometries[block.group].block_bytes
            num_blocks += 1
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
            if len(slab.free) + sum(b.ref_count == 0 for b in blocks) == slab.num_blocks
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
            self.pack()
        return num_blocks, before - self.device_bytes

    def _drop_tails(self, needed_bytes: int) -> int:
        freed = 0
        for tail in sorted(self.index.tails, key=lambda one: one.last_used):
            if freed < needed_bytes:
                freed += sum(storage.nbytes for storage in tail.storages)
                self.drop_tail(tail)
        return freed

    def _drop(self, block: Block) -> None:
        self.index.remove(block)
        self._free(block.slab, block.index)

    def check_integrity(self, held: int | None = None) -> None:
        """Raises AssertionError unless free + idle + live = all places; `held`: live blocks that
        should be.
        """
        sealed = list(self.index.all())
        for group, slabs in enumerate(self.slabs):
            places = {(id(slab), i) for slab in slabs for i in range(slab.num_blocks)}
            free = {(id(slab), i) for slab in slabs for i in slab.free}
            used = {(id(b.slab), b.index) for b in sealed if b.group == group}
            assert free | used <= places
            assert not free & used
            assert len(used) == sum(1 for b in sealed if b.group == group), (
                "two blocks in one place"
            )
            live = (
                len(places)
                - len(free)
                - sum(1 for b in sealed if b.group == group and b.ref_count == 0)
            )
            assert live >= 0
            assert held is None or live == held, (group, live, held)
        assert all(block.ref_count >= 0 for block in sealed)
        assert self.hot_bytes >= self.idle_tail_bytes
