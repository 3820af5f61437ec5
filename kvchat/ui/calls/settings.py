"""The settings form, its presets, and what is applied."""

from typing import TYPE_CHECKING, Any

from kvchat.errors import RequestError
from kvchat.settings import SCHEMA
from kvchat.ui.asked import text_of
from kvchat.ui.forms import form, mistakes, preset_values
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations


class SettingsCalls:
    def __init__(self, conversations: "Conversations", lang: Language) -> None:
        self._conversations = conversations
        self._lang = lang

    def settings(self, sent: Any) -> dict[str, Any]:
        conversations = self._conversations
        stage = conversations.status()["formats"]["stage"]
        return form(conversations.settings, self._lang, conversations.verdicts(), stage)

    def preset(self, sent: Any) -> dict[str, Any]:
        return {"values": preset_values(text_of(sent, "name"))}

    def apply(self, sent: Any) -> dict[str, Any]:
        changes = sent.get("changes") if isinstance(sent, dict) else None
        if not isinstance(changes, dict):
            raise RequestError("ui_request")
        wrong = mistakes(changes, self._lang)
        if wrong:
            return {"mistakes": wrong}
        later = self._conversations.apply(changes)
        labels = [SCHEMA[name].label[self._lang] for name in later if name in SCHEMA]
        return {"reload": labels, "redraw": "allow_unproven" in changes}
