"""The one object through which chats, documents, ledger and saved settings are kept on disk.

One part a file, all over one database in the data folder. Knows no model, no cache and no screen.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from kvchat.errors import StoreError
from kvchat.store.branches import Branches
from kvchat.store.chats import Chats
from kvchat.store.choices import Choices
from kvchat.store.database import FILE_NAME, Database
from kvchat.store.documents import Documents
from kvchat.store.folder import HeldFolder
from kvchat.store.ledger import Ledger
from kvchat.store.library import Library
from kvchat.store.listed import Listed
from kvchat.store.pins import Pins
from kvchat.store.records import (
    Attachment,
    Chat,
    ChatDocument,
    Document,
    DocumentPage,
    Generation,
    LedgerEntry,
    Message,
)
from kvchat.store.replies import Replies
from kvchat.store.saved import SavedSettings
from kvchat.store.search import Search
from kvchat.store.summaries import Summaries
from kvchat.store.verify import Verified
from kvchat.store.whole import Whole

__all__ = [
    "Attachment",
    "Chat",
    "ChatDocument",
    "Document",
    "DocumentPage",
    "Generation",
    "LedgerEntry",
    "Message",
    "Store",
]


class Store(
    Chats,
    Branches,
    Replies,
    Documents,
    Library,
    Choices,
    Ledger,
    Pins,
    Summaries,
    SavedSettings,
    Listed,
    Search,
    Whole,
    Verified,
):
    """Holds the data folder from its making until `close`. Thread-safe.

    Raises StoreError: `locked`, `folder_too_new`, `folder_unusable`, `store_damaged`, and from any
    write `store_full`.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = HeldFolder(folder)
        try:
            super().__init__(Database(folder / FILE_NAME), clock)
        except BaseException:
            self._folder.close()
            raise
        try:
            self._conclude_interrupted()
        except StoreError as error:
            if error.code != "store_full":  # there it waits; what was said can still be read
                self.close()
                raise

    def close(self) -> None:
        self._database.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
