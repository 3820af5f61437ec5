"""Searching titles and texts of all chats, in every script: a part of a word is found as well.

Letters compare without case, and composed: Korean from a Mac is stored as single sounds, and what
is typed is not. Reads beside the program's own connection: a long search holds up no answer.
"""

import sqlite3
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvchat.store.base import Base
from kvchat.store.database import looked_at
from kvchat.store.records import Role


@dataclass(frozen=True, slots=True)
class Found:
    """A message that has a word of what was looked for; `turn` counts on its own branch."""

    message: str
    turn: int
    role: Role
    text: str


class Search(Base):
    def search(self, query: str, most: int = 3) -> dict[str, tuple[Found, ...]]:
        """Chats of the list where each word of the query stands in the title or in a message of any
        branch, with the newest messages that have the most of them, `most` a chat.
        """
        words = folded(query).split()
        with looked_at(self._database.file) as connection:
            if not words or connection is None:
                return {}
            return dict(_chats(connection, words, most))


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    return composed(text).casefold()


def _chats(
    connection: sqlite3.Connection, words: Sequence[str], most: int
) -> Iterator[tuple[str, tuple[Found, ...]]]:
    for chat in connection.execute("SELECT id, title FROM chats WHERE listed").fetchall():
        title = folded(chat["title"])
        missing = {word for word in words if word not in title}
        hits: list[tuple[int, Found]] = []
        for row in connection.execute(_MESSAGES, {"chat": chat["id"]}):
            there = _there(row["content"], words)
            if there:
                found = Found(row["hash"], row["turn"], row["role"], row["content"])
                hits.append((len(there), found))
                missing -= there
        if not missing:
            best = sorted(hits, key=lambda hit: -hit[0])  # of equal ones, the newest stays first
            yield chat["id"], tuple(found for _, found in best[:most])


_MESSAGES = """
SELECT m.hash, m.turn, m.role, m.content FROM reached r JOIN messages m ON m.hash = r.message
WHERE r.chat = :chat ORDER BY r.number DESC
"""


def _there(content: str, words: Sequence[str]) -> set[str]:
    text = folded(content)
    return {word for word in words if word in text}
