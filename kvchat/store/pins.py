"""Pins: what of a chat is never left out, stored in less, moved or cut: turns, documents, pages.

A turn's pin hangs under its user message and follows it; a document's goes with the document.
"""

from kvchat.store import tree
from kvchat.store.base import Base
from kvchat.store.records import PinnedPages


class Pins(Base):
    def pin(self, chat: str, user_hash: str) -> None:
        """Raises StoreError as `Branches` does."""
        with self._database.write() as connection:
            tree.require(connection, chat, user_hash, "user")
            connection.execute(
                "INSERT INTO pins SELECT :chat, :message WHERE NOT EXISTS"
                " (SELECT 1 FROM pins WHERE chat = :chat AND message = :message)",
                {"chat": chat, "message": user_hash},
            )

    def unpin(self, chat: str, user_hash: str) -> None:
        with self._database.write() as connection:
            connection.execute("DELETE FROM pins WHERE chat = ? AND message = ?", (chat, user_hash))

    def pins(self, chat: str) -> frozenset[str]:
        with self._database.read() as connection:
            rows = connection.execute("SELECT message FROM pins WHERE chat = ?", (chat,))
            return frozenset(row["message"] for row in rows)

    def pin_document(self, chat: str, document: str, page: int | None = None) -> None:
        """All of a document that the chat has, or one page; nothing where it has not."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO document_pins SELECT chat, document, ? FROM chat_documents"
                " WHERE chat = ? AND document = ?",
                (page, chat, document),
            )

    def unpin_document(self, chat: str, document: str, page: int | None = None) -> None:
        with self._database.write() as connection:
            connection.execute(
                "DELETE FROM document_pins WHERE chat = ? AND document = ? AND page IS ?",
                (chat, document, page),
            )

    def document_pins(self, chat: str) -> PinnedPages:
        """By document its pinned pages, None for all of it."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT document, page FROM document_pins WHERE chat = ? ORDER BY page", (chat,)
            ).fetchall()
        found: dict[str, frozenset[int] | None] = {}
        for document, page in rows:  # a NULL comes first
            known = found.get(document, frozenset())
            found[document] = None if page is None or known is None else known | {page}
        return found
