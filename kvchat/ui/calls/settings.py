"""The settings form, what a change would mean, what is applied, and settings as a file."""

from typing import TYPE_CHECKING, Any

from kvchat.errors import ModelError, RequestError
from kvchat.memory.formats import FormatPair
from kvchat.settings import OF_ALL, SCHEMA, changed, parse_file, to_toml
from kvchat.ui.asked import text_of
from kvchat.ui.consequences import consequences
from kvchat.ui.forms import form, mistakes, preset_values, written
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations


class SettingsCalls:
    def __init__(self, conversations: "Conversations", lang: Language) -> None:
        self._conversations = conversations
        self._lang = lang

    def settings(self, sent: Any) -> dict[str, Any]:
        """The form; of each setting also where its value comes from, and what a reset gives."""
        conversations, held = self._conversations, self._conversations.held
        status = conversations.status()
        found = form(held.now, self._lang, conversations.verdicts(), status["formats"]["stage"])
        below = held.below()
        for group in found["groups"]:
            for field in group["fields"]:
                name = field["name"]
                field["source"] = held.source(name)
                field["below"] = written(SCHEMA[name], getattr(below, name))
                field["of_all"] = name in OF_ALL
        capacities = conversations.loading.capacities()
        about = {"model": status["model"], "capacities": capacities}
        return found | about | {"pending": self._labels(held.pending())}

    def preset(self, sent: Any) -> dict[str, Any]:
        return {"values": preset_values(text_of(sent, "name"))}

    def foretell(self, sent: Any) -> dict[str, Any]:
        """What changes would mean; nothing is changed."""
        changes = _changes(sent)
        wrong = mistakes(changes, self._lang)
        right = {name: value for name, value in changes.items() if name not in wrong}
        found = consequences(self._conversations, right, self._lang, text_of(sent, "chat"))
        return found | {"mistakes": wrong}

    def apply(self, sent: Any) -> dict[str, Any]:
        changes, resets = _changes(sent), _names(sent, "resets")
        wrong = mistakes(changes, self._lang)
        if wrong:
            return {"mistakes": wrong}
        only_model = sent.get("only_model") is True
        changes = {name: value for name, value in changes.items() if name not in resets}
        later = self._conversations.apply(changes, resets, only_model=only_model)
        return {"reload": self._labels(later)}

    def export_settings(self, sent: Any) -> dict[str, Any]:
        return {"name": "kvchat-settings.toml", "text": to_toml(self._conversations.held.now)}

    def import_settings(self, sent: Any) -> dict[str, Any]:
        """Values for the form, from a file's text; nothing is changed. Raises SettingsError with
        the first thing that is wrong.
        """
        held = self._conversations.held
        general, models = parse_file(
            text_of(sent, "text"), text_of(sent, "name") or "settings.toml"
        )
        values = {**general, **models.get(held.now.model, {})}
        settings = changed(held.now, values)
        return {"values": {n: written(SCHEMA[n], getattr(settings, n)) for n in values}}

    def measure(self, sent: Any) -> dict[str, Any]:
        """Measures a pair of formats on the model that runs, as soon as nothing is asked."""
        pair = text_of(sent, "pair")
        engine = self._conversations.loading.engine
        if engine is None or engine.proving is None:
            raise ModelError("model_still_loading")
        if sent.get("cancel") is True:
            engine.proving.cancel()
        else:
            engine.proving.ask(FormatPair.parse(pair))
        return {}

    def _labels(self, names: list[str]) -> list[str]:
        return [SCHEMA[name].label[self._lang] for name in names if name in SCHEMA]


def _changes(sent: Any) -> dict[str, object]:
    changes = sent.get("changes") if isinstance(sent, dict) else None
    if not isinstance(changes, dict):
        raise RequestError("ui_request")
    return changes


def _names(sent: Any, key: str) -> list[str]:
    names = sent.get(key) or []
    if not isinstance(names, list) or any(one not in list(SCHEMA) for one in names):
        raise RequestError("ui_request")
    return names
