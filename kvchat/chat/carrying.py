"""Chats taken along as files and brought back: what `portable.py` writes and reads, and the store.

A document that the other data folder does not have cannot come along in a chat's file, but its text
can: it then stands in the turn that it came with. Knows no screen.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Literal

from kvchat.chat.portable import LARGEST_BYTES, file_name, from_json, to_json, to_markdown
from kvchat.chat.rows import Exchange
from kvchat.chat.shelf import Shelf
from kvchat.documents.fence import fence_document
from kvchat.errors import RequestError
from kvchat.store.records import Message
from kvchat.store.store import Store
from kvchat.store.whole import WholeChat
from kvchat.units import format_size
from kvchat.wording import Language

Kind = Literal["json", "md"]


class Carrying:
    def __init__(self, store: Store, shelf: Shelf) -> None:
        self._store = store
        self._shelf = shelf

    def as_json(self, chat: str) -> tuple[str, str]:
        """A file's name and its text. Raises StoreError `chat_gone`."""
        there = self._store.whole(chat)
        return file_name(there.title, "json"), to_json(there, self._leading_texts(there))

    def as_markdown(
        self, chat: str, exchanges: Sequence[Exchange], lang: Language
    ) -> tuple[str, str]:
        """The same of the branch that is shown, to be read by people."""
        title = self._store.chat(chat).title
        return file_name(title, "md"), to_markdown(title, exchanges, lang)

    def bring(self, content: bytes) -> str:
        """The chat of a file as a new one; returns its id. Raises RequestError, and keeps nothing
        then.
        """
        if len(content) > LARGEST_BYTES:
            raise RequestError("chat_file_large", most=format_size(LARGEST_BYTES))
        there, texts = from_json(content)
        missing = {sha for sha, _, _ in there.documents if self._store.document(sha) is None}
        messages = _with_texts(there.messages, {sha: texts.get(sha, "") for sha in missing})
        title = _free_title(there.title, {one.title for one in self._store.chats()})
        return self._store.add_whole(replace(there, messages=messages, title=title))

    def _leading_texts(self, there: WholeChat) -> dict[str, str]:
        """Of the documents that stand before the first turn; of all others the turns have it."""
        return {
            sha: fence_document(self._shelf.document(sha, name))
            for sha, name, leading in there.documents
            if leading and self._shelf.is_read(sha)
        }


def _free_title(title: str, taken: Collection[str]) -> str:
    """Numbered as files of one name are: its original is known from it in the list."""
    if not title or title not in taken:
        return title
    return next(name for n in count(2) if (name := f"{title} ({n})") not in taken)


def _with_texts(messages: Sequence[Message], texts: Mapping[str, str]) -> list[Message]:
    """Where a document was told to be read whole in another place, its text."""
    return [
        replace(
            one,
            attachments=tuple(
                replace(brought, text=texts.get(brought.document, ""))
                if brought.mode == "whole" and not brought.text
                else brought
                for brought in one.attachments
            ),
        )
        for one in messages
    ]
