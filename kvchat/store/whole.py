"""A chat as one value: all its messages with their branches, to be taken along and brought back.

Names of messages follow from what they say, so a chat that comes back has the names that it had.
Knows no file format.
"""

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvchat.store import tree
from kvchat.store.base import Base, clean
from kvchat.store.records import Generation, Message
from kvchat.store.replies import add_generation, newest_generation


@dataclass(frozen=True, slots=True)
class WholeChat:
    """`messages`: parents before children; `tips`: names of the messages that branches end with,
    the one that is shown first, none for a chat without any; `generations`: by reply; `pinned`:
    names of user messages; `documents`: name and hash, and whether it stands before the first turn.
    """

    title: str
    system_text: str
    created_at_s: float
    updated_at_s: float
    messages: Sequence[Message]
    tips: Sequence[str]
    generations: Mapping[str, Generation]
    pinned: frozenset[str]
    documents: Sequence[tuple[str, str, bool]]


class Whole(Base):
    def whole(self, chat: str) -> WholeChat:
        """Raises StoreError `chat_gone`."""
        with self._database.read() as connection:
            shown, tip = tree.current_branch(connection, chat)
            row = connection.execute("SELECT * FROM chats WHERE id = ?", (chat,)).fetchone()
            tips = connection.execute(
                "SELECT tip FROM branches WHERE chat = ? AND tip IS NOT NULL AND id != ?"
                " ORDER BY id",
                (chat, shown),
            ).fetchall()
            messages = tree.all_messages(connection, chat)
            made = {
                one.hash: newest_generation(connection, one.hash, chat)
                for one in messages
                if one.role == "assistant"
            }
            pinned = connection.execute("SELECT message FROM pins WHERE chat = ?", (chat,))
            documents = connection.execute(
                "SELECT * FROM chat_documents WHERE chat = ? ORDER BY number", (chat,)
            )
            return WholeChat(
                row["title"],
                row["system_text"],
                row["created_at_s"],
                row["updated_at_s"],
                messages,
                [*([tip] if tip else []), *(one["tip"] for one in tips)],
                {name: one for name, one in made.items() if one is not None},
                frozenset(one["message"] for one in pinned),
                [(one["document"], one["name"], bool(one["leading"])) for one in documents],
            )

    def add_whole(self, there: WholeChat) -> str:
        """A new chat with all of that, in one write; returns its id. Of the documents those that
        the data folder has.
        """
        chat = secrets.token_hex(8)
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO chats VALUES (?, ?, ?, 0, ?, ?, ?)",
                (
                    chat,
                    clean(there.title),
                    clean(there.system_text),
                    True,
                    there.created_at_s,
                    self._clock(),
                ),
            )
            names = _add_messages(connection, chat, there.messages)
            branches = [tree.add_branch(connection, chat, names[tip]) for tip in there.tips]
            shown = branches[0] if branches else tree.add_branch(connection, chat, None)
            tree.show_branch(connection, chat, shown)
            for name, made in there.generations.items():
                add_generation(connection, chat, replace(made, message=names[name]))
            connection.executemany(
                "INSERT INTO pins VALUES (?, ?)", [(chat, names[one]) for one in there.pinned]
            )
            connection.executemany(
                "INSERT INTO chat_documents (chat, document, name, leading)"
                " SELECT ?, sha, ?, ? FROM documents WHERE sha = ?",
                [(chat, clean(name), leading, sha) for sha, name, leading in there.documents],
            )
        return chat


def _add_messages(
    connection: sqlite3.Connection, chat: str, messages: Sequence[Message]
) -> dict[str, str]:
    """Their names now, by those that they came with."""
    names: dict[str, str] = {}
    for one in messages:
        parent = names[one.parent] if one.parent is not None else None
        brought = [replace(a, name=clean(a.name), text=clean(a.text)) for a in one.attachments]
        new = tree.insert(
            connection, chat, parent, one.role, clean(one.content), brought, one.created_at_s
        )
        names[one.hash] = new.hash
    return names
