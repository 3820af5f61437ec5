"""What a person chose for a document of a chat: how it is read, and pages that are left out.

Goes with the document: what is taken out of a chat takes its choices along.
"""

from collections.abc import Mapping

from kvchat.store.base import Base
from kvchat.store.records import Choice

LeftPages = Mapping[str, frozenset[int]]
"""By document the pages, counted from 1, that the model is not to be given."""


class Choices(Base):
    def choose_mode(self, chat: str, document: str, mode: Choice | None) -> None:
        """None leaves it to what fits. Nothing where the chat has no such document."""
        with self._database.write() as connection:
            connection.execute(
                "DELETE FROM document_choices WHERE chat = ? AND document = ?", (chat, document)
            )
            if mode is not None:
                connection.execute(
                    "INSERT INTO document_choices SELECT chat, document, ? FROM chat_documents"
                    " WHERE chat = ? AND document = ?",
                    (mode, chat, document),
                )

    def chosen_modes(self, chat: str) -> dict[str, Choice]:
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT document, mode FROM document_choices WHERE chat = ?", (chat,)
            )
            return {row["document"]: row["mode"] for row in rows}

    def leave_page(self, chat: str, document: str, page: int, *, left: bool = True) -> None:
        """The model is given nothing of that page any more, or again."""
        with self._database.write() as connection:
            if left:
                connection.execute(
                    "INSERT OR IGNORE INTO left_pages SELECT chat, document, ?"
                    " FROM chat_documents WHERE chat = ? AND document = ?",
                    (page, chat, document),
                )
            else:
                connection.execute(
                    "DELETE FROM left_pages WHERE chat = ? AND document = ? AND page = ?",
                    (chat, document, page),
                )

    def left_pages(self, chat: str) -> LeftPages:
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT document, page FROM left_pages WHERE chat = ?", (chat,)
            ).fetchall()
        found: dict[str, frozenset[int]] = {}
        for document, page in rows:
            found[document] = found.get(document, frozenset()) | {page}
        return found
