"""Reads texts before anything is asked about them, while nothing is asked at all: a document that
was just dropped is in the cache when the first question comes.

One chunk at a time, and whoever wants the thread has it after that chunk. It takes no more than
what is free beside all that is held, so that nothing is given up for it, and only where the whole
text has room; else it waits. What was read is idle from the start: the next question finds it, and
what an answer needs is taken from it as from any other. Knows no document: texts are ids here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvchat.device.oom import release
from kvchat.engine.detokenize import Detokenizer
from kvchat.engine.events import Priority, Request
from kvchat.engine.reply import Reply
from kvchat.kvcache.pool import PoolFull

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

CHUNK_TOKENS = 256
"""Shorter than a question's: the longest that a person has to wait for it."""
MOST_FAILURES = 3
Stage = Literal["waiting", "reading", "no_room", "done"]


@dataclass(slots=True)
class Ahead:
    """A text to be read, and how far it is. `chat` labels what is kept of it on disk."""

    chat: str
    token_ids: tuple[int, ...]
    done_tokens: int = 0
    stage: Stage = "waiting"


class ReadingAhead:
    """`want`, `drop` and `of` may be called by any thread; all else belongs to the one that runs
    the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._texts: dict[str, Ahead] = {}
        self._num_failures = 0

    def want(self, chat: str, token_ids: tuple[int, ...]) -> None:
        """In the place of what was wanted for that chat. Models with layers of the library's own
        keep one text only: there nothing is read ahead.
        """
        if self._engine.local.has_library_layers or not token_ids:
            return
        with self._lock:
            known = self._texts.get(chat)
            if known is None or known.token_ids != token_ids:
                self._texts[chat] = Ahead(chat, token_ids)

    def drop(self, chat: str) -> None:
        with self._lock:
            self._texts.pop(chat, None)

    def of(self, chat: str) -> Ahead | None:
        """How far the text of a chat is; None where none is wanted."""
        return self._texts.get(chat)

    def go_on(self, is_wanted: Callable[[], bool]) -> bool:
        """Reads a chunk, unless somebody wants the thread. Whether there is more to be read at
        once. Raises what a step raises: then call `failed`.
        """
        with self._lock:
            texts = [one for one in self._texts.values() if one.stage != "done"]
        if self._num_failures >= MOST_FAILURES:
            return False
        for one in texts:
            if is_wanted():
                return False
            if self._has_room(one):
                self._read_chunk(one)
                return True
            one.stage = "no_room"
        return False

    def failed(self) -> None:
        """After an error, outside of the `except` block: it is tried a few times more."""
        self._num_failures += 1
        release(self._engine.loaded.device)

    def _has_room(self, text: Ahead) -> bool:
        """Whether the rest of the text fits beside all that is held, idle or not."""
        engine, num_tokens = self._engine, len(text.token_ids)
        now, costs, pool = engine.room.snapshot(), engine.costs, engine.pool
        chunk = self._chunk_tokens()
        if text.stage != "reading":
            text.done_tokens = pool.match(text.token_ids).num_tokens
        missing = costs.blocks_bytes(num_tokens, chunk) - costs.blocks_bytes(
            text.done_tokens, chunk
        )
        needed = missing + costs.hot_bytes(num_tokens, chunk) + costs.activations(chunk, num_tokens)
        free = now.allowed_bytes - now.own_bytes + pool.free_block_bytes
        return needed <= free

    def _chunk_tokens(self) -> int:
        return min(CHUNK_TOKENS, self._engine.limits.prefill_chunk)

    def _read_chunk(self, text: Ahead) -> None:
        engine, ids, chunk = self._engine, text.token_ids, self._chunk_tokens()
        begun = text.stage in ("waiting", "no_room")
        text.stage = "reading"
        request = Request(ids, (), 1, chunk, priority=Priority.BACKGROUND, chat=text.chat)
        reply = Reply(request, Detokenizer(engine.loaded.tokenizer, ()), 0.0, chunk)
        engine.room.set_limit(reply, chunk)
        if begun and engine.disk is not None:
            engine.disk.restore(ids, text.chat)
        try:
            opened = engine.local.open(ids, chunk)
        except PoolFull:
            text.stage = "no_room"
            return
        kept = False
        try:
            start = opened.num_cached
            engine.local.step(opened, ids[start : start + chunk])
            kept = True
            text.done_tokens = opened.num_cached
            if text.done_tokens >= len(ids):
                text.stage = "done"
                if engine.disk is not None:
                    engine.disk.keep(text.chat, opened.sequence)
        except PoolFull:
            text.stage = "no_room"
        finally:
            engine.remember(text.chat, opened)
            engine.local.close(opened)
        if kept:
            self._num_failures = 0
