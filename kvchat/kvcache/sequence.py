"""One text in the cache: its ids, its blocks, its hot window; and the transaction that extends it.

reserve → the forward writes only into the hot window's reserved places → commit seals what is full
and moves the lengths, last → or rollback, and nothing happened. Ranges are half-open; positions
count from 0.

      sealed blocks of 64                     hot window (capacity ≥ 64 + chunk)
    |--------|--------| ... |--------|==== committed ====|++++ reserved ++++|........|
    0        64                      start               num_cached         num_cached + num_new

What a commit seals stays where it was in the hot window until the next reserve moves the rest to
the front: every copy can fail (a full device) and be made again.

Knows no model and no planner. Not shared between threads.
"""

from collections.abc import Sequence as Ids

import torch
from torch import Tensor

from kvchat.device.oom import is_out_of_memory
from kvchat.kvcache.blocks import Block, Run, Storage, chain_key, copy_tokens
from kvchat.kvcache.pool import Pool, PoolFull
from kvchat.kvcache.prefix_index import IdleTail, Match
from kvchat.memory.footprint import BLOCK_TOKENS


class Sequence:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.token_ids: list[int] = []
        self.keys: list[bytes] = []
        self.tables: list[list[Block | None]] = [[] for _ in pool.geometries]
        self.hot: list[Storage] = []
        self.num_new = 0
        self._sealed_hot = 0
        self._reserved: list[list[Block]] = []
        self._runs: dict[int, tuple[tuple[int, int], list[Run]]] = {}
        self._addresses: dict[int, tuple[tuple[int, int, int], Tensor]] = {}

    # --- lengths ----------------------------------------------------------------------------------

    @property
    def num_cached(self) -> int:
        return len(self.token_ids)

    @property
    def start(self) -> int:
        """Where the hot window begins."""
        return len(self.keys) * BLOCK_TOKENS

    @property
    def num_hot(self) -> int:
        """Committed tokens in the hot window."""
        return self.num_cached - self.start

    # --- beginning and end ------------------------------------------------------------------------

    @classmethod
    def begin(cls, pool: Pool, token_ids: Ids[int], capacity: int) -> "Sequence":
        """A sequence that holds as much of the ids' prefix as the pool still has. Raises PoolFull.

        `capacity`: tokens of the hot window, at least 64 + the prefill chunk; less will do where
        fewer ids than that are left to be read.
        """
        sequence = cls(pool)
        match = pool.index.match(token_ids)
        for table, blocks in zip(sequence.tables, match.blocks, strict=True):
            for block in blocks:
                if block is not None:
                    pool.hold(block)
                table.append(block)
        sequence.keys = list(match.keys)
        sequence.token_ids = list(token_ids[: len(match.keys) * BLOCK_TOKENS])
        try:
            left = len(token_ids) - sequence.start
            sequence.resize_hot(min(capacity, max(BLOCK_TOKENS, left)))
            sequence._take_tail(match, token_ids)
        except BaseException:
            sequence.close(keep_tail=False)
            raise
        return sequence

    def _take_tail(self, match: Match, token_ids: Ids[int]) -> None:
        """Copies the partly matching newest tokens into the own hot window; a tail used up is let
        go.
        """
        num = match.tail_tokens
        if not num or match.tail is None:
            return
        for group in range(len(self.pool.geometries)):
            if isinstance(match.tail, IdleTail):
                source, unit = match.tail.storages[group], 0
            else:
                block = match.tail[group]
                source, unit = block.slab.storage, block.index
            copy_tokens(source, unit, 0, self.hot[group], 0, 0, num)
        self.token_ids.extend(token_ids[self.start : self.start + num])
        if isinstance(match.tail, IdleTail) and num == len(match.tail.token_ids):
            self.pool.drop_tail(match.tail)

    def resize_hot(self, capacity: int) -> None:
        """Gives the hot window room for `capacity` tokens, keeping what is committed. Raises
        PoolFull.
        """
        capacity = max(capacity, self.num_hot)
        if self.hot and self.hot[0].num_tokens == capacity:
            return
        made: list[Storage] = []
        try:
            for group in range(len(self.pool.geometries)):
                made.append(self.pool.new_hot(group, capacity))
            for old, new in zip(self.hot, made, strict=False):
                copy_tokens(old, 0, self._sealed_hot, new, 0, 0, self.num_hot)
        except BaseException:
            for storage in made:
                self.pool.free_hot(storage)
            raise
        self._free_hot()
        self.hot = made

    def close(self, *, keep_tail: bool = True) -> None:
        """Lets the blocks go idle. With `keep_tail` the newest tokens stay findable, in a small hot
        window.
        """
        self.rollback()
        for table in self.tables:
            for block in reversed(table):
                if block is not None:
                    self.pool.release(block)
            table.clear()
        self._runs.clear()
        self._addresses.clear()
        try:
            if keep_tail and self.num_hot and self.hot:
                self._keep_tail()
        finally:
            self._free_hot()

    def _free_hot(self) -> None:
        for storage in self.hot:
            self.pool.free_hot(storage)
        self.hot, self._sealed_hot = [], 0

    def shrink_hot(self, capacity: int) -> bool:
        """Gives back what the hot window has beyond `capacity`, if there is room to copy the
        rest.
        """
        try:
            self.resize_hot(capacity)
        except PoolFull:
            return False
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True

    def _keep_tail(self) -> None:
        if not self.shrink_hot(self.num_hot):
            return
        parent = self.keys[-1] if self.keys else self.pool.index.root
        tail = IdleTail(parent, self.start, tuple(self.token_ids[self.start :]), tuple(self.hot))
        self.hot = []
        self.pool.keep_tail(tail)

    # --- the transaction --------------------------------------------------------------------------

    def reserve(self, num_new: int) -> None:
        """Makes room for the next forward, for all groups or for none. Raises PoolFull."""
        assert not self._reserved, "a forward is already under way"
        needed = self.num_hot + num_new
        if not self.hot or needed > self.hot[0].num_tokens:
            self.resize_hot(needed)
        self._leave_sealed()
        try:
            for group, table in enumerate(self.tables):
                after = table[-1] if table else None
                self._reserved.append(self.pool.reserve(group, needed // BLOCK_TOKENS, after))
        except BaseException:
            self.rollback()
            raise
        self.num_new = num_new

    def _leave_sealed(self) -> None:
        """Moves what is not sealed to the hot window's front. Fewer than 64 tokens move by 64 or
        more, so nothing is read from where it is written.
        """
        if self._sealed_hot:
            for storage in self.hot:
                copy_tokens(storage, 0, self._sealed_hot, storage, 0, 0, self.num_hot)
            self._sealed_hot = 0

    def rollback(self) -> None:
        for blocks in self._reserved:
            for block in blocks:
                self.pool.release(block)
        self._reserved = []
        self.num_new = 0

    def commit(self, new_ids: Ids[int]) -> None:
        """The forward succeeded: the new tokens are in the cache, and full blocks are sealed.

        Copies first: where one fails, nothing is committed and the caller rolls back.
        """
        assert len(new_ids) == self.num_new
        pieces = self._full_pieces(new_ids)
        for i, (key, piece) in enumerate(pieces):
            for group, blocks in enumerate(self._reserved):
                if self.pool.index.find(key, group, piece) is None:
                    target = blocks[i]
                    copy_tokens(
                        self.hot[group],
                        0,
                        i * BLOCK_TOKENS,
                        target.slab.storage,
                        target.index,
                        0,
                        BLOCK_TOKENS,
                    )
        reserved, self._reserved, self.num_new = self._reserved, [], 0
        self.token_ids.extend(new_ids)
        for i, (key, piece) in enumerate(pieces):
            self._seal(key, piece, [blocks[i] for blocks in reserved])
        if pieces:
            self._sealed_hot = len(pieces) * BLOCK_TOKENS
            self._leave_windows()
            self._runs.clear()

    def _full_pieces(self, new_ids: Ids[int]) -> list[tuple[bytes, tuple[int, ...]]]:
        """The blocks that the new tokens fill: their names and ids."""
        ids = (*self.token_ids[self.start :], *new_ids)
        key = self.keys[-1] if self.keys else self.pool.index.root
        pieces = []
        for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            piece = ids[start : start + BLOCK_TOKENS]
            key = chain_key(key, piece)
            pieces.append((key, piece))
        return pieces

    def _seal(self, key: bytes, piece: tuple[int, ...], blocks: list[Block]) -> None:
        """Takes the written blocks, or their twins that were there before, into the tables."""
        parent = self.keys[-1] if self.keys else self.pool.index.root
        for group, block in enumerate(blocks):
            twin = self.pool.index.find(key, group, piece)
            if twin is None:
                self.pool.seal(block, key, parent, piece, len(self.keys))
            else:
                self.pool.release(block)
                self.pool.hold(twin)
            self.tables[group].append(twin or block)
        self.keys.append(key)

    def _leave_windows(self) -> None:
        """Lets go of a sliding layer's blocks that no later query sees; they stay findable while
        idle.
        """
        for geometry, table in zip(self.pool.geometries, self.tables, strict=True):
            first = geometry.first_visible(self.num_cached) // BLOCK_TOKENS
            for i in range(first - 1, -1, -1):
                block = table[i]
                if block is None:
                    break
                self.pool.release(block)
                table[i] = None

    # --- what attention reads ---------------------------------------------------------------------

    def runs(self, group: int) -> list[Run]:
        """The sealed blocks that the first new query sees, as runs that lie side by side."""
        first = self.pool.geometries[group].first_visible(self.num_cached)
        skip = first % BLOCK_TOKENS if first < self.start else 0
        place = (skip, self.pool.num_moved)
        known = self._runs.get(group)
        if known is None or known[0] != place:
            known = self._runs[group] = (place, self._found_runs(group, first, skip))
        return known[1]

    def _found_runs(self, group: int, first: int, skip: int) -> list[Run]:
        places: list[tuple[Storage, int, int, int]] = []
        last: Block | None = None
        for block in self.tables[group][first // BLOCK_TOKENS :]:
            assert block is not None
            follows = last is not None and block.slab is last.slab and block.index == last.index + 1
            if follows and not places[-1][3]:
                storage, start, stop, _ = places[-1]
                places[-1] = (storage, start, stop + 1, 0)
            else:
                places.append((block.slab.storage, block.index, block.index + 1, skip))
            skip = 0
            last = block
        return [Run(*place) for place in places]

    def addresses(self, group: int) -> tuple[Tensor, int]:
        """Where the sealed blocks lie that the first new query sees: int64 [n] byte addresses on
        the device, and how many leading tokens of the first block it does not see.
        """
        first = self.pool.geometries[group].first_visible(self.num_cached)
        table = self.tables[group][first // BLOCK_TOKENS :]
        place = (first // BLOCK_TOKENS, len(self.tables[group]), self.pool.num_moved)
        known = self._addresses.get(group)
        if known is None or known[0] != place:
            found = [block.slab.storage.address(block.index) for block in table if block]
            lying = torch.tensor(found, dtype=torch.int64, device=self.pool.device)
            known = self._addresses[group] = (place, lying)
        return known[1], first % BLOCK_TOKENS if first < self.start else 0

    def hot_addresses(self, group: int, start: int) -> tuple[int, int]:
        """Byte addresses of the first layer's and head's keys and values at a place of the hot
        window.
        """
        geometry, storage = self.pool.geometries[group], self.hot[group]
        place, size = self._sealed_hot + start, geometry.dtype.itemsize
        keys = storage.address(0)
        values = keys + storage.num_tokens * geometry.key_dim * size
        return keys + place * geometry.key_dim * size, values + place * geometry.value_dim * size

    def hot_views(self, group: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the hot window's places [start, stop): [layers, kv_heads, tokens,
        dim].
        """
        storage, first = self.hot[group], self._sealed_hot
        places = slice(first + start, first + stop)
        return storage.keys[0, :, :, places], storage.values[0, :, :, places]
