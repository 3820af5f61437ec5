"""A question asked once, with files, as `ask` does it: by a program of its own, or by the one that
runs.

Without a title nothing of the chat is kept; with one, the chat of that title goes on or is begun.
Knows no terminal and no HTTP.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvchat.errors import DocumentError, KVChatError, RequestError

if TYPE_CHECKING:
    from kvchat.chat.answer import LiveAnswer
    from kvchat.chat.conversations import Conversations
    from kvchat.chat.rows import DocumentRow

logger = logging.getLogger(__name__)

Event = dict[str, Any]
Passwords = Callable[[str], Iterable[str]]
"""From a file's name to what is to be tried on it."""

_LOOK_S = 0.05
_LONGEST_END_S = 30.0


@dataclass(frozen=True, slots=True)
class Once:
    """`files`: where each lies, and what it is called. `overrides`: settings for this answer."""

    question: str
    files: Sequence[tuple[Path, str]] = ()
    title: str = ""
    overrides: Mapping[str, object] = field(default_factory=dict)


class AskedOnce:
    """Told and stopped as a `LiveAnswer` is."""

    def __init__(self, conversations: "Conversations", once: Once, passwords: Passwords) -> None:
        self._conversations = conversations
        self._once = once
        self._passwords = passwords
        self._cancel = threading.Event()
        self._live: LiveAnswer | None = None

    def stop(self) -> None:
        self._cancel.set()
        if self._live is not None:
            self._live.stop()

    def events(self) -> Iterator[Event]:
        """A `note` for what is to be said beforehand: code and facts; then the answer's events.
        What cannot be asked ends with `refused`: code and facts too. Blocks; to be read once.
        """
        try:
            yield from self._asked()
        except KVChatError as error:
            yield {"type": "refused", **error.row()}
        except Exception as error:
            logger.exception("a question could not be asked")
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            yield {"type": "refused", **RequestError("step_failed", why=why).row()}

    def _asked(self) -> Iterator[Event]:
        for code in self._conversations.status()["notices"]:
            if code.startswith("notice.format_"):
                yield _note(code)
        with self._chat() as chat:
            if self._conversations.live(chat) is not None:
                raise RequestError("answer_under_way")
            yield from self._with_files(chat)
            last = None if self._cancel.is_set() else (yield from self._answered(chat))
        if last is not None:  # told when nothing is left to be done
            yield last

    def _answered(self, chat: str) -> Generator[Event, None, Event | None]:
        """All but the last event; returns that."""
        once = self._once
        live = self._live = self._conversations.ask(chat, once.question, once.overrides)
        if self._cancel.is_set():
            live.stop()
        try:
            for event in live.events():
                if event["type"] in ("done", "failed"):
                    return event
                yield event
            return None
        finally:
            live.stop()
            live.wait_ended(_LONGEST_END_S)

    @contextmanager
    def _chat(self) -> Iterator[str]:
        """The chat of that title. One that is new stays only if a question was asked in it, one
        without a title not even then.
        """
        conversations, title = self._conversations, " ".join(self._once.title.split())
        known = [row.id for row in conversations.chats() if title and row.title == title]
        chat = known[0] if known else conversations.new_chat(listed=bool(title))
        if title and not known:
            conversations.rename(chat, title)
        try:
            yield chat
        finally:
            if not known and not (title and conversations.history(chat)):
                conversations.delete(chat)

    # --- files ------------------------------------------------------------------------------------

    def _with_files(self, chat: str) -> Iterator[Event]:
        """Adds the files and waits until they are read; what could not be read is said at once, and
        is not added.
        """
        conversations = self._conversations
        before = {row.document for row in conversations.documents(chat)}
        added = {conversations.add_document(chat, *file) for file in self._once.files}
        yield from self._read(chat)
        for row in conversations.documents(chat):
            if row.asks_password and row.document in added:
                yield from self._unlock(chat, row)
        rows = conversations.documents(chat)
        problems = {row.document: row.problem for row in rows if row.problem is not None}
        for document in problems.keys() - before:
            conversations.remove_document(chat, document)
        for document in sorted(problems.keys() & added):
            raise DocumentError(problems[document]["code"], **problems[document]["facts"])
        for row in rows:
            yield from (_note(note["code"], **note["facts"]) for note in row.notes)

    def _read(self, chat: str) -> Iterator[Event]:
        """Until all is read. Recognising text takes seconds a page, and the question waits."""
        said: set[str] = set()
        while not self._cancel.is_set():
            rows = self._conversations.documents(chat)
            for row in rows:
                if row.num_to_recognise and row.document not in said:
                    said.add(row.document)
                    yield _note("ask.recognising", name=row.name, pages=row.num_to_recognise)
            if all(row.is_complete or row.problem for row in rows):
                return
            time.sleep(_LOOK_S)

    def _unlock(self, chat: str, row: "DocumentRow") -> Iterator[Event]:
        for password in self._passwords(row.name):
            self._conversations.library.unlock(chat, row.document, password)
            yield from self._read(chat)
            rows = {one.document: one for one in self._conversations.documents(chat)}
            if self._cancel.is_set() or not rows[row.document].asks_password:
                return


def _note(code: str, **facts: object) -> Event:
    return {"type": "note", "code": code, "facts": facts}
