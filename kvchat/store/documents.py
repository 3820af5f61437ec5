"""Documents as they were read, and which chat has which. Knows no PDF and no passage."""

import sqlite3
from collections.abc import Iterable, Sequence

from kvchat.store import tree
from kvchat.store.base import Base, clean
from kvchat.store.records import ChatDocument, Document, DocumentPage, Message


class Documents(Base):
    def add_document(
        self, sha: str, name: str, pages: Iterable[tuple[int, str | None, str, str]], path: str
    ) -> None:
        """`pages`: (number, label, verdict, text). Replaces an earlier reading of the document."""
        rows = [
            (sha, number, label if label is None else clean(label), verdict, clean(text))
            for number, label, verdict, text in pages
        ]
        with self._database.write() as connection:
            connection.execute("DELETE FROM documents WHERE sha = ?", (sha,))
            connection.execute(
                "INSERT INTO documents VALUES (?, ?, ?, ?)",
                (sha, clean(name), clean(str(path)), self._clock()),
            )
            connection.executemany("INSERT INTO document_pages VALUES (?, ?, ?, ?, ?)", rows)

    def document(self, sha: str) -> Document | None:
        with self._database.read() as connection:
            row = connection.execute("SELECT * FROM documents WHERE sha = ?", (sha,)).fetchone()
            return _document(connection, row) if row else None

    def documents(self) -> list[Document]:
        """All documents with their pages' text, in the order they were read."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT * FROM documents ORDER BY rowid").fetchall()
            return [_document(connection, row) for row in rows]

    def attach_document(self, chat: str, sha: str, name: str) -> ChatDocument:
        """Adds a document to a chat; before its first message it becomes a leading one.

        It may still be in reading. Again: the same entry, under its first name.
        """
        with self._database.write() as connection:
            _, tip = tree.current_branch(connection, chat)
            begun = connection.execute("SELECT 1 FROM reached WHERE chat = ?", (chat,)).fetchone()
            connection.execute(
                "INSERT OR IGNORE INTO chat_documents (chat, document, name, leading)"
                " VALUES (?, ?, ?, ?)",
                (chat, sha, clean(name), begun is None),
            )
            found = _chat_documents(connection, chat, self._chains.to(connection, tip))
            return next(one for one in found if one.document == sha)

    def chat_documents(self, chat: str) -> list[ChatDocument]:
        """In the order they were added."""
        with self._database.read() as connection:
            _, tip = tree.current_branch(connection, chat)
            return _chat_documents(connection, chat, self._chains.to(connection, tip))

    def detach(self, chat: str, sha: str) -> None:
        """The chat has the document no more; what its messages brought along of it stays."""
        with self._database.write() as connection:
            connection.execute(
                "DELETE FROM chat_documents WHERE chat = ? AND document = ?", (chat, sha)
            )

    def remove_unreferenced(self) -> list[Document]:
        """Removes the documents that no chat has and no message brought along; gives them back."""
        with self._database.write() as connection:
            rows = connection.execute(
                "SELECT * FROM documents d"
                " WHERE NOT EXISTS (SELECT 1 FROM chat_documents WHERE document = d.sha)"
                " AND NOT EXISTS (SELECT 1 FROM attachments WHERE document = d.sha)"
            ).fetchall()
            removed = [_document(connection, row) for row in rows]
            connection.executemany(
                "DELETE FROM documents WHERE sha = ?", [(one.sha,) for one in removed]
            )
            return removed


def _document(connection: sqlite3.Connection, row: sqlite3.Row) -> Document:
    pages = connection.execute(
        "SELECT number, label, verdict, text FROM document_pages WHERE document = ?"
        " ORDER BY number",
        (row["sha"],),
    )
    read = tuple(DocumentPage(*page) for page in pages)
    return Document(row["sha"], row["name"], row["path"], read, row["created_at_s"])


def _chat_documents(
    connection: sqlite3.Connection, chat: str, messages: Sequence[Message]
) -> list[ChatDocument]:
    rows = connection.execute(
        "SELECT * FROM chat_documents WHERE chat = ? ORDER BY number", (chat,)
    ).fetchall()
    turns: dict[str, str] = {}
    for message in messages if rows else ():
        for brought in message.attachments:
            turns.setdefault(brought.document, message.hash)
    return [
        ChatDocument(row["document"], row["name"], bool(row["leading"]), turns.get(row["document"]))
        for row in rows
    ]
