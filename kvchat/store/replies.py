"""Replies: a draft while the words come, then a message with its generation.

A draft is written down token by token, one small row each, so that the end of the program at any
moment loses at most the token in flight. What is half-made at the next opening becomes a reply
with the stop reason `interrupted`. A reply that goes on from one that was cut is drafted with that
one's text at its head, and takes its place.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from struct import pack, unpack
from typing import Any

from kvchat.errors import StoreError
from kvchat.store import tree
from kvchat.store.base import Base, clean
from kvchat.store.branches import touch
from kvchat.store.records import Begun, Generation, Message


class Replies(Base):
    def add_generation(self, chat: str, generation: Generation) -> None:
        """Hangs figures under a reply of the chat; the newest ones count."""
        with self._database.write() as connection:
            tree.require(connection, chat, generation.message, "assistant")
            add_generation(connection, chat, generation)

    def generation(self, message_hash: str, chat: str | None = None) -> Generation | None:
        """The newest under that reply, in this chat or, for None, in whichever made it last."""
        with self._database.read() as connection:
            return newest_generation(connection, message_hash, chat)

    def start_draft(
        self, chat: str, user_hash: str, model: str = "", begun: Begun | None = None
    ) -> None:
        """A reply to that message begins; where it goes on from one that was `begun`, it takes that
        one's place in the end.

        An earlier draft that nobody finished becomes another version, on a branch of its own.
        """
        with self._database.write() as connection:
            tree.require(connection, chat, user_hash, "user")
            earlier = _interrupted(connection, chat, self._clock())
            if earlier:
                tree.add_branch(connection, chat, earlier.hash)
                self._forget()  # it may have taken the place of another
            connection.execute(
                "INSERT INTO drafts (chat, user, model, started_at_s, num_characters, num_ids,"
                " goes_on) VALUES (?, ?, ?, ?, 0, 0, ?)",
                (chat, user_hash, model, self._clock(), begun.name if begun else None),
            )
            if begun is not None:
                tree.require(connection, chat, begun.name, "assistant")
                _write_piece(
                    connection, chat, begun.text, begun.ids, len(begun.text), len(begun.ids)
                )

    def cite_draft(self, chat: str, citations: Sequence[Mapping[str, Any]]) -> None:
        """What the reply is given to read: its sources, should nobody finish it."""
        rows = json.dumps([dict(one) for one in citations])
        with self._database.write(synced=False) as connection:
            connection.execute("UPDATE drafts SET citations = ? WHERE chat = ?", (rows, chat))

    def write_draft(self, chat: str, text: str, ids: Sequence[int]) -> None:
        """The whole reply so far, which only grows; what is new since the last call is written.

        Raises StoreError where there is no draft (any more). Not synced: see `Database.write`.
        """
        with self._database.write(synced=False) as connection:
            draft = connection.execute("SELECT * FROM drafts WHERE chat = ?", (chat,)).fetchone()
            if draft is None:
                tree.current_branch(connection, chat)
                raise StoreError("message_gone")
            new = text[draft["num_characters"] :], ids[draft["num_ids"] :]
            _write_piece(connection, chat, *new, len(text), len(ids))

    def drop_draft(self, chat: str) -> None:
        """Nothing came of it: what was there before stays as it was."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM drafts WHERE chat = ?", (chat,))

    def finish_draft(
        self, chat: str, content: str, generation: Generation | None = None
    ) -> Message | None:
        """The draft becomes a reply and its generation, whose `message` is filled in here.

        The reply stands under the message that it answers, whichever branch is shown by now.
        None where there is no text to keep, or no draft (the message was deleted).
        """
        with self._database.write() as connection:
            draft = connection.execute("SELECT * FROM drafts WHERE chat = ?", (chat,)).fetchone()
            if draft is None:
                tree.current_branch(connection, chat)
                return None
            if draft["goes_on"]:
                self._forget()
            now = self._clock()
            reply = _concluded(connection, draft, clean(content), generation, now)
            _show(connection, chat, reply)
            return reply

    def _conclude_interrupted(self) -> None:
        """At the opening: the drafts of a program that ended become replies, empty forks go."""
        with self._database.write() as connection:
            for (chat,) in connection.execute(
                "SELECT chat FROM drafts"
                " UNION SELECT chat FROM branches GROUP BY chat HAVING count(*) > 1"
            ).fetchall():
                _show(connection, chat, _interrupted(connection, chat, self._clock()))


def _write_piece(
    connection: sqlite3.Connection,
    chat: str,
    text: str,
    ids: Sequence[int],
    num_characters: int,
    num_ids: int,
) -> None:
    connection.execute(
        "INSERT INTO draft_pieces SELECT :chat, coalesce(max(place), 0) + 1, :text, :ids"
        " FROM draft_pieces WHERE chat = :chat",
        {"chat": chat, "text": clean(text), "ids": _packed(ids)},
    )
    connection.execute(
        "UPDATE drafts SET num_characters = ?, num_ids = ? WHERE chat = ?",
        (num_characters, num_ids, chat),
    )


def _concluded(
    connection: sqlite3.Connection,
    draft: sqlite3.Row,
    content: str,
    generation: Generation | None,
    now: float,
) -> Message | None:
    """The draft as a message, on no branch yet unless it takes another's place; None if there is no
    text.
    """
    chat = draft["chat"]
    connection.execute("DELETE FROM drafts WHERE chat = ?", (chat,))
    if not content.strip():
        return None
    reply = tree.insert(connection, chat, draft["user"], "assistant", content, (), now)
    if generation:
        add_generation(connection, chat, replace(generation, message=reply.hash))
    if draft["goes_on"] not in (None, reply.hash):
        _take_place(connection, chat, draft["goes_on"], reply.hash)
    touch(connection, chat, now)
    return reply


def _take_place(connection: sqlite3.Connection, chat: str, begun: str, reply: str) -> None:
    """The longer reply stands where the one that it goes on from stood, unless something follows
    that one: then it is another version.
    """
    if len(tree.descendants(connection, chat, begun)) != 1:
        return
    connection.execute(
        "UPDATE branches SET tip = ? WHERE chat = ? AND tip = ?", (reply, chat, begun)
    )
    place = connection.execute(
        "DELETE FROM reached WHERE chat = ? AND message = ? RETURNING number", (chat, begun)
    ).fetchone()
    connection.execute(
        "UPDATE reached SET number = ? WHERE chat = ? AND message = ?",
        (place["number"], chat, reply),
    )
    tree.drop_unreached(connection, [begun])


def _interrupted(connection: sqlite3.Connection, chat: str, now: float) -> Message | None:
    """The draft that nobody finished, concluded as far as it was written down."""
    draft = connection.execute("SELECT * FROM drafts WHERE chat = ?", (chat,)).fetchone()
    if draft is None:
        return None
    pieces = connection.execute(
        "SELECT text, ids FROM draft_pieces WHERE chat = ? ORDER BY place", (chat,)
    ).fetchall()
    ids = _unpacked(b"".join(piece["ids"] for piece in pieces))
    text = "".join(piece["text"] for piece in pieces)
    citations = json.loads(draft["citations"])
    generation = Generation("", ids, "interrupted", {}, citations, draft["model"], now)
    return _concluded(connection, draft, text, generation, now)


def _show(connection: sqlite3.Connection, chat: str, reply: Message | None) -> None:
    """The branch that waits for the reply moves on to it: the current, another, or a new one."""
    if reply:
        current, _ = tree.current_branch(connection, chat)
        waiting = connection.execute(
            "SELECT id FROM branches WHERE chat = ? AND tip = ? ORDER BY id = ? DESC, id LIMIT 1",
            (chat, reply.parent, current),
        ).fetchone()
        if waiting:
            tree.move_tip(connection, waiting["id"], reply.hash)
        else:
            tree.add_branch(connection, chat, reply.hash)
    tree.settle(connection, chat)


def newest_generation(
    connection: sqlite3.Connection, message_hash: str, chat: str | None
) -> Generation | None:
    row = connection.execute(
        "SELECT * FROM generations WHERE message = :message"
        " AND (:chat IS NULL OR chat = :chat) ORDER BY number DESC LIMIT 1",
        {"message": message_hash, "chat": chat},
    ).fetchone()
    return _generation(row) if row else None


def add_generation(connection: sqlite3.Connection, chat: str, generation: Generation) -> None:
    connection.execute(
        "INSERT INTO generations (chat, message, sampled_ids, stop_reason, figures, citations,"
        " model, created_at_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            chat,
            generation.message,
            _packed(generation.sampled_ids),
            generation.stop_reason,
            json.dumps(generation.figures),
            json.dumps(generation.citations),
            generation.model,
            generation.created_at_s,
        ),
    )


def _generation(row: sqlite3.Row) -> Generation:
    return Generation(
        message=row["message"],
        sampled_ids=_unpacked(row["sampled_ids"]),
        stop_reason=row["stop_reason"],
        figures=json.loads(row["figures"]),
        citations=json.loads(row["citations"]),
        model=row["model"],
        created_at_s=row["created_at_s"],
    )


def _packed(ids: Sequence[int]) -> bytes:
    return pack(f"<{len(ids)}I", *ids)


def _unpacked(packed: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(packed) // 4}I", packed)
