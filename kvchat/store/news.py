"""What is new of a chat's messages since they were read: which came, and which were answered anew.

So a long chat need not be read again for each turn. Only within one transaction; after a deletion
nothing that was read before holds.
"""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a chat was read: deletions, messages that it reached, and generations."""

    deletions: int
    reached: int
    generations: int


@dataclass(frozen=True, slots=True)
class News:
    """`seen`: how far it goes. None of the rest holds where `all`: the chat is read as a whole.
    `parents`: questions whose parent is one of them (None: the root) have other versions now.
    `replies`: these have newer figures.
    """

    seen: Seen
    all: bool
    parents: Collection[str | None] = ()
    replies: Collection[str] = ()


def news(connection: sqlite3.Connection, chat: str, seen: Seen | None, num_deletions: int) -> News:
    # A plus sign keeps SQLite to the order of numbers: by chat it would walk over all of them.
    reached, generations = connection.execute(
        "SELECT (SELECT max(number) FROM reached), (SELECT max(number) FROM generations)"
    ).fetchone()
    now = Seen(num_deletions, reached or 0, generations or 0)
    if seen is None or seen.deletions != num_deletions:
        return News(now, True)
    came = connection.execute(
        "SELECT m.role, m.parent, (SELECT p.parent FROM messages p WHERE p.hash = m.parent)"
        " FROM reached r CROSS JOIN messages m ON m.hash = r.message"
        " WHERE r.number > ? AND +r.chat = ?",
        (seen.reached, chat),
    ).fetchall()
    answered = connection.execute(
        "SELECT message FROM generations WHERE number > ? AND +chat = ?", (seen.generations, chat)
    ).fetchall()
    return News(
        now,
        False,
        {parent if role == "user" else before for role, parent, before in came},
        {message for (message,) in answered},
    )
