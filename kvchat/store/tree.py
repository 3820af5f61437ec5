"""The tree of messages and the branches that point into it, as functions within one transaction.

A branch is a tip; its messages are the tip's ancestors. A chat reaches what its branches reach.
Nothing here opens a transaction or looks at a clock.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence

from kvchat.errors import StoreError
from kvchat.store.records import Attachment, Message, Role, message_hash

# From the root of message ? down to it.
_CHAIN = """
WITH RECURSIVE chain (hash, depth) AS (
    SELECT ?, 0
    UNION ALL
    SELECT m.parent, chain.depth + 1 FROM chain JOIN messages m ON m.hash = chain.hash
    WHERE m.parent IS NOT NULL
)
SELECT m.* FROM chain JOIN messages m ON m.hash = chain.hash ORDER BY chain.depth DESC
"""

# The messages that chat :chat reaches from message :message on, itself included.
# CROSS JOIN keeps SQLite to this order; its own choice took seconds for a thousand turns.
_DESCENDANTS = """
WITH RECURSIVE below (hash) AS (
    SELECT :message
    UNION
    SELECT m.hash FROM below CROSS JOIN messages m ON m.parent = below.hash
    CROSS JOIN reached r ON r.chat = :chat AND r.message = m.hash
)
"""


def current_branch(connection: sqlite3.Connection, chat: str) -> tuple[int, str | None]:
    """The id and the tip of a chat's current branch. Raises StoreError `chat_gone`."""
    row = connection.execute(
        "SELECT b.id, b.tip FROM chats c JOIN branches b ON b.id = c.branch WHERE c.id = ?", (chat,)
    ).fetchone()
    if row is None:
        raise StoreError("chat_gone")
    return row["id"], row["tip"]


def require(
    connection: sqlite3.Connection, chat: str, message: str, role: Role | None = None
) -> sqlite3.Row:
    """The message's row. Raises StoreError unless the chat reaches it (and it has that role)."""
    row: sqlite3.Row | None = connection.execute(
        "SELECT m.* FROM reached r JOIN messages m ON m.hash = r.message"
        " WHERE r.chat = ? AND r.message = ?",
        (chat, message),
    ).fetchone()
    if row is None or role not in (None, row["role"]):
        current_branch(connection, chat)
        raise StoreError("message_gone")
    return row


def chain(connection: sqlite3.Connection, tip: str | None) -> list[Message]:
    """The messages from the root to the tip."""
    rows = connection.execute(_CHAIN, (tip,)).fetchall() if tip else []
    return [_message(connection, row) for row in rows]


def message(connection: sqlite3.Connection, name: str) -> Message:
    """One that is there."""
    row = connection.execute("SELECT * FROM messages WHERE hash = ?", (name,)).fetchone()
    return _message(connection, row)


def _message(connection: sqlite3.Connection, row: sqlite3.Row) -> Message:
    brought = attachments(connection, row["hash"]) if row["role"] == "user" else ()
    return Message(
        row["hash"], row["parent"], row["role"], row["content"], brought, row["created_at_s"]
    )


def attachments(connection: sqlite3.Connection, message: str) -> tuple[Attachment, ...]:
    rows = connection.execute(
        "SELECT * FROM attachments WHERE message = ? ORDER BY place", (message,)
    )
    return tuple(
        Attachment(r["document"], r["name"], r["mode"], tuple(json.loads(r["passages"])), r["text"])
        for r in rows
    )


def insert(
    connection: sqlite3.Connection,
    chat: str,
    parent: str | None,
    role: Role,
    content: str,
    brought: Sequence[Attachment],
    created_at_s: float,
) -> Message:
    """The message of that name, written where it is new, and reached by the chat from now on."""
    name = message_hash(parent, role, content, brought)
    there = connection.execute("SELECT * FROM messages WHERE hash = ?", (name,)).fetchone()
    if there is None:
        before = connection.execute(
            "SELECT turn FROM messages WHERE hash = ?", (parent,)
        ).fetchone()
        turn = (before["turn"] if before else 0) + (role == "user")
        connection.execute(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)",
            (name, parent, role, content, turn, created_at_s),
        )
        connection.executemany(
            "INSERT INTO attachments VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (name, place, a.document, a.name, a.mode, json.dumps(a.passages), a.text)
                for place, a in enumerate(brought)
            ],
        )
    connection.execute("INSERT OR IGNORE INTO reached (chat, message) VALUES (?, ?)", (chat, name))
    first_s = there["created_at_s"] if there else created_at_s
    return Message(name, parent, role, content, tuple(brought), first_s)


def move_tip(connection: sqlite3.Connection, branch: int, tip: str | None) -> None:
    connection.execute("UPDATE branches SET tip = ? WHERE id = ?", (tip, branch))


def add_branch(connection: sqlite3.Connection, chat: str, tip: str | None) -> int:
    made = connection.execute("INSERT INTO branches (chat, tip) VALUES (?, ?)", (chat, tip))
    return int(made.lastrowid or 0)


def show_branch(connection: sqlite3.Connection, chat: str, branch: int) -> None:
    connection.execute("UPDATE chats SET branch = ? WHERE id = ?", (branch, chat))


def newest_branch(connection: sqlite3.Connection, chat: str, message: str | None) -> int | None:
    """Of the branches that contain the message (of all, for None), the one with the newest tip."""
    within = "JOIN below ON below.hash = b.tip" if message else ""
    row = connection.execute(
        f"{_DESCENDANTS} SELECT b.id FROM branches b {within}"
        " LEFT JOIN reached r ON r.chat = b.chat AND r.message = b.tip"
        " WHERE b.chat = :chat ORDER BY r.number DESC, b.id LIMIT 1",
        {"chat": chat, "message": message},
    ).fetchone()
    return row["id"] if row else None


def settle(connection: sqlite3.Connection, chat: str) -> None:
    """Drops the branches that hold nothing of their own: another branch contains their tip.

    So a reply that came out the same as an earlier one shows what followed that one, and a fork
    that nothing came of leaves no trace. Where the current branch goes, the newest that contains
    it is shown.
    """
    current, tip = current_branch(connection, chat)
    spare = [
        row["id"]
        for row in connection.execute(
            "SELECT b.id FROM branches b WHERE b.chat = :chat AND ("
            " EXISTS (SELECT 1 FROM messages m JOIN reached r"
            "  ON r.chat = :chat AND r.message = m.hash WHERE m.parent IS b.tip)"
            " OR EXISTS (SELECT 1 FROM branches a"
            "  WHERE a.chat = :chat AND a.tip IS b.tip AND a.id < b.id))",
            {"chat": chat},
        )
    ]
    connection.executemany("DELETE FROM branches WHERE id = ?", [(one,) for one in spare])
    if current in spare:
        left = newest_branch(connection, chat, tip)
        assert left is not None  # what contains a dropped branch is never dropped itself
        show_branch(connection, chat, left)


def unreach(connection: sqlite3.Connection, chat: str) -> None:
    """Drops what no branch of the chat reaches any more, and with it what hangs under it."""
    connection.execute(
        "WITH RECURSIVE kept (hash) AS ("
        "  SELECT tip FROM branches WHERE chat = :chat AND tip IS NOT NULL"
        "  UNION SELECT m.parent FROM kept JOIN messages m ON m.hash = kept.hash"
        "  WHERE m.parent IS NOT NULL)"
        " DELETE FROM reached WHERE chat = :chat AND message NOT IN kept",
        {"chat": chat},
    )


def drop_unreached(connection: sqlite3.Connection, candidates: Iterable[str]) -> None:
    """Of these messages, deletes those that no chat reaches, in whatever order they come."""
    connection.executemany(
        "DELETE FROM messages WHERE hash = ?"
        " AND NOT EXISTS (SELECT 1 FROM reached WHERE message = messages.hash)",
        [(name,) for name in candidates],
    )


def descendants(connection: sqlite3.Connection, chat: str, message: str) -> list[Message]:
    """The message and all that the chat reaches below it, parents before children."""
    rows = connection.execute(
        f"{_DESCENDANTS} SELECT m.* FROM below CROSS JOIN messages m ON m.hash = below.hash"
        " CROSS JOIN reached r ON r.chat = :chat AND r.message = m.hash ORDER BY r.number",
        {"chat": chat, "message": message},
    ).fetchall()
    return [_message(connection, row) for row in rows]


def all_messages(connection: sqlite3.Connection, chat: str) -> list[Message]:
    """All that the chat reaches, parents before children, else in the order it came to them."""
    rows = connection.execute(
        "SELECT m.* FROM reached r JOIN messages m ON m.hash = r.message WHERE r.chat = ?"
        " ORDER BY m.turn, m.role DESC, r.number",
        (chat,),
    ).fetchall()
    return [_message(connection, row) for row in rows]
