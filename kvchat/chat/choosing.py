"""What a person decides about a document of a chat: how it is read, which pages are left out; and
what each way costs, before it is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvchat.chat.ahead import QUESTION_TOKENS, AheadOfQuestions, decided_next
from kvchat.chat.attached import attached
from kvchat.chat.bring import Room
from kvchat.chat.shelf import Shelf
from kvchat.chat.suiting import FENCE_TOKENS
from kvchat.errors import RequestError
from kvchat.settings import Settings
from kvchat.store.records import Choice
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

PASSAGE_TOKENS = 220  # what passages are cut to, see `documents/passages.py`
CHOICES: tuple[Choice, ...] = ("whole", "passages", "off")


class Choosing:
    """Every call that names a document raises RequestError where the chat has no such one."""

    def __init__(
        self,
        store: Store,
        shelf: Shelf,
        engine: Callable[[], Engine | None],
        settings: Callable[[], Settings],
        ahead: AheadOfQuestions,
    ) -> None:
        self._store, self._shelf, self._ahead = store, shelf, ahead
        self._engine, self._settings = engine, settings

    def choose(self, chat: str, document: str, mode: str | None) -> None:
        """None leaves it to what fits. Holds from the next question on. What is switched off is
        pinned no more.
        """
        self._require(chat, document)
        chosen = next((one for one in CHOICES if one == mode), None)
        if mode is not None and chosen is None:
            raise RequestError("ui_request")
        self._store.choose_mode(chat, document, chosen)
        if chosen in ("off", "passages"):
            self._store.unpin_document(chat, document, None)
        self._ahead.look(chat)

    def leave_page(self, chat: str, document: str, page: int, *, left: bool) -> None:
        """A page that is left out is pinned no more. Raises RequestError for no such page."""
        self._require(chat, document)
        if not 1 <= page <= len(self._shelf.document(document).pages):
            raise RequestError("ui_request")
        self._store.leave_page(chat, document, page, left=left)
        if left:
            self._store.unpin_document(chat, document, page)
        self._ahead.look(chat)

    def plan(self, chat: str) -> list[dict[str, Any]]:
        """By document that was read how the next question reads it, and what each way takes:
        tokens and bytes; nothing while no model is there to count.
        """
        engine = self._engine()
        if engine is None:
            return []
        there, settings, costs = attached(self._store, chat), self._settings(), engine.costs
        decided = decided_next(there, self._shelf, settings, engine)
        chunk = settings.prefill_chunk
        room = Room(engine.fits().tokens, QUESTION_TOKENS)
        passages = settings.passages * (PASSAGE_TOKENS + FENCE_TOKENS)

        def size(tokens: int) -> int:
            return costs.blocks_bytes(tokens + costs.storing.hot_tokens, chunk)

        return [
            {
                "document": one.document.document,
                "mode": one.mode,
                "reason": one.reason or there.decided.get(one.document.document, ("", ""))[1],
                "chosen": there.chosen.get(one.document.document),
                "tokens": one.tokens,
                "bytes": size(one.tokens),
                "fits": one.tokens <= room.most,
                "room_tokens": max(0, int(room.most)),
                "passage_tokens": min(passages, one.tokens),
                "passage_bytes": size(min(passages, one.tokens)),
                "bytes_per_token": size(64) / 64,
            }
            for one in decided
        ]

    def _require(self, chat: str, document: str) -> None:
        if all(one.document != document for one in self._store.chat_documents(chat)):
            raise RequestError("document_gone")
