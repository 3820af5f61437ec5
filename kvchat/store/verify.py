"""Checks the whole store from what it holds: SQLite's own checks, every name, every branch.

The lines are for a log or a report, not for a screen.
"""

import sqlite3
from collections.abc import Iterator

from kvchat.store import tree
from kvchat.store.base import Base
from kvchat.store.records import message_hash


class Verified(Base):
    def verify(self) -> list[str]:
        """One line a problem; an empty list if all is well."""
        with self._database.read() as connection:
            return [*_sqlite(connection), *_messages(connection), *_chats(connection)]


def _sqlite(connection: sqlite3.Connection) -> Iterator[str]:
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield f"integrity: {line}"
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"{table} row {row} names something missing in {parent}"


def _messages(connection: sqlite3.Connection) -> Iterator[str]:
    rows = connection.execute("SELECT * FROM messages").fetchall()
    turns = {row["hash"]: row["turn"] for row in rows}
    for row in rows:
        brought = tree.attachments(connection, row["hash"])
        name = message_hash(row["parent"], row["role"], row["content"], brought)
        if name != row["hash"]:
            yield f"message {row['hash']} should be named {name}"
        if row["turn"] != turns.get(row["parent"], 0) + (row["role"] == "user"):
            yield f"message {row['hash']} has a wrong turn number"
    for row in connection.execute(
        "SELECT hash FROM messages WHERE hash NOT IN (SELECT message FROM reached)"
    ):
        yield f"message {row['hash']} is in no chat"


def _chats(connection: sqlite3.Connection) -> Iterator[str]:
    for chat in connection.execute("SELECT id, branch FROM chats").fetchall():
        branches = connection.execute("SELECT * FROM branches WHERE chat = ?", (chat["id"],))
        tips = {row["id"]: row["tip"] for row in branches.fetchall()}
        if chat["branch"] not in tips:
            yield f"chat {chat['id']} shows a branch of another chat"
        contained = {one.hash for tip in tips.values() for one in tree.chain(connection, tip)}
        rows = connection.execute("SELECT message FROM reached WHERE chat = ?", (chat["id"],))
        reached = {row["message"] for row in rows}
        for name in contained ^ reached:
            yield f"chat {chat['id']} and its branches disagree on message {name}"
    for row in connection.execute(
        "SELECT t.entry, t.message FROM ledger_turns t JOIN ledger l ON l.number = t.entry"
        " WHERE l.chat IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM reached r WHERE r.chat = l.chat AND r.message = t.message)"
    ):
        yield f"ledger entry {row['entry']} names a message that is not in its chat"
