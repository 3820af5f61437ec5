"""What may be done with documents beside adding them: unlocked, renamed, put into another chat,
forgotten for good.
"""

from collections.abc import Callable
from typing import Any

from kvchat.chat.shelf import Shelf
from kvchat.documents.clean import clean_name
from kvchat.errors import RequestError
from kvchat.store.library import Kept
from kvchat.store.store import Store

ForgetKV = Callable[[str], None]
"""Removes the files of KV that belong to a chat, which goes on."""


class Library:
    """Every call that names a document raises RequestError where there is no such one."""

    def __init__(
        self,
        store: Store,
        shelf: Shelf,
        refuse_if_busy: Callable[[str], None],
        forget_kv: ForgetKV,
    ) -> None:
        self._store, self._shelf = store, shelf
        self._refuse_if_busy, self._forget_kv = refuse_if_busy, forget_kv

    def documents(self) -> list[Kept]:
        """All that were read, the newest first."""
        return self._store.library()

    def attach(self, chat: str, document: str) -> None:
        """Puts a document that is there into a chat; its text and KV are used again."""
        kept = self._store.document(document)
        if kept is None:
            raise RequestError("document_gone")
        self._store.chat(chat)
        self._store.attach_document(chat, document, kept.name)

    def rename(self, document: str, name: str) -> str:
        """The name as it is kept. Raises RequestError for one without a letter in it."""
        if not name.strip():
            raise RequestError("document_unnamed")
        if self._store.document(document) is None:
            raise RequestError("document_gone")
        shown = clean_name(name)
        self._store.rename_document(document, shown)
        self._shelf.forget_text(document)
        return shown

    def forget(self, document: str) -> None:
        """The file, its text, index and citations, what messages brought along of it, and the
        files of KV of the chats that had it. Refused while one of them is answering.
        """
        chats = self._store.chats_with(document)
        if not chats and self._store.document(document) is None:
            raise RequestError("document_gone")
        for chat in chats:
            self._refuse_if_busy(chat)
        self._store.forget_document(document)
        for chat in chats:
            self._forget_kv(chat)
        self._shelf.drop_unused([document])

    def unlock(self, chat: str, document: str, password: str) -> None:
        """Tries a password; what came of it stands in the document's row."""
        self._shelf.unlock(document, self._name(chat, document), password)

    def pages(self, chat: str, document: str) -> list[dict[str, Any]]:
        """The pages that were read up to now: see `Shelf.page_rows`."""
        return self._shelf.page_rows(document, self._name(chat, document))

    def _name(self, chat: str, document: str) -> str:
        for one in self._store.chat_documents(chat):
            if one.document == document:
                return one.name
        raise RequestError("document_gone")
