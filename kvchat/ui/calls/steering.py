"""Pins, and what was done taken back."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvchat.ui.asked import text_of
from kvchat.ui.calls.sent import chat, entry, whole

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations


class SteeringCalls:
    def __init__(self, conversations: "Conversations") -> None:
        self._conversations = conversations

    def pin(self, sent: Any) -> dict[str, Any]:
        """A turn, or a document, or a page of one."""
        where, turn, page = chat(sent), whole(sent, "turn"), whole(sent, "page")
        pinned = sent.get("pinned") is True
        if turn is not None:
            name = text_of(sent, "name") or None
            self._conversations.pin_turn(where, turn, name, pinned=pinned)
        else:
            document = text_of(sent, "document")
            self._conversations.pin_document(where, document, page, pinned=pinned)
        return {}

    def undo_cost(self, sent: Any) -> dict[str, Any]:
        return asdict(self._conversations.undo_cost(chat(sent), entry(sent)))

    def undo(self, sent: Any) -> dict[str, Any]:
        return asdict(self._conversations.undo(chat(sent), entry(sent)))
