"""The messages of a chat: appended, forked, shown in another version, deleted by turns.

Messages never change. An edit is a fork from the edited message's parent, a regeneration a fork
whose tip is the question; what was there before stays, one `switch` away.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvchat.store import tree
from kvchat.store.base import Base, clean
from kvchat.store.news import News, Seen, news
from kvchat.store.records import Attachment, Message, Role


class Branches(Base):
    """Every call raises StoreError `chat_gone`, or `message_gone` for a message not in the chat."""

    def append(
        self, chat: str, role: Role, content: str, attachments: Sequence[Attachment] = ()
    ) -> Message:
        """A message after the current branch's tip, which moves onto it.

        A reply that was there already, in that place, shows what followed it (see `tree.settle`).
        """
        brought = tuple(replace(a, name=clean(a.name), text=clean(a.text)) for a in attachments)
        with self._database.write() as connection:
            branch, tip = tree.current_branch(connection, chat)
            now = self._clock()
            new = tree.insert(connection, chat, tip, role, clean(content), brought, now)
            tree.move_tip(connection, branch, new.hash)
            touch(connection, chat, now)
            if role == "assistant":
                tree.settle(connection, chat)
            return new

    def messages(self, chat: str) -> list[Message]:
        """The current branch, oldest first."""
        with self._database.read() as connection:
            _, tip = tree.current_branch(connection, chat)
            return self._chains.to(connection, tip)

    def version(self, chat: str) -> tuple[int, str | None]:
        """Another one whenever anything of the chat's branches, replies, ledger or pins is: never
        one that was before. What is written of other chats counts, too.
        """
        with self._database.read() as connection:
            _, tip = tree.current_branch(connection, chat)
            return (self._database.num_synced, tip)

    def news(self, chat: str, seen: Seen | None) -> News:
        """What became known of the chat's messages since then; for None, nothing is asked."""
        with self._database.read() as connection:
            tree.current_branch(connection, chat)
            return news(connection, chat, seen, self._num_deletions)

    def fork(self, chat: str, parent: str | None) -> None:
        """A branch whose tip is `parent` becomes the current one; None starts the chat anew."""
        with self._database.write() as connection:
            tree.current_branch(connection, chat)
            if parent is not None:
                tree.require(connection, chat, parent)
            there = connection.execute(
                "SELECT id FROM branches WHERE chat = ? AND tip IS ?", (chat, parent)
            ).fetchone()
            branch = there["id"] if there else tree.add_branch(connection, chat, parent)
            tree.show_branch(connection, chat, branch)

    def drop_empty_fork(self, chat: str) -> None:
        """Back to what was shown before a fork of which nothing came, unless a draft is on its way.

        The next opening does it too.
        """
        with self._database.write() as connection:
            tree.current_branch(connection, chat)
            draft = connection.execute("SELECT 1 FROM drafts WHERE chat = ?", (chat,)).fetchone()
            if draft is None:
                tree.settle(connection, chat)

    def siblings(self, chat: str, message_hash: str) -> list[str]:
        """The versions of a message in this chat, itself included, in the order they came about."""
        with self._database.read() as connection:
            row = tree.require(connection, chat, message_hash)
            rows = connection.execute(
                "SELECT m.hash FROM reached r JOIN messages m ON m.hash = r.message"
                " WHERE r.chat = ? AND m.parent IS ? AND m.role = ? ORDER BY r.number",
                (chat, row["parent"], row["role"]),
            )
            return [one["hash"] for one in rows]

    def replies(self, chat: str, user_hash: str) -> list[str]:
        """The replies to a message in this chat, in the order they came about."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT m.hash FROM reached r JOIN messages m ON m.hash = r.message"
                " WHERE r.chat = ? AND m.parent = ? AND m.role = 'assistant' ORDER BY r.number",
                (chat, user_hash),
            )
            return [one["hash"] for one in rows]

    def switch(self, chat: str, message_hash: str) -> None:
        """Shows, of the branches that contain the message, the one with the newest tip."""
        with self._database.write() as connection:
            tree.require(connection, chat, message_hash)
            branch = tree.newest_branch(connection, chat, message_hash)
            assert branch is not None  # a chat reaches only what a branch of it contains
            tree.show_branch(connection, chat, branch)

    def delete_turn(self, chat: str, user_hash: str) -> None:
        """Takes a user message and its replies out of every branch that contains it.

        What came after is chained anew to what came before, and so gets new names; generations,
        pins and ledger rows follow. A draft of a reply to the deleted message goes with it, and so
        do the chat's summaries, which may tell of it.
        """
        with self._database.write() as connection:
            tree.require(connection, chat, user_hash, "user")
            old = tree.descendants(connection, chat, user_hash)
            renamed, gone = _rechained(connection, chat, old)
            connection.execute("DELETE FROM summaries WHERE chat = ?", (chat,))
            follow(connection, chat, renamed, gone)
            tree.unreach(connection, chat)
            tree.settle(connection, chat)
            tree.drop_unreached(connection, renamed)
            self._forget()


def touch(connection: sqlite3.Connection, chat: str, now: float) -> None:
    """What is said in a chat brings it to the head of the list."""
    connection.execute("UPDATE chats SET updated_at_s = ? WHERE id = ?", (now, chat))


def _rechained(
    connection: sqlite3.Connection, chat: str, old: Sequence[Message]
) -> tuple[dict[str, str | None], set[str]]:
    """New names of the messages once the first and its replies are gone, and the names of those.

    A message that is gone maps to what stood before the first.
    """
    gone = {old[0].hash}
    renamed = {old[0].hash: old[0].parent}
    for one in old[1:]:
        assert one.parent is not None
        parent = renamed[one.parent]
        if one.role == "assistant" and one.parent in gone:
            gone.add(one.hash)
            renamed[one.hash] = parent
            continue
        new = tree.insert(
            connection, chat, parent, one.role, one.content, one.attachments, one.created_at_s
        )
        renamed[one.hash] = new.hash
    return renamed, gone


# What hangs under a message of a chat: table, column, and which of its rows are the chat's.
_FOLLOWERS = (
    ("branches", "tip", "chat = ?"),
    ("generations", "message", "chat = ?"),
    ("pins", "message", "chat = ?"),
    ("drafts", "user", "chat = ?"),
    ("ledger", "question", "chat = ?"),
    ("ledger_turns", "message", "entry IN (SELECT number FROM ledger WHERE chat = ?)"),
)
# What outlives the message: it hangs under what stood before that from then on.
_OUTLIVES = ("branches", "ledger")


def follow(
    connection: sqlite3.Connection, chat: str, renamed: Mapping[str, str | None], gone: set[str]
) -> None:
    """Moves what hangs under the messages to their new names, each row once, by its row id.

    A new name may be the old name of another message, so names are not replaced one by one. What
    hangs under a message that is gone goes with it, but for what outlives it: a branch, which ends
    before it, and what was done while it was answered.
    """
    for table, column, ours in _FOLLOWERS:
        rows = connection.execute(f"SELECT rowid, {column} FROM {table} WHERE {ours}", (chat,))
        for row, name in rows.fetchall():
            if name in gone and table not in _OUTLIVES:
                connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
            elif name in renamed:
                moved = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
                connection.execute(moved, (renamed[name], row))
