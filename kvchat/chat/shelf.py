"""The documents of the data folder: added, read in the background, counted, split, searched.

A document is named by the hash of its bytes, so the same file twice is one. What could not be read
is said in a sentence, before any question. Knows no chat's history; PDFium works behind
`documents/reader.py`.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kvchat.documents.clean import clean_name
from kvchat.documents.fence import fence_document
from kvchat.documents.passages import Passage, split
from kvchat.documents.reader import (
    Mark,
    Page,
    ReadDocument,
    Verdict,
    notes,
    page_image,
    page_marks,
    read,
)
from kvchat.documents.retrieve import Index
from kvchat.errors import DocumentError, KVChatError
from kvchat.store.store import Store

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CountTokens = Callable[[str], int]
_LOOK_S = 0.05


@dataclass(slots=True)
class Reading:
    """A document being read, or read, or found unreadable."""

    name: str
    pages_done: int = 0
    num_pages: int = 0
    error: KVChatError | None = None
    future: Future[None] = field(default_factory=Future)
    cancel: threading.Event = field(default_factory=threading.Event)

    @property
    def problem(self) -> KVChatError | None:
        """Why there is no text, as far as is known now."""
        if self.error is not None or not self.future.done():
            return self.error
        if self.future.cancelled() or self.future.exception() is not None:
            return DocumentError("document_damaged", name=self.name)
        return None


class Shelf:
    """`folder` is this object's alone; what an interrupted copy left there is removed."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._readings: dict[str, Reading] = {}
        # Held while a file comes or goes: what one chat adds, another may just be letting go.
        self._lock = threading.RLock()
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="kvchat-reading")
        self._count: CountTokens | None = None
        self._tokens: dict[str, int] = {}
        self._read = lru_cache(maxsize=16)(self._from_store)
        self._split = lru_cache(maxsize=16)(self._passages)
        self._index = lru_cache(maxsize=8)(self._made_index)
        for part in folder.glob("*.part"):
            part.unlink()

    def close(self) -> None:
        for reading in self._readings.values():
            reading.cancel.set()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """From now on tokens are this model's own."""

        def count(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

        self._count = count
        self._tokens.clear()
        self._split.cache_clear()
        self._index.cache_clear()

    # --- adding and reading -----------------------------------------------------------------------

    def add(self, chat: str, path: Path, name: str) -> str:
        """Copies a chat's file into the data folder and begins to read it; returns its sha256.

        Raises DocumentError where the file itself cannot be had, StoreError where the chat is gone.
        """
        shown = clean_name(name)
        with self._lock:
            try:
                sha = self._copied(path)
            except OSError as error:
                why = error.strerror
                raise DocumentError("document_unavailable", name=shown, why=why) from None
            try:
                self._store.attach_document(chat, sha, shown)
            except BaseException:
                self.drop_unused([sha])
                raise
            self._begin(sha, shown)
            return sha

    def _copied(self, path: Path) -> str:
        with path.open("rb") as file:
            sha = hashlib.file_digest(file, "sha256").hexdigest()
        target = self._path(sha)
        if not target.is_file():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = target.with_suffix(".part")
            try:
                shutil.copyfile(path, part)
                part.chmod(0o600)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        return sha

    def _path(self, sha: str) -> Path:
        return self._folder / f"{sha}.pdf"

    def _begin(self, sha: str, name: str) -> Reading:
        with self._lock:
            known = self._readings.get(sha)
            if known is not None and (known.problem is None or not known.future.done()):
                return known
            reading = self._readings[sha] = Reading(name)
            if self._store.document(sha) is not None:
                reading.future.set_result(None)
            else:
                reading.future = self._readers.submit(self._read_file, sha, reading)
            return reading

    def _read_file(self, sha: str, reading: Reading) -> None:
        def progress(done: int, of: int) -> None:
            reading.pages_done, reading.num_pages = done, of

        try:
            found = read(self._path(sha), reading.name, progress=progress, cancel=reading.cancel)
            pages = [(p.number, p.label, p.verdict, p.text) for p in found.pages]
            with self._lock:
                if reading.cancel.is_set():
                    raise DocumentError("document_cancelled", name=reading.name)
                self._store.add_document(sha, reading.name, pages, str(self._path(sha)))
        except KVChatError as error:
            reading.error = error
        with self._lock:
            if reading.cancel.is_set() and sha not in self._readings:
                self._remove_file(sha)

    def reading(self, sha: str, name: str) -> Reading:
        """How far a document is; begins to read one that was not read before the program ended."""
        known = self._readings.get(sha)
        return known if known is not None else self._begin(sha, name)

    def wait(
        self, sha: str, name: str, cancel: threading.Event | None = None
    ) -> ReadDocument | None:
        """The document once it is read; None where it cannot be, or `cancel` is set. Blocks."""
        reading = self.reading(sha, name)
        while not wait_for([reading.future], _LOOK_S).done:
            if cancel is not None and cancel.is_set():
                return None
        return None if reading.problem is not None else self.document(sha)

    # --- what was read ----------------------------------------------------------------------------

    def document(self, sha: str, name: str | None = None) -> ReadDocument:
        """The document, under the name that a chat has for it."""
        document = self._read(sha)
        return document if name in (None, document.name) else replace(document, name=name)

    def _from_store(self, sha: str) -> ReadDocument:
        kept = self._store.document(sha)
        if kept is None:
            raise DocumentError("document_missing", name=sha[:8])
        pages = tuple(
            Page(one.number, one.label, one.text, cast(Verdict, one.verdict)) for one in kept.pages
        )
        return ReadDocument(sha, kept.name, pages)

    def is_read(self, sha: str) -> bool:
        return self._store.document(sha) is not None

    def count(self, text: str) -> int:
        """Tokens of a text; 0 until a model is there to count."""
        return self._count(text) if self._count is not None else 0

    def num_tokens(self, sha: str) -> int:
        """Of the whole document as it stands in a prompt; 0 until a model is there to count."""
        if self._count is None:
            return 0
        if sha not in self._tokens:
            self._tokens[sha] = self._count(fence_document(self.document(sha)))
        return self._tokens[sha]

    def index(self, shas: Sequence[str]) -> Index:
        """One index over the passages of several documents."""
        return self._index(tuple(shas))

    def _made_index(self, shas: tuple[str, ...]) -> Index:
        return Index([passage for sha in shas for passage in self._split(sha)])

    def _passages(self, sha: str) -> tuple[Passage, ...]:
        assert self._count is not None
        return split(self.document(sha), self._count)

    def passages(self, sha: str) -> tuple[Passage, ...]:
        return self._split(sha)

    def picture(self, sha: str, page: int) -> bytes:
        """One page as PNG. Raises DocumentError."""
        if self._store.document(sha) is None:
            raise DocumentError("document_missing", name=sha[:8])
        return page_image(self._path(sha), page)

    def marks(self, sha: str, page: int, texts: Sequence[str]) -> list[list[Mark]]:
        """Where texts stand on a page's picture: for each the boxes that cover it, one a line."""
        return page_marks(self._path(sha), page, texts)

    def row(self, sha: str, name: str) -> dict[str, Any]:
        """Progress, problem and notes of a document, as a screen shows them."""
        reading = self.reading(sha, name)
        row: dict[str, Any] = {
            "num_pages": reading.num_pages,
            "pages_done": reading.pages_done,
            "num_tokens": 0,
            "problem": None,
            "notes": [],
        }
        problem = reading.problem
        if problem is not None:
            row["problem"] = problem.row()
        elif reading.future.done():
            document = self.document(sha)
            row["num_pages"] = row["pages_done"] = len(document.pages)
            row["num_tokens"] = self.num_tokens(sha)
            row["notes"] = [{"code": code, "facts": facts} for code, facts in notes(document)]
        return row

    def drop_unused(self, shas: Iterable[str]) -> None:
        """Removes what no chat and no message needs any more; `shas` may have become that."""
        with self._lock:
            gone = {one.sha for one in self._store.remove_unreferenced()}
            # Files that are still being read, or cannot be, are in no table but the chats' own.
            unread = [one for one in shas if one not in gone and self._store.document(one) is None]
            gone |= set(unread) - self._held(unread)
            for sha in gone:
                reading = self._readings.pop(sha, None)
                if reading is not None:
                    reading.cancel.set()
                self._remove_file(sha)
        self._read.cache_clear()
        self._split.cache_clear()
        self._index.cache_clear()

    def _remove_file(self, sha: str) -> None:
        with suppress(PermissionError):  # Windows keeps a file that is open; its reader removes it
            self._path(sha).unlink(missing_ok=True)

    def _held(self, shas: Sequence[str]) -> set[str]:
        """Those of the documents that a chat has."""
        chats = self._store.chats(unlisted=True) if shas else []
        return {one.document for chat in chats for one in self._store.chat_documents(chat.id)}
