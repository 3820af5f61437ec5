"""The documents of the data folder over all chats: listed, renamed, and forgotten for good."""

import json
import sqlite3
from dataclasses import dataclass

from kvchat.store import tree
from kvchat.store.base import Base, clean
from kvchat.store.branches import follow


@dataclass(frozen=True, slots=True)
class Kept:
    """A document that was read. `chats`: those that have it, or whose messages brought it along."""

    sha: str
    name: str
    kind: str
    num_pages: int
    created_at_s: float
    chats: tuple[str, ...]


class Library(Base):
    def library(self) -> list[Kept]:
        """The newest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT d.*, (SELECT count(*) FROM document_pages WHERE document = d.sha) AS pages"
                " FROM documents d ORDER BY d.created_at_s DESC, d.rowid DESC"
            ).fetchall()
            return [
                Kept(
                    *(row["sha"], row["name"], row["kind"], row["pages"], row["created_at_s"]),
                    tuple(_chats_with(connection, row["sha"])),
                )
                for row in rows
            ]

    def rename_document(self, sha: str, name: str) -> None:
        """In every chat that has it; what messages brought along of it keeps the name it had."""
        with self._database.write() as connection:
            shown = clean(name)
            connection.execute("UPDATE documents SET name = ? WHERE sha = ?", (shown, sha))
            connection.execute(
                "UPDATE chat_documents SET name = ? WHERE document = ?", (shown, sha)
            )
            self._forget()

    def chats_with(self, sha: str) -> list[str]:
        """The chats that have a document, or whose messages brought text of it along."""
        with self._database.read() as connection:
            return _chats_with(connection, sha)

    def forget_document(self, sha: str) -> None:
        """No chat has it any more, and no message its text: messages are chained anew without it,
        under new names that all else follows; citations of it go, and summaries that may tell of
        it. The document itself goes with `remove_unreferenced`.
        """
        with self._database.write() as connection:
            for chat in _chats_with(connection, sha):
                _take_out(connection, chat, sha)
            connection.execute("DELETE FROM chat_documents WHERE document = ?", (sha,))
            self._forget()


def _chats_with(connection: sqlite3.Connection, sha: str) -> list[str]:
    rows = connection.execute(
        "SELECT chat FROM chat_documents WHERE document = :sha"
        " UNION SELECT r.chat FROM attachments a JOIN reached r ON r.message = a.message"
        " WHERE a.document = :sha",
        {"sha": sha},
    )
    return [row["chat"] for row in rows]


def _take_out(connection: sqlite3.Connection, chat: str, sha: str) -> None:
    renamed: dict[str, str | None] = {}
    for old in tree.all_messages(connection, chat):
        parent = renamed.get(old.parent, old.parent) if old.parent is not None else None
        kept = tuple(one for one in old.attachments if one.document != sha)
        if (parent, kept) != (old.parent, old.attachments):
            new = tree.insert(
                connection, chat, parent, old.role, old.content, kept, old.created_at_s
            )
            renamed[old.hash] = new.hash
    _cite_no_more(connection, chat, sha)
    if not renamed:
        return
    connection.execute("DELETE FROM summaries WHERE chat = ?", (chat,))
    follow(connection, chat, renamed, set())
    tree.unreach(connection, chat)
    tree.settle(connection, chat)
    tree.drop_unreached(connection, renamed)


def _cite_no_more(connection: sqlite3.Connection, chat: str, sha: str) -> None:
    rows = connection.execute("SELECT number, citations FROM generations WHERE chat = ?", (chat,))
    for row in rows.fetchall():
        citations = json.loads(row["citations"])
        kept = [one for one in citations if one.get("document") != sha]
        if len(kept) < len(citations):
            connection.execute(
                "UPDATE generations SET citations = ? WHERE number = ?",
                (json.dumps(kept), row["number"]),
            )
