"""The list of chats: which there are, what is still there of each one's KV, and where words stand.

A chat that is nowhere but on disk as text is read again with the next question; how long that takes
is told from how fast this machine read last. Knows no screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.frames import Frames
from kvchat.chat.reading_again import read_tokens_per_s
from kvchat.chat.rows import ChatRow, Hit
from kvchat.chat.shelf import Shelf
from kvchat.errors import RequestError
from kvchat.kvcache.disk import KVFolder
from kvchat.store.records import Chat
from kvchat.store.search import Found, composed, folded
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

_BEFORE, _LENGTH = 24, 110  # characters of a snippet: before the first word found, and in all
# A file that opens with a password is not a bad one: somebody may still type it.
_MAY_OPEN = ("document_password", "document_encrypted")


class Listing:
    """`kv_folder`: of the files of KV; `live` gives the answer that is being made in a chat;
    `refuse_if_busy` raises RequestError where there is one.
    """

    def __init__(
        self,
        store: Store,
        shelf: Shelf,
        frames: Frames,
        kv_folder: KVFolder,
        engine: Callable[[], Engine | None],
        live: Callable[[str], LiveAnswer | None],
        refuse_if_busy: Callable[[str], None],
    ) -> None:
        self._store = store
        self._shelf = shelf
        self._frames = frames
        self._kv_folder = kv_folder
        self._engine = engine
        self._live = live
        self._refuse_if_busy = refuse_if_busy

    def rows(self, query: str = "") -> list[ChatRow]:
        """Newest first; for a query those that have its words, with the places where they stand."""
        hits = self._store.search(query) if query.strip() else None
        found = [one for one in self._store.chats() if hits is None or one.id in hits]
        held = self._frames.chat_bytes()
        on_disk, others = self._on_disk()
        newest = self._store.newest_figures()
        rate = read_tokens_per_s(self._store.figures_of_newest())
        return [
            ChatRow(
                one.id,
                one.title,
                one.num_turns,
                one.updated_at_s,
                held.get(one.id, 0),
                on_disk.get(one.id, 0),
                _read_s(newest.get(one.id), rate),
                _hits(hits[one.id], query) if hits is not None else (),
                live.status if (live := self._live(one.id)) is not None else None,
                others.get(one.id, 0),
            )
            for one in found
            if not self._is_nothing(one)
        ]

    def _on_disk(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """What each chat has in files of KV that the model as it runs goes on from, and in others.
        Before one runs that is not told apart.
        """
        every, engine = self._kv_folder.chat_bytes(), self._engine()
        if engine is None:
            return every, {}
        disk = engine.disk
        own = self._kv_folder.chat_bytes(disk.model) if disk is not None else {}
        others = {chat: max(0, every[chat] - own.get(chat, 0)) for chat in every}
        return own if disk is not None and disk.quota_bytes else {}, others

    def show(self, chat: str, message: str) -> int:
        """Shows a branch that has the message; returns the turn that it belongs to. Raises
        RequestError where that is another branch than the one that is being answered.
        """
        if message not in {one.hash for one in self._store.messages(chat)}:
            self._refuse_if_busy(chat)
            self._store.switch(chat, message)
        there = self._store.messages(chat)
        until = next(place for place, one in enumerate(there) if one.hash == message)
        return sum(one.role == "user" for one in there[: until + 1])

    def is_nothing(self, chat: str) -> bool:
        """Whether nobody would miss the chat: nothing was said in it, it has no name and no file
        that can be read.
        """
        return self._is_nothing(self._store.chat(chat))

    def _is_nothing(self, chat: Chat) -> bool:
        if chat.num_turns or chat.title:
            return False
        try:
            self._refuse_if_busy(chat.id)
        except RequestError:
            return False
        return all(
            self._is_bad(one.document, one.name) for one in self._store.chat_documents(chat.id)
        )

    def _is_bad(self, sha: str, name: str) -> bool:
        problem = self._shelf.reading(sha, name).problem
        return problem is not None and problem.code not in _MAY_OPEN


def drop_unlisted(store: Store, shelf: Shelf) -> None:
    """Chats that were to end with a program that was killed before it could end them."""
    for row in store.chats(unlisted=True):
        if not row.listed:
            documents = [one.document for one in store.chat_documents(row.id)]
            store.delete(row.id)
            shelf.drop_unused(documents)


def _read_s(figures: Mapping[str, Any] | None, rate: float | None) -> float | None:
    tokens = sum(int((figures or {}).get(name) or 0) for name in ("prompt_tokens", "reply_tokens"))
    return tokens / rate if tokens and rate else None


def _hits(found: Sequence[Found], query: str) -> tuple[Hit, ...]:
    words = folded(query).split()
    return tuple(Hit(one.message, one.turn, one.role, snippet(one.text, words)) for one in found)


def snippet(text: str, words: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """A line of the text around the first of the words: pieces, and whether one is a word of them.

    `words` are folded. Where folding changes a text's length (ß) a word may not be found in it; the
    line is then its beginning.
    """
    line = " ".join(composed(text).split())
    pattern = re.compile("|".join(sorted(map(re.escape, words), key=len, reverse=True)), re.I)
    first = pattern.search(line)
    start = max(0, first.start() - _BEFORE) if first else 0
    if start > 0 and " " in line[start : start + 12]:
        start = line.index(" ", start) + 1
    shown = line[start : start + _LENGTH]
    pieces: list[tuple[str, bool]] = [("… ", False)] if start else []
    done = 0
    for match in pattern.finditer(shown):
        pieces += [(shown[done : match.start()], False), (match[0], True)]
        done = match.end()
    pieces.append((shown[done:] + (" …" if start + _LENGTH < len(line) else ""), False))
    return tuple(piece for piece in pieces if piece[0])
