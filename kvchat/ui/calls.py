"""What scripts of the screen may call outside gradio's queue: lists, documents, settings, stop.

Each call takes one JSON object and gives one; an error comes back as `{"error": {...}}` in the
page's language. Arguments come from a browser and are checked as such (case C31: an uploaded file
is only believed to be one if it lies in the upload folder).
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradio.utils import get_upload_folder

from kvchat.attention.telling import told as attention
from kvchat.chat.rows import DocumentRow
from kvchat.errors import KVChatError, RequestError
from kvchat.models.catalog import catalog
from kvchat.settings import SCHEMA
from kvchat.ui.asked import count_of, text_of
from kvchat.ui.following import Following
from kvchat.ui.forms import form, mistakes, preset_values
from kvchat.ui.words import problem, sentence
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

Call = Callable[[Any], Any]
_LONGEST_NAME = 240
# Notices that say nothing new to those who read a language.
_FOR_OTHERS: dict[Language, tuple[str, ...]] = {"en": ("notice.english_only",), "ko": ()}


class Calls:
    """The calls by name; `all()` gives them as plain functions, the kind that gradio publishes."""

    def __init__(
        self, conversations: "Conversations", following: Following, lang: Language
    ) -> None:
        self._conversations = conversations
        self._following = following
        self._lang = lang

    def all(self) -> list[Call]:
        names = [name for name in vars(Calls) if not name.startswith("_") and name != "all"]
        return [_published(name, getattr(self, name), self._lang) for name in names]

    def status(self, sent: Any) -> dict[str, Any]:
        found = dict(self._conversations.status())
        said = [one for one in found["notices"] if one not in _FOR_OTHERS[self._lang]]
        words = [sentence(one, self._lang, proposal=_proposal()) for one in said]
        rows = found["attention"]
        slow = [attention(row, self._lang) for row in rows if not row["fast"]]
        found["notices"] = [*filter(None, words), *slow]
        found["attention"] = [attention(row, self._lang) for row in rows]
        found["error"] = problem(found.get("error"), self._lang)
        return found

    def chats(self, sent: Any) -> dict[str, Any]:
        rows = self._conversations.chats(text_of(sent, "query"))
        return {"chats": [asdict(row) for row in rows]}

    def rename(self, sent: Any) -> dict[str, Any]:
        self._conversations.rename(_chat(sent), " ".join(text_of(sent, "title").split()))
        return {}

    def delete(self, sent: Any) -> dict[str, Any]:
        self._conversations.delete(_chat(sent))
        return {}

    def stop(self, sent: Any) -> dict[str, Any]:
        self._conversations.stop(_chat(sent))
        return {}

    def leave(self, sent: Any) -> dict[str, Any]:
        self._following.leave(text_of(sent, "tab"), count_of(sent, "number"))
        return {}

    def slower(self, sent: Any) -> dict[str, Any]:
        self._following.slower(text_of(sent, "tab"))
        return {}

    def source(self, sent: Any) -> dict[str, Any]:
        """The texts of a turn as they were written, for copying and editing."""
        turn = sent.get("turn") if isinstance(sent, dict) else None
        for one in self._conversations.history(_chat(sent)):
            if one.turn == turn:
                return {"text": one.text, "reply": one.reply or ""}
        raise RequestError("ui_request")

    def documents(self, sent: Any) -> dict[str, Any]:
        chat = text_of(sent, "chat")
        rows = self._conversations.documents(chat) if chat else []
        return {"documents": [self._row(row) for row in rows]}

    def add_document(self, sent: Any) -> dict[str, Any]:
        path = _uploaded(text_of(sent, "path"))
        chat = text_of(sent, "chat") or self._conversations.new_chat()
        name = _bare(text_of(sent, "name")) or path.name
        try:
            return {"chat": chat, "document": self._conversations.add_document(chat, path, name)}
        except KVChatError as error:
            return {"chat": chat, "error": problem(error, self._lang)}
        finally:
            path.unlink(missing_ok=True)  # the data folder has its own copy now

    def remove_document(self, sent: Any) -> dict[str, Any]:
        self._conversations.remove_document(_chat(sent), text_of(sent, "document"))
        return {}

    def pin(self, sent: Any) -> dict[str, Any]:
        """A turn, or a document, or a page of one."""
        chat, turn, page = _chat(sent), _whole(sent, "turn"), _whole(sent, "page")
        pinned = sent.get("pinned") is True
        if turn is not None:
            name = text_of(sent, "name") or None
            self._conversations.pin_turn(chat, turn, name, pinned=pinned)
        else:
            document = text_of(sent, "document")
            self._conversations.pin_document(chat, document, page, pinned=pinned)
        return {}

    def undo_cost(self, sent: Any) -> dict[str, Any]:
        return asdict(self._conversations.undo_cost(_chat(sent), _entry(sent)))

    def undo(self, sent: Any) -> dict[str, Any]:
        return asdict(self._conversations.undo(_chat(sent), _entry(sent)))

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

    def _row(self, row: DocumentRow) -> dict[str, Any]:
        found = asdict(row)
        found["problem"] = problem(row.problem, self._lang, name=row.name)
        found["notes"] = list(filter(None, (sentence(one, self._lang) for one in row.notes)))
        return found


def _published(name: str, call: Call, lang: Language) -> Call:
    """A plain function of that name (gradio marks and names functions, not methods)."""

    def published(sent: Any) -> Any:
        try:
            return call(sent)
        except KVChatError as error:
            return {"error": problem(error, lang)}

    published.__name__ = name
    return published


def _proposal() -> str:
    """The smallest model of the catalog that speaks Korean."""
    return next((one.name for one in catalog().values() if one.serves_korean), "")


def _chat(sent: Any) -> str:
    chat = text_of(sent, "chat")
    if not chat:
        raise RequestError("ui_request")
    return chat


def _whole(sent: Any, name: str) -> int | None:
    """A count, None where there is none. Raises RequestError for anything else."""
    value = sent.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise RequestError("ui_request")
    return value


def _entry(sent: Any) -> int:
    number = _whole(sent, "entry")
    if number is None:
        raise RequestError("ui_request")
    return number


def _uploaded(sent: str) -> Path:
    """The file of an upload. Raises RequestError for any path outside the upload folder."""
    folder = Path(get_upload_folder()).resolve()
    try:
        path = Path(sent).resolve(strict=True)
    except (OSError, ValueError):
        raise RequestError("ui_upload") from None
    if not path.is_relative_to(folder) or not path.is_file():
        raise RequestError("ui_upload")
    return path


def _bare(name: str) -> str:
    """A file name without folders and control characters; its end is kept, for the suffix."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in last if c.isprintable())[-_LONGEST_NAME:].strip()
