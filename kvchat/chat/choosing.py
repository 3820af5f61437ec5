"""What a person decides about a document of a chat: how it is read, which pages are left out; and
what each way costs, before it is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvchat.chat.ahead import AheadOfQuestions, decided_next, room_next
from kvchat.chat.attached import Attached, attached
from kvchat.chat.bring import MOST_SHARE, WHOLE_SHARE, Decided, Room
from kvchat.chat.reading_again import read_tokens_per_s
from kvchat.chat.shelf import Shelf
from kvchat.chat.suiting import FENCE_TOKENS
from kvchat.chat.told import message_text
from kvchat.errors import RequestError
from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.settings import Settings
from kvchat.store.records import ChatDocument, Choice, Message
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
        self._counted_by: Engine | None = None
        self._counted: dict[str, int] = {}

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
        there, settings = attached(self._store, chat), self._settings()
        room = room_next(engine)
        passages = settings.passages * (PASSAGE_TOKENS + FENCE_TOKENS)
        again = ReadAgain(self._store, chat, there, self._counter(engine))
        costs, found, taken = engine.costs, list[dict[str, Any]](), 0

        def blocks(tokens: int) -> int:
            return costs.blocks_bytes(tokens + costs.storing.hot_tokens, settings.prefill_chunk)

        def size(tokens: int) -> int:
            """A block that is full in part counts in part: its rest is the text's that follows."""
            rest = tokens % BLOCK_TOKENS
            full = blocks(tokens - rest)
            return full + (blocks(tokens - rest + BLOCK_TOKENS) - full) * rest // BLOCK_TOKENS

        for one in decided_next(there, self._shelf, settings, room):
            searched = min(passages, one.tokens)
            found.append(
                {
                    "document": one.document.document,
                    "mode": one.mode,
                    "reason": one.reason or there.decided.get(one.document.document, ("", ""))[1],
                    "chosen": there.chosen.get(one.document.document),
                    "tokens": one.tokens,
                    "bytes": size(one.tokens),
                    "fits": one.tokens + taken <= room.most,
                    "room": _room_row(room, taken, settings),
                    "passage_tokens": searched,
                    "passage_bytes": size(searched),
                    "bytes_per_token": size(BLOCK_TOKENS) / BLOCK_TOKENS,
                    "again": {mode: again.cost(one, mode) for mode in CHOICES},
                }
            )
            taken += one.tokens if one.mode == "whole" else 0
        return found

    def _counter(self, engine: Engine) -> Callable[[Message], int]:
        """Counts each message of a chat once for each model that runs."""
        if self._counted_by is not engine:
            self._counted_by, self._counted = engine, {}
        counted, count = self._counted, self._shelf.count

        def tokens(message: Message) -> int:
            if message.hash not in counted:
                counted[message.hash] = count(message_text(message))
            return counted[message.hash]

        return tokens

    def _require(self, chat: str, document: str) -> None:
        if all(one.document != document for one in self._store.chat_documents(chat)):
            raise RequestError("document_gone")


def _room_row(room: Room, taken: int, settings: Settings) -> dict[str, Any]:
    """How long a document may be that is read whole, and why no longer: where that was chosen, and
    where nobody chose. `taken`: by documents before it.
    """
    chosen, unasked = room.most, room.unasked(settings)
    limit = "most" if chosen < room.tokens else "rest"
    return {
        "capacity": room.capacity_tokens,
        "others": taken,
        "reserve": room.capacity_tokens - room.tokens,
        "reply": settings.max_new_tokens,
        "share": round(100 * WHOLE_SHARE),
        "most": round(100 * MOST_SHARE),
        "chosen": {"tokens": max(0, int(chosen - taken)), "limit": limit},
        "unasked": {
            "tokens": max(0, int(unasked - taken)),
            "limit": "share" if unasked < chosen else limit,
        },
    }


class ReadAgain:
    """What of a chat is read again where a document comes to be read in another way: all that comes
    after the place where its text begins, or began.
    """

    def __init__(
        self, store: Store, chat: str, there: Attached, count: Callable[[Message], int]
    ) -> None:
        self._there, self._count = there, count
        self._messages = list(_seen(store.messages(chat), there.left_out))
        figures = (store.generation(one.hash, chat) for one in reversed(self._messages))
        self._per_s = read_tokens_per_s(one.figures for one in figures if one is not None)

    def cost(self, decided: Decided, mode: Choice) -> dict[str, Any] | None:
        """Tokens, and seconds where it was measured how fast they are read; None where nothing is
        read again. The document's own text is not among them.
        """
        document = decided.document
        first = self._first(document, mode)
        if first is None:
            return None
        tokens = sum(self._count(one) for one in self._messages[first:])
        if self._there.reads_whole(document) and not document.leading:
            tokens = max(0, tokens - decided.tokens)
        return {"tokens": tokens, "s": tokens / self._per_s if self._per_s else None}

    def _first(self, document: ChatDocument, mode: Choice) -> int | None:
        """The message from which on the prompt is another one than before."""
        now = self._there.mode(document.document)
        if not self._messages or now == mode:
            return None
        if document.leading and "whole" in (now, mode):
            return 0
        sha, was_whole = document.document, now == "whole"
        changes_all = "off" in (now, mode)
        for number, message in enumerate(self._messages):
            texts = (one for one in message.attachments if one.document == sha and one.text)
            if any(changes_all or (was_whole and one.mode == "whole") for one in texts):
                return number
        return None


def _seen(messages: Sequence[Message], left_out: Collection[str]) -> Iterator[Message]:
    is_seen = True
    for one in messages:
        is_seen = one.hash not in left_out if one.role == "user" else is_seen
        if is_seen:
            yield one
