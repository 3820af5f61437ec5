"""What the store says of a chat, read once until anything of it changes.

A long chat is drawn many times a second while an answer grows, and nothing of it changes then but
the answer. Whether it did is asked each time, so nobody needs to say so.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvchat.chat.asked_back import asked_back
from kvchat.chat.branch import Branch
from kvchat.chat.bring import decided_modes
from kvchat.chat.rows import Exchange
from kvchat.chat.undo import offered
from kvchat.store.records import Mode
from kvchat.store.store import Store

FIGURES = ("reused_tokens", "prefill_s", "decode_tokens_per_s")
MOST_KNOWN = 4  # chats that somebody looks at by turns


@dataclass(frozen=True, slots=True)
class Known:
    """`figures` of turns by name; `marks`: of turns that the model does not see, not whole, or
    stored in less; `modes`: how documents are read; `pinned`: names of turns and whole documents;
    entries of the ledger that can be taken back, and those that were asked back, by number.
    """

    version: tuple[object, ...]
    exchanges: Sequence[Exchange]
    figures: Mapping[str, Mapping[str, Any]]
    marks: Sequence[Mapping[str, Any]]
    modes: Mapping[str, Mode]
    pinned: Collection[str]
    offered: Sequence[int]
    asked: Sequence[int]


class KnownChats:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}

    def of(self, chat: str) -> Known:
        """Raises StoreError `chat_gone`."""
        version = self._store.version(chat)
        with self._lock:
            known = self._known.get(chat)
        if known is None or known.version != version:
            known = self._read(chat, version)  # it may be newer, and is read again then
            with self._lock:
                self._known[chat] = known
                if len(self._known) > MOST_KNOWN:
                    del self._known[next(iter(self._known))]
        return known

    def _read(self, chat: str, version: tuple[object, ...]) -> Known:
        store = self._store
        rows, exchanges = store.ledger(chat), Branch(store, chat).exchanges()
        branch = {one.hash for one in store.messages(chat)}
        pages = store.document_pins(chat).items()
        whole = {document for document, numbers in pages if numbers is None}
        return Known(
            version,
            exchanges,
            {one.user_hash: _figures(one) for one in exchanges},
            [_mark(one) for one in exchanges if one.left_out or one.evicted or one.formats],
            decided_modes(rows),
            whole | {one.user_hash for one in exchanges if one.pinned},
            offered(rows, branch),
            asked_back(rows, branch).numbers,
        )


def _figures(exchange: Exchange) -> dict[str, Any]:
    return {name: (exchange.figures or {}).get(name) for name in FIGURES}


def _mark(exchange: Exchange) -> dict[str, Any]:
    return {
        "turn": exchange.turn,
        "name": exchange.user_hash,
        "left_out": exchange.left_out,
        "summarized": exchange.summary is not None,
        "evicted": exchange.evicted,
        "formats": exchange.formats,
    }
