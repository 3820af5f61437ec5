"""What of a chat can be read before its next question: the system text, the documents that will be
read whole, the turns so far. Told to the engine as soon as a document was read or chosen anew.

Decides as the question will (`bring.decide`), so that what is read ahead is what the prompt begins
with. Nothing is read where no document is to be read whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from kvchat.chat.attached import Attached, attached
from kvchat.chat.bring import Decided, Room, decide
from kvchat.chat.shelf import Shelf
from kvchat.chat.template import ChatMessage, render
from kvchat.chat.told import told_of_branch
from kvchat.documents.fence import fence_document
from kvchat.errors import KVChatError
from kvchat.settings import Settings
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

logger = logging.getLogger(__name__)

QUESTION_TOKENS = 32  # a short one, with what the template writes around it
_TURN_S, _LONGEST_END_S = 0.5, 10.0
_MOST_AGAIN = 8  # chats
# No question begins like both: what their prompts share is there before any.
_QUESTIONS = ("A", "9")


class AheadOfQuestions:
    """`engine` gives the one that runs, None while there is none. Calls return at once."""

    def __init__(
        self,
        store: Store,
        shelf: Shelf,
        engine: Callable[[], Engine | None],
        settings: Callable[[], Settings],
        is_busy: Callable[[str], bool],
    ) -> None:
        self._store, self._shelf = store, shelf
        self._engine, self._settings, self._is_busy = engine, settings, is_busy
        self._closing = threading.Event()
        self._looked_at: dict[str, None] = {}  # the one that changed last at the end
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="kvchat-ahead")

    def close(self) -> None:
        """Waits for what is being looked at, but not for ever."""
        if self._closing.is_set():
            return
        self._closing.set()
        ended = self._planner.submit(lambda: None)
        self._planner.shutdown(wait=False)
        wait_for([ended], _LONGEST_END_S)

    def look(self, chat: str) -> None:
        """Something of the chat's documents changed. Their text is waited for elsewhere."""
        self._looked_at.pop(chat, None)
        self._looked_at[chat] = None
        self._submit(chat, None)

    def look_again(self, engine: Engine) -> None:
        """Another model runs: what was read ahead for the one before is to be read by it."""
        for chat in list(self._looked_at)[-_MOST_AGAIN:]:
            self._submit(chat, engine)

    def _submit(self, chat: str, engine: Engine | None) -> None:
        with suppress(RuntimeError):  # it was closed meanwhile
            self._planner.submit(self._looked, chat, engine)

    def drop(self, chat: str) -> None:
        """A question comes: what was read is there for it."""
        engine = self._engine()
        if engine is not None and engine.ahead is not None:
            engine.ahead.drop(chat)

    def progress(self, chat: str) -> dict[str, Any] | None:
        """`{"stage", "done", "of"}` in tokens; None where nothing of the chat is to be read."""
        engine = self._engine()
        text = engine.ahead.of(chat) if engine is not None and engine.ahead is not None else None
        if text is None:
            return None
        return {"stage": text.stage, "done": text.done_tokens, "of": len(text.token_ids)}

    def _looked(self, chat: str, engine: Engine | None) -> None:
        """`engine`: the one that is about to run; else the one that runs."""
        if self._closing.is_set():
            return
        try:
            there = self._store.chat_documents(chat)
            until_s = time.monotonic() + _TURN_S
            for one in there:
                if not self._shelf.settle(
                    self._shelf.reading(one.document, one.name), self._closing, until_s
                ):
                    self._submit(chat, engine)  # others wait, too
                    return
            read = [one.document for one in there if self._shelf.has_text(one.document, one.name)]
            engine = engine or self._engine()
            if engine is None or engine.ahead is None or self._closing.is_set():
                return
            if self._shelf.meanings is not None:
                for document in read:
                    self._shelf.meanings.want(document, self._shelf.passages(document))
            ids = self._shared_ids(chat, engine)
            if ids and not self._is_busy(chat):
                engine.ahead.want(chat, ids)
            else:
                engine.ahead.drop(chat)
        except KVChatError:  # the chat, or a document, is gone by now
            self.drop(chat)
        except Exception:
            logger.exception("what could be read ahead is not known")

    def _shared_ids(self, chat: str, engine: Engine) -> tuple[int, ...]:
        """What the prompts of any two questions begin with; empty where no document is whole."""
        there = attached(self._store, chat)
        room = room_next(engine)
        decided = decided_next(there, self._shelf, self._settings(), room)
        if all(one.mode != "whole" for one in decided):
            return ()
        modes = {one.document.document: (one.mode, one.reason or "") for one in decided}
        there = replace(there, decided={**there.decided, **modes})
        told = told_of_branch(self._store, chat, self._shelf, there)
        brought = [
            fence_document(self._shelf.document(one.document, one.name), there.left_of(one))
            for one in there.whole()
            if not one.leading and one.turn is None
        ]
        ids = [
            render(
                engine.loaded.tokenizer,
                engine.loaded.chat_template,
                told.system,
                told.documents,
                [*told.messages, ChatMessage("user", "\n\n".join([*brought, question]), "")],
                date=told.date,
            ).token_ids
            for question in _QUESTIONS
        ]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(*ids, strict=False))
        return tuple(one for one, _ in same)


def room_next(engine: Engine) -> Room:
    """For what the next question brings along, if it is a short one."""
    return Room(engine.fits().tokens, QUESTION_TOKENS)


def decided_next(there: Attached, shelf: Shelf, settings: Settings, room: Room) -> list[Decided]:
    """How the documents that were read will be read for the next question, in that room."""
    read = [one for one in there.documents if shelf.is_read(one.document)]
    return decide(there, read, shelf, settings, room)
