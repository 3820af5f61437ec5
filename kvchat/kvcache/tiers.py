"""The disk tier: what was computed outlives the program, and is loaded instead of read again.

`keep` notes a text after its reply; `save` copies the next piece of it to the host's memory, and a
thread of its own stores that in the disk's formats and writes it. `restore` brings back what the
disk has of a prompt beyond what the pool still has, as idle blocks, so that a sequence finds it as
it finds any other. Blocks on disk take no part in attention. Idea of naming stored runs by the
chain of prefix hashes: vLLM's and exllamav3's tiers.

Nothing here is needed for an answer: a disk that is full or fails costs a line in the log.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass

import torch

from kvchat.device.oom import is_out_of_memory
from kvchat.kvcache.blocks import (
    FP,
    Block,
    HotWindow,
    chain,
    chain_key,
    copy_tokens,
)
from kvchat.kvcache.disk import KVFolder
from kvchat.kvcache.kv_file import (
    Damaged,
    Header,
    Stored,
    digest_of,
    model_name,
    read_header,
    write_file,
)
from kvchat.kvcache.kv_table import KVTable
from kvchat.kvcache.pieces import Copied, NotedText, Piece, in_formats
from kvchat.kvcache.pool import Pool
from kvchat.kvcache.restore import Loading
from kvchat.kvcache.sequence import Sequence
from kvchat.kvcache.writer import Writer
from kvchat.memory.formats import BLOCK_TOKENS, FORMATS, LEAST, FormatPair, lower_of

logger = logging.getLogger(__name__)

INT8 = FormatPair(FORMATS["int8"], FORMATS["int8"])
PIECE_BYTES = 32 * 1024**2  # copied at a time: some 20 ms of the thread that computes
MOST_PIECES = 2  # copied but not yet written
MOST_TEXTS = 4  # noted but not yet copied


@dataclass(frozen=True, slots=True)
class DiskPlace:
    """Where a model's files lie. `weights` stands for what the model's weights are."""

    folder: KVFolder
    weights: bytes


@dataclass(frozen=True, slots=True)
class Restored:
    """What came from the disk: tokens that are now in the pool, bytes as they lie there, seconds,
    the formats that they lie in.
    """

    num_tokens: int
    num_bytes: int
    s: float
    formats: tuple[FormatPair, ...]


class DiskTier:
    """The files of one model. `keep`, `save`, `restore` and `close` belong to the thread that owns
    the pool; `forget` and the size to any.

    `quota_bytes` 0: nothing is written or read. Raises OSError where the folder cannot be made.
    """

    def __init__(self, pool: Pool, place: DiskPlace) -> None:
        self._pool = pool
        self._folder = place.folder
        self.quota_bytes = 0
        self.formats = INT8
        self.removed: list[str] = []  # damaged files, not yet told of
        self._model = model_name(pool.index.root + place.weights, pool.geometries)
        self._table = KVTable()
        self._going: set[tuple[bytes, int]] = set()
        self._texts: deque[NotedText] = deque()
        self._asked: tuple[str, int] = ("", 0)
        self._writer = Writer()
        for name in self._folder.open(self._model):
            self._look_at(name)
        self._num_bytes = self._folder.num_bytes()

    def _look_at(self, name: str) -> None:
        try:
            header = read_header(self._folder.path, name)
            groups = range(len(self._pool.geometries))
            if header.model != self._model or any(c.group not in groups for c in header.copies):
                raise Damaged
        except Damaged:
            self._remove_damaged(name)
        except OSError as error:
            logger.warning("a KV file cannot be read: %s", error)
        else:
            self._table.add(header)

    def _remove_damaged(self, name: str) -> None:
        logger.warning("removed a KV file that is not what its name says: %s", name)
        self._table.remove([name])
        self._folder.remove([name])
        self.removed.append(name)

    @property
    def model(self) -> str:
        """The folder of its files, which no other model or precision reads."""
        return self._model

    @property
    def num_bytes(self) -> int:
        """Of all KV files, as of the newest change."""
        return self._num_bytes

    def forget(self, chat: str, *, goes_on: bool = False) -> None:
        """Removes the files that only this chat needs, and what is still to be written for it.
        `goes_on`: it lost a turn only; what is answered from now on is kept again.
        """
        self._table.remove(self._folder.forget(chat, goes_on=goes_on))
        self._num_bytes = self._folder.num_bytes()

    def close(self, timeout_s: float) -> None:
        """Writes what was kept, as far as the time allows."""
        until = time.monotonic() + timeout_s
        while self.save() and time.monotonic() < until:
            time.sleep(0.005)
        self._writer.close(max(0.0, until - time.monotonic()))

    # --- to the disk ------------------------------------------------------------------------------

    @torch.inference_mode()
    def keep(self, chat: str, sequence: Sequence) -> None:
        """Notes a text to be saved, and copies its newest tokens. Without memory for that it is
        not kept.
        """
        if self.quota_bytes:
            self._unless_short(lambda: self._note(chat, sequence))

    def _unless_short(self, do: Callable[[], None]) -> bool:
        """False where memory ran out, which costs a line in the log."""
        try:
            do()
            return True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            why = str(error)
        logger.warning("no memory to keep KV on disk: %s", why)
        return False

    def _note(self, chat: str, sequence: Sequence) -> None:
        asked, edition = self._asked
        if asked != chat:
            edition = self._folder.edition(chat)
        num = sequence.num_whole
        keys, ids, tail = tuple(sequence.keys), tuple(sequence.token_ids), None
        if num == len(keys):
            tail = self._tail_of(chat, edition, sequence)
        else:  # what comes after an evicted block is nobody else's
            keys, ids = keys[:num], ids[: num * BLOCK_TOKENS]
        self._texts.append(NotedText(chat, edition, keys, ids, sequence.storing.sink_tokens, tail))
        while len(self._texts) > MOST_TEXTS:
            self._texts.popleft()

    def _tail_of(self, chat: str, edition: int, sequence: Sequence) -> Piece | None:
        num, depth = sequence.num_hot, len(sequence.keys)
        if not num:
            return None
        parent = sequence.keys[-1] if depth else self._pool.index.root
        ids = tuple(sequence.token_ids[sequence.start :])
        copies = []
        for group, geometry in enumerate(self._pool.geometries):
            hot = HotWindow(geometry, num, torch.device("cpu"))
            copy_tokens(sequence.hot_views(group, 0, num), 0, hot, 0, num)
            data = hot.tensor.flatten().view(torch.uint8)
            copies.append(Copied(0, group, FP, sequence.over, FP, data))
        key = chain_key(parent, ids)
        return Piece(chat, edition, parent, depth, (key,), (ids,), tuple(copies), num)

    @torch.inference_mode()
    def save(self) -> bool:
        """Copies the next piece, if the thread that writes is not behind. True while there is more
        to do.
        """
        if not self._texts:
            return False
        text = self._texts[0]
        if self._writer.num_waiting < MOST_PIECES:
            done = self._unless_short(lambda: self._save_piece(text))
            if not done and self._texts and self._texts[0] is text:
                self._texts.popleft()
        return bool(self._texts)

    def _save_piece(self, text: NotedText) -> None:
        if text.edition != self._folder.edition(text.chat):
            self._texts.popleft()
        elif (piece := self._next_piece(text)) is not None:
            self._post(piece)
        else:
            self._texts.popleft()
            if text.tail is not None:
                self._post(text.tail)
            self._writer.post(lambda: self._finish(text))

    def _post(self, piece: Piece) -> None:
        """What is on its way is not copied again; told apart by name and group."""
        going = {(piece.keys[one.place], one.group) for one in piece.copies}
        self._going |= going

        def store() -> None:
            try:
                self._store(piece)
            finally:
                self._going -= going

        self._writer.post(store)

    def _next_piece(self, text: NotedText) -> Piece | None:
        """Blocks of the text that follow each other and are not on the disk yet."""
        first, num_bytes = text.next, 0
        copies: list[Copied] = []
        while text.next < len(text.keys) and num_bytes < PIECE_BYTES:
            found = self._missing(text, text.next)
            if found is None:
                text.next = len(text.keys)
                break
            if not found and copies:
                break
            if not copies:
                first = text.next
            for block, wanted in found:
                data = block.memory.to("cpu", copy=True)
                place = text.next - first
                # As Pool.requantize has it: what is stored anew counts as made over what it was.
                over = block.over if wanted == block.pair else lower_of(block.over, block.pair)
                copies.append(Copied(place, block.group, block.pair, over, wanted, data))
                num_bytes += block.nbytes
            text.next += 1
        if not copies:
            return None
        stop = first + copies[-1].place + 1
        parent = text.keys[first - 1] if first else self._pool.index.root
        ids = tuple(text.piece_ids(i) for i in range(first, stop))
        keys = text.keys[first:stop]
        return Piece(text.chat, text.edition, parent, first, keys, ids, tuple(copies))

    def _missing(self, text: NotedText, i: int) -> list[tuple[Block, FormatPair]] | None:
        """Copies of a name to be written, with the formats they get; None where the pool has
        dropped it, so that what follows is of no use.
        """
        found = []
        key, find = text.keys[i], self._pool.index.find
        for group, geometry in enumerate(self._pool.geometries):
            ids, stored = text.piece_ids(i), geometry.served(self.formats)
            # A better copy on the host serves before a lower one on the device.
            block = find(key, group, ids, stored) or find(key, group, ids, LEAST)
            known = self._table.find(key, group, LEAST)
            if block is None:
                if geometry.window is None and known is None:
                    return None
                continue
            wanted = block.pair
            if i * BLOCK_TOKENS >= text.sink_tokens:
                wanted = lower_of(block.pair, stored)
            has = known is not None and lower_of(known[1].pair, known[1].over).at_least(
                lower_of(wanted, block.over)
            )
            if not has and (key, group) not in self._going:
                found.append((block, wanted))
        return found

    def _store(self, piece: Piece) -> None:
        """On the thread that writes."""
        stored, data = [], {}
        for one in piece.copies:
            geometry = self._pool.geometries[one.group]
            packed = one.data
            if one.wanted != one.pair:
                packed = in_formats(geometry, one.data, one.pair, one.wanted)
            about = one.group, one.wanted, one.over
            digest = digest_of(self._model, piece.keys[one.place], about, packed)
            stored.append(Stored(one.place, one.group, one.wanted, one.over, digest))
            data[stored[-1].tensor] = packed
        header = Header(
            self._model, piece.parent, piece.depth, piece.keys, tuple(stored), piece.tail_tokens
        )
        if sum(packed.nbytes for packed in data.values()) > self.quota_bytes:
            return
        chat = piece.chat, piece.edition
        if self._folder.write(
            header.name, chat, lambda path: write_file(path, header, piece.ids, data)
        ):
            self._table.add(header)
        self._table.remove(self._folder.shrink(self.quota_bytes))
        self._num_bytes = self._folder.num_bytes()

    def _finish(self, text: NotedText) -> None:
        """All of the text is written: its chat needs these files, and no tail that it outgrew."""
        if text.edition != self._folder.edition(text.chat):
            return
        files = self._table.files_of(text.keys)
        outgrown = []
        for parent in (self._pool.index.root, *text.keys):
            for name, header in self._table.tails_after(parent):
                if text.tail is not None and header.keys == text.tail.keys:
                    files.append(name)
                elif self._is_part(header, text):
                    outgrown.append(name)
        self._table.remove(outgrown)
        self._folder.remove(outgrown)
        self._used(text.chat, files)
        self._num_bytes = self._folder.num_bytes()

    def _is_part(self, header: Header, text: NotedText) -> bool:
        start = header.depth * BLOCK_TOKENS
        ids = text.token_ids[start : start + header.tail_tokens]
        return chain_key(header.parent, ids) == header.keys[0]

    # --- from the disk ----------------------------------------------------------------------------

    @torch.inference_mode()
    def restore(self, token_ids: Ids[int], chat: str = "") -> Restored | None:
        """Brings into the pool what the disk has of a prompt beyond what the pool has, as far as
        its limit allows; None where that is nothing. Damaged files are removed (`removed`).
        """
        self._asked = chat, self._folder.edition(chat)
        if not self.quota_bytes or not len(self._table):
            return None
        began = time.perf_counter()
        before = self._pool.match(token_ids).num_tokens
        loading = Loading(self._pool, self._table, self._folder.path, token_ids)
        loading.run(before)
        self._table.remove(loading.gone)
        for name in loading.damaged:
            self._remove_damaged(name)
        if not loading.num_bytes:
            return None
        self._writer.post(lambda: self._used(chat, loading.files))
        gained = self._pool.match(token_ids).num_tokens - before
        s = time.perf_counter() - began
        formats = tuple(sorted(loading.formats, key=str))
        return Restored(max(0, gained), loading.num_bytes, s, formats)

    def num_stored(self, token_ids: Ids[int]) -> int:
        """Leading tokens of which whole blocks are stored, as layers without a window see them; to
        be loaded where there is room. Any thread may ask.
        """
        if not self.quota_bytes or not len(self._table):
            return 0
        geometries, floor, found = self._pool.geometries, self._pool.storing.floor, 0
        groups = [g for g, one in enumerate(geometries) if one.window is None]
        for key, _ in chain(self._pool.index.root, token_ids):
            if any(self._table.find(key, g, floor) is None for g in groups or [0]):
                break
            found += BLOCK_TOKENS
        return found

    def _used(self, chat: str, files: list[str]) -> None:
        self._folder.note(chat, files)
        self._folder.use(files)
