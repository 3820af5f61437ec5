"""The documents of a chat as a screen shows them: what was read of each, how it is read, what is
kept of it.
"""

from __future__ import annotations

from kvchat.chat.ahead import AheadOfQuestions
from kvchat.chat.known import KnownChats
from kvchat.chat.rows import DocumentRow
from kvchat.chat.shelf import Shelf
from kvchat.store.store import Store

_NONE: frozenset[int] = frozenset()


class DocumentRows:
    def __init__(
        self, store: Store, shelf: Shelf, known: KnownChats, ahead: AheadOfQuestions
    ) -> None:
        self._store, self._shelf, self._known, self._ahead = store, shelf, known, ahead

    def of(self, chat: str) -> list[DocumentRow]:
        attached = self._store.chat_documents(chat)
        if not attached:
            return []
        known = self._known.of(chat)
        pins = self._store.document_pins(chat)
        chosen = self._store.chosen_modes(chat)
        left = self._store.left_pages(chat)
        ahead = self._ahead.progress(chat)
        return [
            DocumentRow(
                one.document,
                one.name,
                mode=known.modes.get(one.document),
                **self._shelf.row(one.document, one.name),
                pinned=pins.get(one.document, _NONE) is None,
                pinned_pages=tuple(sorted(pins.get(one.document) or _NONE)),
                chosen=chosen.get(one.document),
                left_pages=tuple(sorted(left.get(one.document, _NONE))),
                ahead=ahead,
                formats=known.formats.get(one.document),
            )
            for one in attached
        ]
