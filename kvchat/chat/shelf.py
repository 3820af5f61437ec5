"""The documents of the data folder: added, read in the background, counted, split, searched.

A document is named by the hash of its bytes, so the same file twice is one. What could not be read
is said in a sentence, before any question. Knows no chat's history; the reading itself stands in
`chat/reading.py`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvchat.chat.meanings import Meanings
from kvchat.chat.reading import Reading, Readings, from_store
from kvchat.documents import reader
from kvchat.documents.clean import clean_name
from kvchat.documents.fence import fence_document, fenced_page
from kvchat.documents.pages import Mark, ReadDocument, notes
from kvchat.documents.passages import Passage, split, without
from kvchat.documents.recognise import Tesseract, find_tesseract
from kvchat.documents.retrieve import Index
from kvchat.documents.word_marks import word_marks
from kvchat.errors import DocumentError
from kvchat.store.store import Store

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CountTokens = Callable[[str], int]
Pages = frozenset[int]
"""Numbers of pages that are left out."""

NONE_LEFT: Mapping[str, Pages] = MappingProxyType({})
_LOOK_S = 0.05

RECOGNISING_S = 20.0
"""A question waits so long for pages that are still being recognised, then takes what there is."""

_SUFFIXES = (".pdf", ".file")
_SHA = re.compile("[0-9a-f]{64}")


class Shelf:
    """`folder` is this object's alone; what an interrupted copy left there is removed."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        tesseract: Callable[[], Tesseract | None] = find_tesseract,
    ) -> None:
        self._store = store
        self._folder = folder
        # Held while a file comes or goes: what one chat adds, another may just be letting go.
        self._lock = threading.RLock()
        self._readings = Readings(store, self._path, self._changed, self._lock, tesseract)
        self._count: CountTokens | None = None
        self._tokens: dict[tuple[str, Pages], int] = {}
        self._page_tokens: dict[tuple[str, int], int] = {}
        self._read = lru_cache(maxsize=16)(self._from_store)
        self._split = lru_cache(maxsize=16)(self._passages)
        self._index = lru_cache(maxsize=8)(self._made_index)
        self.meanings: Meanings | None = None
        for part in folder.glob("*.part"):
            part.unlink()

    def close(self) -> None:
        self._readings.close()

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """From now on tokens are this model's own."""

        def count(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

        self._count = count
        self._tokens.clear()
        self._page_tokens.clear()
        self._split.cache_clear()
        self._index.cache_clear()

    def _changed(self, sha: str) -> None:
        """Its text is another now."""
        for whole in [key for key in list(self._tokens) if key[0] == sha]:
            self._tokens.pop(whole, None)
        for page in [key for key in list(self._page_tokens) if key[0] == sha]:
            self._page_tokens.pop(page, None)
        self._read.cache_clear()
        self._split.cache_clear()
        self._index.cache_clear()

    def forget_text(self, sha: str) -> None:
        """What was counted, split and indexed of it: its name or text is another now."""
        self._changed(sha)

    # --- adding and reading -----------------------------------------------------------------------

    def add(self, chat: str, path: Path, name: str, password: str | None = None) -> str:
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
            self._readings.begin(sha, shown, password)
            return sha

    def _copied(self, path: Path) -> str:
        with path.open("rb") as file:
            sha = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            is_pdf = b"%PDF-" in file.read(1024)
        if not self._path(sha).is_file():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            target = self._folder / f"{sha}{_SUFFIXES[not is_pdf]}"
            part = target.with_suffix(".part")
            try:
                shutil.copyfile(path, part)
                part.chmod(0o600)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        return sha

    def _path(self, sha: str) -> Path:
        """Raises DocumentError for what is no sha256: nothing sent from outside becomes a path."""
        if not _SHA.fullmatch(sha):
            raise DocumentError("document_missing", name=sha[:8])
        there = (self._folder / f"{sha}{suffix}" for suffix in _SUFFIXES)
        return next((path for path in there if path.is_file()), self._folder / f"{sha}.pdf")

    def reading(self, sha: str, name: str) -> Reading:
        """How far a document is; begins to read one that was not read before the program ended."""
        return self._readings.of(sha, name)

    def unlock(self, sha: str, name: str, password: str) -> Reading:
        """Tries a password; what came of it stands in the row. It is kept in memory only."""
        return self._readings.begin(sha, name, password)

    def wait(
        self, sha: str, name: str, cancel: threading.Event | None = None
    ) -> ReadDocument | None:
        """The document once it is read; None where it cannot be, or `cancel` is set. Blocks.

        Of one whose pages are still being recognised, what there is after a while.
        """
        reading = self.reading(sha, name)
        begun_s = time.monotonic()
        while not self._is_ready(sha, reading, time.monotonic() - begun_s):
            waiting = reading.recognising if reading.future.done() else reading.future
            if waiting is not None:
                wait_for([waiting], _LOOK_S)
            if cancel is not None and cancel.is_set():
                return None
        return None if reading.problem is not None else self.document(sha)

    def _is_ready(self, sha: str, reading: Reading, waited_s: float) -> bool:
        if not reading.future.done() or reading.problem is not None or reading.is_complete:
            return reading.future.done()
        return waited_s > RECOGNISING_S and any(page.has_text for page in self.document(sha).pages)

    def is_complete(self, sha: str) -> bool:
        """Whether no more text is to come: before that nothing lasting should hang on it."""
        reading = self._readings.known(sha)
        return reading is not None and reading.is_complete

    # --- what was read ----------------------------------------------------------------------------

    def document(self, sha: str, name: str | None = None) -> ReadDocument:
        """The document, under the name that a chat has for it."""
        document = self._read(sha)
        return document if name in (None, document.name) else replace(document, name=name)

    def _from_store(self, sha: str) -> ReadDocument:
        kept = self._store.document(sha)
        if kept is None:
            raise DocumentError("document_missing", name=sha[:8])
        return from_store(kept)

    def so_far(self, sha: str, name: str) -> ReadDocument:
        """The document, or the pages of it that were read up to now; `num_missing` are not yet."""
        reading = self.reading(sha, name)
        if reading.future.done() and self.is_read(sha):
            return self.document(sha, name)
        pages = list(reading.pages)
        missing = max(0, reading.num_pages - len(pages))
        return reader.finished(ReadDocument(sha, name, (), num_missing=missing), pages)

    def is_read(self, sha: str) -> bool:
        return self._store.document(sha) is not None

    def count(self, text: str) -> int:
        """Tokens of a text; 0 until a model is there to count."""
        return self._count(text) if self._count is not None else 0

    def num_tokens(self, sha: str, left: Pages = frozenset()) -> int:
        """Of the whole document as it stands in a prompt, without the pages that are left out; 0
        until a model is there to count.
        """
        if self._count is None:
            return 0
        if (sha, left) not in self._tokens:
            self._tokens[sha, left] = self._count(fence_document(self.document(sha), left))
        return self._tokens[sha, left]

    def index(self, shas: Sequence[str], left: Mapping[str, Pages] = NONE_LEFT) -> Index:
        """One index over the passages of several documents. `left`: pages that it does not have."""
        return self._index(tuple((sha, left.get(sha, frozenset())) for sha in shas))

    def _made_index(self, documents: tuple[tuple[str, Pages], ...]) -> Index:
        return Index([passage for sha, left in documents for passage in self._split(sha, left)])

    def _passages(self, sha: str, left: Pages = frozenset()) -> tuple[Passage, ...]:
        assert self._count is not None
        return split(without(self.document(sha), left), self._count)

    def passages(self, sha: str, left: Pages | None = None) -> tuple[Passage, ...]:
        return self._split(sha, left or frozenset())

    def picture(self, sha: str, page: int) -> bytes:
        """One page as PNG. Raises DocumentError."""
        if self.document(sha).kind != "pdf":
            raise DocumentError("document_no_picture", page=page)
        return reader.page_image(self._path(sha), page, password=self._readings.password(sha))

    def marks(self, sha: str, page: int, texts: Sequence[str]) -> list[list[Mark]]:
        """Where texts stand on a page's picture: for each the boxes that cover it, one a line."""
        if self.document(sha).kind != "pdf":
            return [[] for _ in texts]
        words = self._store.page_words(sha, page)
        if words:
            return word_marks(words, texts)
        password = self._readings.password(sha)
        return reader.page_marks(self._path(sha), page, texts, password=password)

    def row(self, sha: str, name: str) -> dict[str, Any]:
        """Progress, problem and notes of a document, as a screen shows them."""
        reading = self.reading(sha, name)
        row: dict[str, Any] = {
            "num_pages": reading.num_pages,
            "pages_done": len(reading.pages),
            "num_tokens": 0,
            "problem": None,
            "notes": [],
            "asks_password": reading.asks_password,
            "is_complete": reading.is_complete,
            "num_recognised": reading.num_recognised,
            "num_to_recognise": reading.num_to_recognise,
        }
        problem = reading.problem
        if problem is not None:
            row["problem"] = problem.row()
        elif reading.future.done():
            document = self.document(sha)
            row["num_pages"] = row["pages_done"] = len(document.pages)
            row["num_tokens"] = self.num_tokens(sha)
            row["notes"] = [
                {"code": code, "facts": facts}
                for code, facts in notes(document)
                # What is being recognised is told by its progress.
                if code != "document.pages_without_text" or not reading.num_to_recognise
            ]
            row["kind"] = document.kind
        return row

    def page_rows(self, sha: str, name: str) -> list[dict[str, Any]]:
        """Each page that was read: number, label, verdict, tokens as it stands in a prompt, and
        what was seen on it.
        """
        return [
            {
                "number": page.number,
                "label": page.label,
                "verdict": page.verdict,
                "num_tokens": self._num_page_tokens(sha, page.number, page.text)
                if page.has_text
                else 0,
                "order": page.facts.order,
                "confidence": page.facts.confidence,
            }
            for page in self.so_far(sha, name).pages
        ]

    def _num_page_tokens(self, sha: str, number: int, text: str) -> int:
        if self._count is None:
            return 0
        key = (sha, number)
        if key not in self._page_tokens:
            self._page_tokens[key] = self._count(fenced_page(number, text))
        return self._page_tokens[key]

    def drop_unused(self, shas: Iterable[str]) -> None:
        """Removes what no chat and no message needs any more; `shas` may have become that."""
        with self._lock:
            gone = {one.sha for one in self._store.remove_unreferenced()}
            # Files that are still being read, or cannot be, are in no table but the chats' own.
            named = [one for one in shas if one not in gone and _SHA.fullmatch(one)]
            unread = [one for one in named if self._store.document(one) is None]
            gone |= set(unread) - self._held(unread)
            for sha in gone:
                self._readings.forget(sha)
                self._remove_file(sha)
                if self.meanings is not None:
                    self.meanings.forget(sha)
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
