"""Documents of a chat. A path is only believed if it lies in the upload folder (case C31)."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvchat.chat.rows import DocumentRow
from kvchat.errors import KVChatError, RequestError
from kvchat.ui.asked import text_of
from kvchat.ui.calls.sent import chat, uploaded
from kvchat.ui.words import problem, sentence
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

_LONGEST_NAME = 240


class DocumentCalls:
    def __init__(self, conversations: "Conversations", lang: Language) -> None:
        self._conversations = conversations
        self._lang = lang

    def documents(self, sent: Any) -> dict[str, Any]:
        chat = text_of(sent, "chat")
        rows = self._conversations.documents(chat) if chat else []
        return {"documents": [self._row(row) for row in rows]}

    def add_document(self, sent: Any) -> dict[str, Any]:
        path = uploaded(text_of(sent, "path"))
        given = text_of(sent, "chat")
        chat = given or self._conversations.new_chat()
        name = _bare(text_of(sent, "name")) or path.name
        try:
            return {"chat": chat, "document": self._conversations.add_document(chat, path, name)}
        except KVChatError as error:
            if not given:  # it was made for this file alone
                self._conversations.drop_if_nothing(chat)
            return {"chat": given or None, "error": problem(error, self._lang)}
        finally:
            path.unlink(missing_ok=True)  # the data folder has its own copy now

    def remove_document(self, sent: Any) -> dict[str, Any]:
        self._conversations.remove_document(chat(sent), text_of(sent, "document"))
        return {}

    def unlock_document(self, sent: Any) -> dict[str, Any]:
        """Tries a password; the document's row tells what came of it."""
        password = text_of(sent, "password")
        if not password:
            raise RequestError("ui_no_password")
        document = text_of(sent, "document")
        self._conversations.library.unlock(chat(sent), document, password)
        return {}

    def document_pages(self, sent: Any) -> dict[str, Any]:
        """Number, label, verdict and tokens of each page that was read."""
        pages = self._conversations.library.pages(chat(sent), text_of(sent, "document"))
        return {"pages": pages}

    def library(self, _sent: Any) -> dict[str, Any]:
        """All documents of the data folder, the newest first."""
        return {"documents": [asdict(one) for one in self._conversations.library.documents()]}

    def attach_document(self, sent: Any) -> dict[str, Any]:
        """Puts a document of the library into a chat."""
        found = text_of(sent, "chat") or self._conversations.new_chat()
        self._conversations.library.attach(found, text_of(sent, "document"))
        return {"chat": found}

    def rename_document(self, sent: Any) -> dict[str, Any]:
        """The name as it is kept, in every chat that has the document."""
        name = text_of(sent, "name")
        return {"name": self._conversations.library.rename(text_of(sent, "document"), name)}

    def forget_document(self, sent: Any) -> dict[str, Any]:
        """The file, and all that any chat knows of it."""
        self._conversations.library.forget(text_of(sent, "document"))
        return {}

    def _row(self, row: DocumentRow) -> dict[str, Any]:
        found = asdict(row)
        found["answers_early"] = self._conversations.held.now.answer_while_reading
        found["problem"] = problem(row.problem, self._lang, name=row.name)
        found["notes"] = list(filter(None, (sentence(one, self._lang) for one in row.notes)))
        return found


def _bare(name: str) -> str:
    """A file name without folders and control characters; its end is kept, for the suffix."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in last if c.isprintable())[-_LONGEST_NAME:].strip()
