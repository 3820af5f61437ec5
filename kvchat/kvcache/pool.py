"""The memory of the KV cache: slabs of blocks and hot windows, under one byte limit.

Every byte of KV on the device is allocated here, so what is shown is counted, not computed. The
pool never gives anything up by itself: it raises PoolFull, and the planner decides what to do. Idea
of a ref-counted block pool with chained keys: PagedAttention (vLLM), nano-vllm.
"""

from itertools import count

import torch

from kvchat.kvcache.blocks import Block, Geometry, Slab, Storage
from kvchat.kvcache.prefix_index import IdleTail, PrefixIndex
from kvchat.memory.footprint import BLOCK_TOKENS

SLAB_BYTES = 32 * 1024**2
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
                self._free(block)
            self.slabs[group] = [slab for slab in self.slabs[group] if not slab.is_empty]
            raise
        return taken

    def _grow(self, group: int, num_blocks: int) -> int:
        """One more slab of the usual size, near the limit a smaller one: hot windows need room too.

        Returns its number of blocks.
        """
        block_bytes = self.geometries[group].block_bytes
        usual = max(1, min(64, SLAB_BYTES // block_bytes))
        if self.limit_bytes is not None:
            hot = max(self.hot_bytes, self.hot_floor_bytes + self.idle_tail_bytes)
            left = max(0, self.limit_bytes - self.slab_bytes - hot) // block_bytes
            if left < min(num_blocks, usual):
                raise PoolFull((min(num_blocks, usual) - left) * block_bytes)
            usual = min(usual, max(num_blocks, left // 4))
        storage = Storage(self.geometries[group], usual, BLOCK_TOKENS, self.device)
        self.slabs[group].append(Slab(group, storage))
        return usual

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
            self._free(block)

    def _free(self, block: Block) -> None:
        block.slab.free.add(block.index)
        if block.slab.is_empty:
            self.slabs[block.group].remove(block.slab)

    # --- hot windows -----------------------------------------------------------------------------

    def new_hot(self, group: int, num_tokens: int) -> Storage:
        """Memory for the newest tokens of one sequence. Raises PoolFull."""
        needed = num_tokens * self.geometries[group].bytes_per_token
        if self.limit_bytes is not None and self.device_bytes + needed > self.limit_bytes:
            raise PoolFull(self.device_bytes + needed - self.limit_bytes, for_hot=True)
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
        """Frees idle hot windows, then whole slabs that hold nothing but idle blocks, the least
        recently used first, until `needed_bytes` went back to the device. Returns as `drop_idle`.
        """
        num_blocks, freed = 0, self._drop_tails(needed_bytes)
        held: dict[Slab, list[Block]] = {}
        for block in self.index.all():
            held.setdefault(block.slab, []).append(block)
        idle = {
            slab: blocks
            for slab, blocks in held.items()
            if len(slab.free) + sum(b.ref_count == 0 for b in blocks) == slab.num_blocks
        }
        for slab, blocks in sorted(idle.items(), key=lambda one: max(b.last_used for b in one[1])):
            if freed >= needed_bytes:
                break
            freed += slab.storage.nbytes
            num_blocks += len(blocks)
            for block in blocks:
                self._drop(block)
        return num_blocks, freed

    def _drop_tails(self, needed_bytes: int) -> int:
        freed = 0
        for tail in sorted(self.index.tails, key=lambda one: one.last_used):
            if freed < needed_bytes:
                freed += sum(storage.nbytes for storage in tail.storages)
                self.drop_tail(tail)
        return freed

    def _drop(self, block: Block) -> None:
        self.index.remove(block)
        self._free(block)

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
