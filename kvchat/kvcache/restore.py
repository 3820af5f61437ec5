"""From the disk into the pool: which stored blocks a prompt begins with, and loading them.

Loaded blocks are idle like any that no text holds: a sequence finds them by the prefix index. Only
free room is used: where the pool's limit ends the rest is left on the disk. Knows no thread.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Ids
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvchat.device.oom import is_out_of_memory
from kvchat.kvcache.blocks import Block, HotWindow, chain
from kvchat.kvcache.kv_file import Damaged, KVFileReader, Stored
from kvchat.kvcache.kv_table import KVTable
from kvchat.kvcache.pool import Pool, PoolFull
from kvchat.kvcache.prefix_index import IdleTail, num_common
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair


@dataclass(frozen=True, slots=True)
class _Tail:
    file: str
    depth: int
    token_ids: tuple[int, ...]
    common: int

    @property
    def reach(self) -> int:
        return self.depth * BLOCK_TOKENS + self.common


class Loading:
    """One prompt. After `run`: `num_bytes` loaded as they lie in the pool, the `formats` that they
    lie in, the `files` that they came from, and those found `damaged` or `gone`.
    """

    def __init__(self, pool: Pool, table: KVTable, folder: Path, token_ids: Ids[int]) -> None:
        self.num_bytes = 0
        self.formats: set[FormatPair] = set()
        self.files: list[str] = []
        self.damaged: list[str] = []
        self.gone: list[str] = []
        self._pool, self._table, self._folder = pool, table, folder
        self._floor, self._hot_tokens = pool.storing.floor, pool.storing.hot_tokens
        self._usable = token_ids[:-1]
        self._keys: list[bytes] = []
        self._pieces: list[tuple[int, ...]] = []
        self._readers: dict[str, KVFileReader] = {}
        self._open = ExitStack()

    def run(self, num_held: int) -> None:
        """Loads what reaches beyond the `num_held` tokens that the pool has already."""
        with self._open:
            try:
                self._walk()
                self._load(num_held)
            except PoolFull:
                return
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            finally:
                self._readers.clear()

    # --- what there is ----------------------------------------------------------------------------

    def _walk(self) -> None:
        """Names of the leading blocks that all groups without a window have, here or there."""
        geometries = self._pool.geometries
        full = [g for g, geometry in enumerate(geometries) if geometry.window is None]
        for key, piece in chain(self._pool.index.root, self._usable):
            self._keys.append(key)
            self._pieces.append(piece)
            if not all(self._has(len(self._keys) - 1, group) for group in full):
                del self._keys[-1], self._pieces[-1]
                return

    def _held(self, i: int, group: int) -> Block | None:
        return self._pool.index.find(self._keys[i], group, self._pieces[i], self._floor)

    def _has(self, i: int, group: int) -> bool:
        stored = self._table.find(self._keys[i], group, self._floor)
        return stored is not None or self._held(i, group) is not None

    def _windows_at(self, depth: int) -> Iterator[tuple[int, int]]:
        """Which blocks of which groups with a window a text of so many blocks sees."""
        for group, geometry in enumerate(self._pool.geometries):
            if geometry.window is not None:
                first = geometry.first_visible(depth * BLOCK_TOKENS) // BLOCK_TOKENS
                yield from ((i, group) for i in range(first, depth))

    def _can_stop_at(self, depth: int) -> bool:
        return all(self._has(i, group) for i, group in self._windows_at(depth))

    def _load(self, num_held: int) -> None:
        plain = self._pool.index.most_without_tail(
            self._keys, self._usable, self._floor, self._hot_tokens
        )
        while plain and not self._can_stop_at(plain):
            plain -= 1
        tail = self._best_tail()
        best = max(plain * BLOCK_TOKENS, tail.reach if tail is not None else 0)
        if best <= num_held:
            return
        with_tail = tail is not None and tail.reach == best
        # Without a tail the index leaves the newest R tokens of what it finds to be read again.
        depth = tail.depth if tail is not None and with_tail else len(self._keys)
        wanted = set(self._windows_at(tail.depth if tail is not None and with_tail else plain))
        for group, geometry in enumerate(self._pool.geometries):
            if geometry.window is None:
                wanted |= {(i, group) for i in range(depth)}
        is_whole = self._load_blocks(sorted(wanted))
        if tail is not None and with_tail:
            self._load_tail(tail, only_check=not is_whole)

    def _best_tail(self) -> _Tail | None:
        best: _Tail | None = None
        for depth, parent in enumerate([self._pool.index.root, *self._keys]):
            rest = self._usable[depth * BLOCK_TOKENS :]
            for name, header in self._table.tails_after(parent):
                if not all(one.over.at_least(self._floor) for one in header.copies):
                    continue
                reader = self._reader(name)
                if reader is None:
                    continue
                ids = tuple(reader.ids[0])
                found = _Tail(name, depth, ids, num_common(rest, ids))
                least = max(1, self._hot_tokens - BLOCK_TOKENS if depth else 0)
                if found.common < least or not self._can_stop_at(depth):
                    continue
                if best is None or found.reach > best.reach:
                    best = found
        return best

    # --- loading it -------------------------------------------------------------------------------

    def _reader(self, name: str) -> KVFileReader | None:
        """The opened file; None where it is gone or damaged. Raises OSError where memory is short:
        that says nothing of the file.
        """
        if name in self.damaged or name in self.gone:
            return None
        try:
            if name not in self._readers:
                reader = KVFileReader(self._folder, name)
                self._readers[name] = self._open.enter_context(reader)
            return self._readers[name]
        except Damaged:
            self.damaged.append(name)
        except OSError as error:
            if is_out_of_memory(error):
                raise
            self.gone.append(name)
        return None

    def _load_blocks(self, wanted: list[tuple[int, int]]) -> bool:
        """In the text's order, so that what was loaded serves wherever it ends. False: not all;
        what comes after a block that is damaged is only checked, to find all such files at once.
        """
        last: dict[int, Block] = {}
        is_whole = True
        for i, group in wanted:
            held = self._held(i, group)
            found = (
                None if held is not None else self._table.find(self._keys[i], group, self._floor)
            )
            data = self._read(group, *found) if found is not None else None
            if is_whole and found is not None and data is not None:
                held = self._take_in(i, group, *found, data, last.get(group))
            is_whole = is_whole and held is not None
            if held is not None:
                last[group] = held
        return is_whole

    def _read(self, group: int, name: str, stored: Stored) -> Tensor | None:
        """A copy's bytes; None where its file is gone or damaged."""
        reader = self._reader(name)
        try:
            return None if reader is None else reader.read(self._pool.geometries[group], stored)
        except Damaged:
            self.damaged.append(name)
            return None

    def _take_in(
        self, i: int, group: int, name: str, stored: Stored, data: Tensor, after: Block | None
    ) -> Block:
        ids = self._readers[name].ids[stored.place]
        assert tuple(ids) == self._pieces[i], "equal names, other ids"
        (block,) = self._pool.reserve(group, [stored.pair], after)
        try:
            block.memory.copy_(data)
            block.over = stored.over
            parent = self._keys[i - 1] if i else self._pool.index.root
            self._pool.seal(block, self._keys[i], parent, self._pieces[i], i)
        finally:
            self._pool.release(block)
        self._count(name, stored, block.nbytes)
        return block

    def _load_tail(self, tail: _Tail, *, only_check: bool) -> None:
        reader = self._reader(tail.file)
        copies = reader.header.copies if reader is not None else ()
        read = [(one, self._read(one.group, tail.file, one)) for one in copies]
        found = [(one, data) for one, data in read if data is not None]
        if reader is None or only_check or len(found) < len(copies):
            return
        made: list[HotWindow] = []
        try:
            for stored, data in found:
                made.append(self._pool.new_hot(stored.group, len(tail.token_ids)))
                made[-1].tensor.view(-1).view(torch.uint8).copy_(data)
        except BaseException:
            for hot in made:
                self._pool.free_hot(hot)
            raise
        start, over = tail.depth * BLOCK_TOKENS, copies[0].over
        parent = reader.header.parent
        self._pool.keep_tail(IdleTail(parent, start, tail.token_ids, tuple(made), over))
        self._count(tail.file, copies[0], sum(hot.nbytes for hot in made))

    def _count(self, name: str, stored: Stored, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.formats.add(stored.pair)
        if name not in self.files:
            self.files.append(name)
