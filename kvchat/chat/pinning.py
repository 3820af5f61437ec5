"""Pinning turns, documents and pages, and letting go of them; what could never fit is refused at
once, before anything is kept or computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvchat.chat.ahead import QUESTION_TOKENS
from kvchat.chat.pins import apart, document_tokens, kept_turns, page_text
from kvchat.chat.shelf import Shelf
from kvchat.chat.template import ChatMessage, render
from kvchat.chat.told import message_text
from kvchat.errors import OutOfMemory, RequestError
from kvchat.planner.plan import LEAST_REPLY
from kvchat.settings import Settings
from kvchat.store.records import PinnedPages
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine


class Pinning:
    """`engine` gives the one that runs, None while it is loaded: what fits is not known then, and
    is said with the next question.
    """

    def __init__(
        self,
        store: Store,
        shelf: Shelf,
        engine: Callable[[], Engine | None],
        settings: Callable[[], Settings],
    ) -> None:
        self._store, self._shelf = store, shelf
        self._engine, self._settings = engine, settings

    def pin_turn(self, chat: str, question: str, *, pinned: bool) -> None:
        if not pinned:
            self._store.unpin(chat, question)
            return
        turns, pages = self._store.pins(chat), self._store.document_pins(chat)
        self._refuse_too_much(chat, turns | {question}, pages)
        self._store.pin(chat, question)

    def pin_document(self, chat: str, document: str, page: int | None, *, pinned: bool) -> None:
        if not pinned:
            self._store.unpin_document(chat, document, page)
            return
        if all(one.document != document for one in self._store.chat_documents(chat)):
            raise RequestError("document_gone")
        if page is not None and page_text(self._shelf, document, page) is None:
            raise RequestError("page_without_text", page=page)
        turns, pages = self._store.pins(chat), self._store.document_pins(chat)
        known = pages.get(document, frozenset())
        more = None if page is None or known is None else known | {page}
        self._refuse_too_much(chat, turns, {**pages, document: more})
        self._store.pin_document(chat, document, page)

    def _refuse_too_much(self, chat: str, turns: frozenset[str], pages: PinnedPages) -> None:
        """Raises OutOfMemory where so much could never stand before a short reply."""
        engine, shelf = self._engine(), self._shelf
        if engine is None:
            return
        there = self._store.messages(chat)
        kept = kept_turns(there, turns, pages, shelf)
        told, is_kept = list[ChatMessage](), False
        for one in there:
            is_kept = one.hash in kept if one.role == "user" else is_kept
            told += [ChatMessage(one.role, message_text(one), one.hash)] if is_kept else []
        prompt = render(
            engine.loaded.tokenizer,
            engine.loaded.chat_template,
            self._store.chat(chat).system_text,
            (),
            told,
        )
        tokens = len(prompt.token_ids) + document_tokens(apart(there, pages, shelf), shelf)
        reply_tokens = min(LEAST_REPLY, self._settings().max_new_tokens)
        most = engine.fits().tokens - QUESTION_TOKENS - reply_tokens
        if tokens > most:
            raise OutOfMemory("pins_too_large", pinned=tokens, capacity=max(0, most))
