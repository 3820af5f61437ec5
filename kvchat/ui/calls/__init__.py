"""What scripts of the screen may call outside gradio's queue: lists, documents, settings, stop.

Each call takes one JSON object and gives one; an error comes back as `{"error": {...}}` in the
page's language.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvchat.errors import KVChatError
from kvchat.ui.calls.chats import ChatCalls
from kvchat.ui.calls.choosing import ChoosingCalls
from kvchat.ui.calls.documents import DocumentCalls
from kvchat.ui.calls.gauges import GaugeCalls
from kvchat.ui.calls.models import ModelCalls
from kvchat.ui.calls.settings import SettingsCalls
from kvchat.ui.calls.steering import SteeringCalls
from kvchat.ui.calls.whatif import WhatIfCalls
from kvchat.ui.following import Following
from kvchat.ui.words import problem
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

Call = Callable[[Any], Any]


def calls(conversations: "Conversations", following: Following, lang: Language) -> list[Call]:
    """The public methods of each group as plain functions, the kind that gradio publishes."""
    groups = (
        ChatCalls(conversations, following, lang),
        DocumentCalls(conversations, lang),
        ChoosingCalls(conversations),
        SteeringCalls(conversations),
        GaugeCalls(conversations),
        SettingsCalls(conversations, lang),
        ModelCalls(conversations, lang),
        WhatIfCalls(conversations, lang),
    )
    return [
        _published(name, getattr(group, name), lang)
        for group in groups
        for name in vars(type(group))
        if not name.startswith("_")
    ]


def _published(name: str, call: Call, lang: Language) -> Call:
    """A plain function of that name (gradio marks and names functions, not methods)."""

    def published(sent: Any) -> Any:
        try:
            return call(sent)
        except KVChatError as error:
            return {"error": problem(error, lang)}

    published.__name__ = name
    return published
