"""One text in the cache: its ids, its blocks, its hot window; and the transaction that extends it.

reserve → the forward writes only into the hot window's reserved places → commit seals what is full
and moves the lengths, last → or rollback, and nothing happened. Ranges are half-open; positions
count from 0.

      sealed blocks of 64                     hot window (capacity ≥ R + 64 + chunk)
    |--------|--------| ... |--------|==== committed ====|++++ reserved ++++|........|
    0        64                      start               num_cached         num_cached + num_new

R tokens stay as computed before what comes after them is sealed: 0 where blocks are sealed as they
were computed, more where they are stored in less (`Storing`).

What a commit seals stays where it was in the hot window until the next reserve moves the rest to
the front: every copy can fail (a full device) and be made again.

Knows no model and no planner. Not shared between threads.
"""

from collections.abc import Sequence as Ids

from kvchat.device.oom import is_out_of_memory
from kvchat.kvcache.blocks import (
    Block,
    HotWindow,
    chain,
    copy_tokens,
    own_name,
    read_block,
    shape_of,
    write_block,
)
from kvchat.kvcache.held import HeldText
from kvchat.kvcache.pool import Pool, PoolFull
from kvchat.kvcache.prefix_index import Holed, IdleTail, Match
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, lower_of


class Sequence(HeldText):
    """See `HeldText` for what it holds."""

    # --- beginning and end ------------------------------------------------------------------------

    @classmethod
    def begin(
        cls, pool: Pool, token_ids: Ids[int], capacity: int, *, as_sealed: bool = False
    ) -> "Sequence":
        """A sequence that holds as much of the ids' prefix as the pool still has; with `as_sealed`
        nothing that is stored in less than it would be sealed in now. Raises PoolFull.

        `capacity`: tokens of the hot window, at least R + 64 + the prefill chunk; less will do
        where fewer ids than that are left to be read.
        """
        sequence = cls(pool)
        storing = sequence.storing
        floor = storing.seal if as_sealed else storing.floor
        match = pool.index.match(token_ids, floor, storing.hot_tokens, whole=as_sealed)
        for table, blocks in zip(sequence.tables, match.blocks, strict=True):
            for block in blocks:
                if block is not None:
                    pool.hold(block)
                    sequence.over = lower_of(sequence.over, lower_of(block.pair, block.over))
                table.append(block)
        sequence.num_lost = match.lost_tokens
        sequence.keys, sequence.evicted = list(match.keys), match.places
        if match.places:
            sequence._parent = own_name(match.parent)
        sequence.token_ids = list(token_ids[: len(match.keys) * BLOCK_TOKENS])
        try:
            left = len(token_ids) - sequence.start
            capacity = min(capacity, max(storing.hot_tokens + BLOCK_TOKENS, left))
            # The tail of a text with a larger R may be longer than the hot window is otherwise.
            sequence.resize_hot(max(capacity, match.tail_tokens))
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
        # It may have been computed over other copies of the blocks than those that are held now.
        parts = (match.tail,) if isinstance(match.tail, IdleTail) else match.tail
        for part in parts:
            self.over = lower_of(self.over, part.over)
        for group, geometry in enumerate(self.pool.geometries):
            if isinstance(match.tail, IdleTail):
                hot = match.tail.hot[group]
                source = hot.keys, hot.values
            else:
                source = read_block(geometry, match.tail[group])
            copy_tokens(source, 0, self.hot[group], 0, num)
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
        made: list[HotWindow] = []
        try:
            for group in range(len(self.pool.geometries)):
                made.append(self.pool.new_hot(group, capacity))
            first = self._first_hot()
            for old, new in zip(self.hot, made, strict=False):
                copy_tokens((old.keys, old.values), first, new, 0, self.num_hot)
        except BaseException:
            for hot in made:
                self.pool.free_hot(hot)
            raise
        self._free_hot()
        self.hot = made

    def close(self, *, keep_tail: bool = True) -> None:
        """Lets the blocks go idle. With `keep_tail` the newest tokens stay findable, in a small hot
        window.
        """
        self.rollback()
        if self.evicted:
            ids = tuple(self.token_ids[: self.start])
            self.pool.keep_holed(Holed(tuple(self.keys), ids, self.evicted, self.parent))
        for table in self.tables:
            for block in reversed(table):
                if block is not None:
                    self.pool.release(block)
            table.clear()
        self._runs.clear()
        self._lists = self._no_lists()
        try:
            if keep_tail and self.num_hot and self.hot:
                self._keep_tail()
        finally:
            self._free_hot()

    def _free_hot(self) -> None:
        for hot in self.hot:
            self.pool.free_hot(hot)
        self.hot, self._sealed_hot, self._pieces_moved = [], 0, 0

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
        ids = tuple(self.token_ids[self.start :])
        tail = IdleTail(self.parent, self.start, ids, tuple(self.hot), self.over)
        self.hot = []
        self.pool.keep_tail(tail)

    # --- the transaction --------------------------------------------------------------------------

    def reserve(self, num_new: int) -> None:
        """Makes room for the next forward, for all groups or for none. Raises PoolFull."""
        assert not self._reserved, "a forward is already under way"
        self._look_again()
        needed = self.num_hot + num_new
        if not self.hot or needed > self.hot[0].num_tokens:
            self.resize_hot(needed)
        self._leave_sealed()
        num_full = self._num_full(needed)
        try:
            for group, table in enumerate(self.tables):
                after = table[-1] if table else None
                pairs = [self._pair(group, len(self.keys) + i) for i in range(num_full)]
                self._reserved.append(self.pool.reserve(group, pairs, after))
        except BaseException:
            self.rollback()
            raise
        self.num_new = num_new

    def _num_full(self, num_hot: int) -> int:
        """Blocks that so many hot tokens fill beside those that stay as computed."""
        return max(0, num_hot - self.storing.hot_tokens) // BLOCK_TOKENS

    def _pair(self, group: int, depth: int) -> FormatPair:
        return self.pool.geometries[group].served(self.storing.pair_at(depth))

    def bytes_to_come(self, num_tokens: int, prefill_chunk: int) -> int:
        """What must still be allocated for blocks until the text has so many tokens: those for
        which no slab of their size has a free place.
        """
        counts: dict[int, int] = {}
        for group, (geometry, table) in enumerate(
            zip(self.pool.geometries, self.tables, strict=True)
        ):
            # Without a window nothing but what was evicted is missing, and that counts as held.
            held = len(table) if geometry.window is None else len(table) - table.count(None)
            sealed = num_tokens - self.storing.hot_tokens
            missing = geometry.blocks_held(sealed, prefill_chunk) - held
            depths = range(len(self.keys), len(self.keys) + max(0, missing))
            for depth in depths:
                size = shape_of(geometry, self._pair(group, depth)).block_bytes
                counts[size] = counts.get(size, 0) + 1
        num_places = self.pool.on_device.num_places
        return sum(max(0, count - num_places(size)) * size for size, count in counts.items())

    def _leave_sealed(self) -> None:
        """Moves what is not sealed to the hot window's front, in pieces no longer than the way:
        none is read where it was just written. Goes on where an earlier call failed.
        """
        way, num_hot = self._sealed_hot, self.num_hot
        pieces = [(hot, at) for hot in self.hot for at in range(0, num_hot, way)] if way else []
        for hot, at in pieces[self._pieces_moved :]:
            source = (hot.keys, hot.values)
            copy_tokens(source, way + at, hot, at, min(way, num_hot - at))
            self._pieces_moved += 1
        self._sealed_hot = self._pieces_moved = 0

    def _first_hot(self) -> int:
        """Where the hot window's tokens begin; a move that failed half-way is ended before."""
        if self._pieces_moved:
            self._leave_sealed()
        return self._sealed_hot

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
                if self._twin(key, group, piece, blocks[i]) is None:
                    self._write(group, blocks[i], i * BLOCK_TOKENS)
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
        return list(chain(self.parent, ids[: self._num_full(len(ids)) * BLOCK_TOKENS]))

    def _twin(self, key: bytes, group: int, piece: tuple[int, ...], block: Block) -> Block | None:
        """A copy that is on the device already and as good as the one to be sealed."""
        twin = self.pool.index.find(key, group, piece, lower_of(block.pair, self.over))
        if twin is None or twin.tier != "device" or not twin.pair.at_least(block.pair):
            return None
        return twin

    def _write(self, group: int, block: Block, place: int) -> None:
        """Stores 64 tokens of the hot window in a block's formats."""
        hot = self.hot[group]
        tokens = slice(place, place + BLOCK_TOKENS)
        geometry = self.pool.geometries[group]
        write_block(geometry, block, hot.keys[:, :, tokens], hot.values[:, :, tokens])

    def _seal(self, key: bytes, piece: tuple[int, ...], blocks: list[Block]) -> None:
        """Takes the written blocks, or their twins that were there before, into the tables."""
        parent, self._parent = self.parent, None
        over = self.over
        for group, block in enumerate(blocks):
            twin = self._twin(key, group, piece, block)
            if twin is None:
                block.over = self.over
                self.pool.seal(block, key, parent, piece, len(self.keys))
            else:
                self.pool.release(block)
                self.pool.hold(twin)
            held = twin or block
            over = lower_of(over, lower_of(held.pair, held.over))
            self.tables[group].append(held)
        self.over = over
        self.keys.append(key)

    def _leave_windows(self) -> None:
        """Lets go of a sliding layer's blocks that no later query sees; they stay findable while
        idle.
        """
        for geometry, table in zip(self.pool.geometries, self.tables, strict=True):
            first = geometry.first_visible(self.num_cached) // BLOCK_TOKENS
            # A window shorter than R ends in the hot window: it has left all that is sealed.
            for i in range(min(first, len(table)) - 1, -1, -1):
                block = table[i]
                if block is None:
                    break
                self.pool.release(block)
                table[i] = None

    def evict(self, place: int) -> int:
        """Does without the block of that place from now on, where no window has left it already.
        Returns the bytes that became free on the device.
        """
        freed = 0
        for geometry, table in zip(self.pool.geometries, self.tables, strict=True):
            block = table[place]
            if geometry.window is None and block is not None:
                table[place] = None
                freed += self.pool.evict(block)
        self._parent = own_name(self.parent)
        self.evicted |= {place}
        self._runs.clear()
        return freed
