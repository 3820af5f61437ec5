"""What the store says of a chat, carried on from what was read before while anything of it changes.

A long chat is drawn many times a second while an answer grows, and each turn adds a little to it:
messages, replies and rows of the ledger that were read are not read again (`store/chains.py`,
`store/ledger_rows.py`, `store/news.py`). Whether anything changed is asked each time, so nobody
needs to say so.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvchat.chat.asked_back import asked_on
from kvchat.chat.bring import decided_modes
from kvchat.chat.exchanges import Done, exchanges, summary_of, turns_of
from kvchat.chat.keep import why_failed
from kvchat.chat.marks import entries_on, marks_on
from kvchat.chat.rows import Exchange
from kvchat.chat.undo import offered_on
from kvchat.store.news import Seen
from kvchat.store.records import Choice
from kvchat.store.store import Store

FIGURES = ("reused_tokens", "prefill_s", "decode_tokens_per_s")
MOST_KNOWN = 4  # chats that somebody looks at by turns


@dataclass(frozen=True, slots=True)
class Known:
    """`marks`: of turns that the model does not see, not whole, or stored in less; `modes`: how
    documents are read; `pinned`: names of turns and whole documents; entries of the ledger that can
    be taken back, and those that were asked back, by number. `formats`: of documents that are
    stored in less. `seen`: how far it was read.
    """

    version: tuple[int, str | None]
    exchanges: Sequence[Exchange]
    by_name: Mapping[str, Exchange]
    marks: Sequence[Mapping[str, Any]]
    modes: Mapping[str, Choice]
    pinned: Collection[str]
    offered: Sequence[int]
    asked: Sequence[int]
    formats: Mapping[str, str]
    seen: Seen

    def figures(self, turn: str) -> dict[str, Any]:
        """Of a turn by its name; None each where there are none."""
        there = self.by_name.get(turn)
        made = (there.figures if there is not None else None) or {}
        return {name: made.get(name) for name in FIGURES}


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
            # it may be newer than its version, and is read again then
            known = read_on(self._store, chat, version, known)
            with self._lock:
                self._known[chat] = known
                if len(self._known) > MOST_KNOWN:
                    del self._known[next(iter(self._known))]
        return known


def read_on(
    store: Store, chat: str, version: tuple[int, str | None], before: Known | None
) -> Known:
    """From what was known of it; all of it for None."""
    news = store.news(chat, before.seen if before is not None else None)
    messages = store.messages(chat)
    branch = {one.hash for one in messages}
    rows = store.ledger(chat)
    held = list(entries_on(rows, branch))
    there, asked = marks_on(held), asked_on(held)
    pages = store.document_pins(chat).items()
    whole = {document for document, numbers in pages if numbers is None}
    turns = turns_of(messages)
    done = Done(there, store.pins(chat), summary_of(store, chat, turns, there), why_failed(rows))
    earlier = before.by_name if before is not None else {}
    found = list(exchanges(store, chat, turns, done, earlier, news))
    return Known(
        version,
        found,
        {one.user_hash: one for one in found},
        [_mark(one) for one in found if one.left_out or one.evicted or one.formats],
        decided_modes(rows),
        whole | {one.user_hash for one in found if one.pinned},
        offered_on(held, there, asked),
        asked.numbers,
        there.documents,
        news.seen,
    )


def _mark(exchange: Exchange) -> dict[str, Any]:
    return {
        "turn": exchange.turn,
        "name": exchange.user_hash,
        "left_out": exchange.left_out,
        "summarized": exchange.summary is not None,
        "evicted": exchange.evicted,
        "formats": exchange.formats,
    }
