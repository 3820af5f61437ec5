"""The models to choose from, and which of them runs."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvchat.errors import RequestError
from kvchat.ui.asked import text_of
from kvchat.ui.words import problem
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations
    from kvchat.models.offered import Offered, Way

_SETTINGS = ("model", "dtype", "weights")


class ModelCalls:
    def __init__(self, conversations: "Conversations", lang: Language) -> None:
        self._conversations = conversations
        self._lang = lang

    def models(self, sent: Any) -> dict[str, Any]:
        """The list, those that are here first, on a Korean screen those that serve Korean before
        others. How a model fits is told by `model_ways`, one at a time.
        """
        loading, held = self._conversations.loading, self._conversations.held
        rows = [self._row(one) for one in loading.offered()]
        korean = self._lang == "ko"
        rows.sort(key=lambda row: _place(row, korean_first=korean))
        status = self._conversations.status()
        return {
            "models": rows,
            "running": held.running.model if loading.engine is not None else None,
            "dtype": loading.dtype,
            "weights": held.running.weights,
            "seal": held.now.seal_format,
            "stage": status["stage"],
            "refused": problem(status["refused"], self._lang),
            "error": None,
            "why": problem(status["error"], self._lang),
            "room": asdict(loading.room(held.now)),
            "folder": str(loading.models_folder),
            "folders": list(held.now.model_folders),
        }

    def _row(self, one: "Offered") -> dict[str, Any]:
        row = asdict(one) | {"serves_korean": one.serves_korean, "ways": None}
        if one.ref is None:
            found = self._conversations.loading.ways(one.name, first=True)
            row["ways"] = [_way(one) for one in found]
        return row

    def model_ways(self, sent: Any) -> dict[str, Any]:
        loading = self._conversations.loading
        ref = text_of(sent, "model")
        wrong = loading.why_not(ref)
        if wrong is not None:
            return {"ways": [], "problem": problem(wrong, self._lang)}
        return {"ways": [_way(one) for one in loading.ways(ref)]}

    def load_model(self, sent: Any) -> dict[str, Any]:
        changes = {name: text_of(sent, name) for name in _SETTINGS if text_of(sent, name)}
        if "model" not in changes:
            raise RequestError("ui_request")
        self._conversations.loading.change(changes)
        return {}

    def reload_model(self, sent: Any) -> dict[str, Any]:
        self._conversations.loading.reload()
        return {}

    def unload_model(self, sent: Any) -> dict[str, Any]:
        self._conversations.loading.unload()
        return {}

    def cancel_load(self, sent: Any) -> dict[str, Any]:
        self._conversations.loading.cancel()
        return {}

    def add_folder(self, sent: Any) -> dict[str, Any]:
        """A folder that is a model, or holds models, joins the list. Raises ModelError."""
        path = str(self._conversations.loading.check_folder(text_of(sent, "path").strip()))
        known = self._conversations.held.now.model_folders
        self._conversations.apply({"model_folders": [*known, path]})
        return {"path": path}

    def forget_folder(self, sent: Any) -> dict[str, Any]:
        known, path = self._conversations.held.now.model_folders, text_of(sent, "path")
        self._conversations.apply({"model_folders": [one for one in known if one != path]})
        return {}


def _way(way: "Way") -> dict[str, Any]:
    return asdict(way) | {"fits": way.fits, "longest": way.longest.row()}


def _place(row: dict[str, Any], *, korean_first: bool) -> tuple[Any, ...]:
    """What is here first; of the rest what fits, the largest first, then what does not fit."""
    if row["ref"] is not None:
        return (0, korean_first and not row["serves_korean"])
    fits = any(way["fits"] for way in row["ways"])
    size = row["parameters"]
    return (1, not fits, korean_first and not row["serves_korean"], -size if fits else size)
