"""Documents as they were read, and which chat has which. Knows no PDF and no passage."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from kvchat.store import tree
from kvchat.store.base import Base, clean
from kvchat.store.records import ChatDocument, Document, DocumentFile, DocumentPage, Message


class Documents(Base):
    def add_document(self, file: DocumentFile, pages: Iterable[DocumentPage]) -> None:
        """Replaces an earlier reading of the document."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM documents WHERE sha = ?", (file.sha,))
            connection.execute(
                "INSERT INTO documents"
                " (sha, name, path, created_at_s, kind, extractor, attachments, is_divided)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(file.sha, clean(file.name), clean(file.path), self._clock(), file.kind),
                    *(file.extractor, json.dumps(file.attachments), file.is_divided),
                ),
            )
            connection.executemany(
                "INSERT INTO document_pages (document, number, label, verdict, text, facts)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [_page_row(file.sha, page) for page in pages],
            )

    def replace_page(self, sha: str, page: DocumentPage, words: Sequence[Sequence[Any]]) -> None:
        """The text that was recognised on a page, and where its words stand on the picture."""
        with self._database.write() as connection:
            known = connection.execute("SELECT 1 FROM documents WHERE sha = ?", (sha,)).fetchone()
            if known is None:
                return
            connection.execute(
                "INSERT OR REPLACE INTO document_pages"
                " (document, number, label, verdict, text, facts) VALUES (?, ?, ?, ?, ?, ?)",
                _page_row(sha, page),
            )
            connection.execute(
                "INSERT OR REPLACE INTO page_words VALUES (?, ?, ?)",
                (sha, page.number, json.dumps([[clean(word), *box] for word, *box in words])),
            )

    def page_words(self, sha: str, number: int) -> list[list[Any]]:
        """[text, left, top, right, bottom] of the words that were recognised on a page."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT words FROM page_words WHERE document = ? AND number = ?", (sha, number)
            ).fetchone()
        found: list[list[Any]] = json.loads(row["words"]) if row else []
        return found

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


def _page_row(sha: str, page: DocumentPage) -> tuple[Any, ...]:
    label = None if page.label is None else clean(page.label)
    return (sha, page.number, label, page.verdict, clean(page.text), json.dumps(dict(page.facts)))


def _document(connection: sqlite3.Connection, row: sqlite3.Row) -> Document:
    pages = connection.execute(
        "SELECT number, label, verdict, text, facts FROM document_pages WHERE document = ?"
        " ORDER BY number",
        (row["sha"],),
    )
    read = tuple(
        DocumentPage(number, label, verdict, text, json.loads(facts))
        for number, label, verdict, text, facts in pages
    )
    file = DocumentFile(
        *(row["sha"], row["name"], row["path"], row["kind"], row["extractor"]),
        attachments=tuple(json.loads(row["attachments"])),
        is_divided=bool(row["is_divided"]),
    )
    return Document(file, read, row["created_at_s"])


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
