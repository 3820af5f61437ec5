"""Chats: made, listed, searched, renamed, deleted. Knows nothing of how messages form a tree."""

import secrets
import sqlite3

from kvchat.errors import StoreError
from kvchat.store.base import Base, clean
from kvchat.store.records import Chat
from kvchat.store.tree import add_branch, drop_unreached


class Chats(Base):
    def new_chat(self, title: str, system_text: str, listed: bool = True) -> Chat:
        name, now = secrets.token_hex(8), self._clock()
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO chats VALUES (?, ?, ?, 0, ?, ?, ?)",
                (name, clean(title), clean(system_text), listed, now, now),
            )
            connection.execute(
                "UPDATE chats SET branch = ? WHERE id = ?",
                (add_branch(connection, name, None), name),
            )
            return _chat(connection, name)

    def chat(self, chat: str) -> Chat:
        """Raises StoreError `chat_gone`."""
        with self._database.read() as connection:
            return _chat(connection, chat)

    def chats(self, query: str = "", unlisted: bool = False) -> list[Chat]:
        """Newest first. Each word of the query stands in the title or a message of any branch."""
        words = [f"%{_literal(word)}%" for word in clean(query).split()]
        found = (
            "(c.title LIKE ? ESCAPE '\\' OR EXISTS (SELECT 1 FROM reached r JOIN messages m"
            " ON m.hash = r.message WHERE r.chat = c.id AND m.content LIKE ? ESCAPE '\\'))"
        )
        where = " AND ".join(["(c.listed OR ?)"] + [found] * len(words))
        values = [unlisted, *(word for word in words for _ in range(2))]
        with self._database.read() as connection:
            rows = connection.execute(
                f"{_CHAT} WHERE {where} ORDER BY c.updated_at_s DESC, c.rowid DESC", values
            ).fetchall()
            return [_from_row(connection, row) for row in rows]

    def rename(self, chat: str, title: str) -> None:
        """A title is no part of any prompt; a chat does not move up for it."""
        with self._database.write() as connection:
            _chat(connection, chat)
            connection.execute("UPDATE chats SET title = ? WHERE id = ?", (clean(title), chat))

    def delete(self, chat: str) -> None:
        """The chat with all that hangs under it, and the messages that no other chat reaches."""
        with self._database.write() as connection:
            _chat(connection, chat)
            reached = connection.execute("SELECT message FROM reached WHERE chat = ?", (chat,))
            names = [row["message"] for row in reached]
            connection.execute("DELETE FROM chats WHERE id = ?", (chat,))
            drop_unreached(connection, names)
            self._forget()


_CHAT = """
SELECT c.*, coalesce(m.turn, 0) AS num_turns FROM chats c
JOIN branches b ON b.id = c.branch LEFT JOIN messages m ON m.hash = b.tip
"""


def _chat(connection: sqlite3.Connection, chat: str) -> Chat:
    row = connection.execute(f"{_CHAT} WHERE c.id = ?", (chat,)).fetchone()
    if row is None:
        raise StoreError("chat_gone")
    return _from_row(connection, row)


def _from_row(connection: sqlite3.Connection, row: sqlite3.Row) -> Chat:
    leading = connection.execute(
        "SELECT document FROM chat_documents WHERE chat = ? AND leading ORDER BY number",
        (row["id"],),
    )
    return Chat(
        id=row["id"],
        title=row["title"],
        system_text=row["system_text"],
        branch=row["branch"],
        listed=bool(row["listed"]),
        created_at_s=row["created_at_s"],
        updated_at_s=row["updated_at_s"],
        num_turns=row["num_turns"],
        documents=tuple(one["document"] for one in leading),
    )


def _literal(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
