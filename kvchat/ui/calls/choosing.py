"""How documents of a chat are read, at what cost, and pages that are left out."""

from typing import TYPE_CHECKING, Any

from kvchat.errors import RequestError
from kvchat.ui.asked import text_of
from kvchat.ui.calls.sent import chat, whole

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations


class ChoosingCalls:
    def __init__(self, conversations: "Conversations") -> None:
        self._conversations = conversations

    def document_plan(self, sent: Any) -> dict[str, Any]:
        """How the next question reads each document, and what each way takes."""
        return {"plan": self._conversations.choosing.plan(chat(sent))}

    def choose_document(self, sent: Any) -> dict[str, Any]:
        """`mode`: whole, passages or off; none leaves it to what fits."""
        mode = text_of(sent, "mode") or None
        self._conversations.choosing.choose(chat(sent), text_of(sent, "document"), mode)
        return {}

    def leave_page(self, sent: Any) -> dict[str, Any]:
        page = whole(sent, "page")
        if page is None:
            raise RequestError("ui_request")
        left = sent.get("left") is True
        document = text_of(sent, "document")
        self._conversations.choosing.leave_page(chat(sent), document, page, left=left)
        return {}
