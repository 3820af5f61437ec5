"""The documents of the data folder: added, read in the background, counted, split, searched.

A document is named by the hash of its bytes, so the same file twice is one; a chat that has the
same bytes under two names has two. What could not be read is said in a sentence, before any
question. Knows no chat's history; the reading itself stands in `chat/reading.py`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kvchat.chat.counting import Pages, TokenCounts
from kvchat.chat.indexing import LONG_TOKENS, Indexes
from kvchat.chat.meanings import Meanings
from kvchat.chat.reading import Reading, Readings, from_store
from kvchat.documents import reader
from kvchat.documents.clean import clean_name
from kvchat.documents.pages import Mark, ReadDocument, notes
from kvchat.documents.passages import Passage
from kvchat.documents.recognise import Tesseract, find_tesseract
from kvchat.documents.retrieve import Index
from kvchat.documents.word_marks import word_marks
from kvchat.errors import DocumentError
from kvchat.store.store import Store

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NONE_LEFT: Mapping[str, Pages] = MappingProxyType({})
_LOOK_S = 0.05

PATIENCE_S = 10.0
"""A question waits so long for pages that are still being read, or recognised; then it takes those
that are there.
"""

_SUFFIXES = (".pdf", ".file")
_SHA = re.compile("[0-9a-f]{64}")


class PagesRead(NamedTuple):
    """The pages that were read up to now, and how many there are."""

    numbers: tuple[int, ...]
    of: int


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
        self.readings = Readings(store, self._path, self._changed, self._lock, tesseract)
        self.tokens = TokenCounts()
        self._so_far: dict[str, ReadDocument] = {}
        self._read = lru_cache(maxsize=16)(self._from_store)
        self._indexes = Indexes(self.tokens, self.document)
        self.meanings: Meanings | None = None
        for part in folder.glob("*.part"):
            part.unlink()

    def close(self) -> None:
        self.tokens.close()
        self._indexes.close()
        self.readings.close()

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """From now on tokens are this model's own."""

        def count(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

        self.tokens.use(count)
        self._indexes.forget()

    def _changed(self, sha: str) -> None:
        """Its text is another now."""
        self._so_far.pop(sha, None)
        self._forget_cut(sha)

    def _forget_cut(self, sha: str) -> None:
        self.tokens.forget(sha)
        self._read.cache_clear()
        self._indexes.forget()

    def forget_text(self, sha: str) -> None:
        """What was counted, split and indexed of it: its name or text is another now."""
        self._changed(sha)

    # --- adding and reading -----------------------------------------------------------------------

    def add(self, chat: str, path: Path, name: str, password: str | None = None) -> str:
        """Copies a chat's file into the data folder and begins to read it; returns its name there.

        Raises DocumentError where the file itself cannot be had, StoreError where the chat is gone.
        """
        shown = clean_name(name)
        with self._lock:
            try:
                sha = self._copied(chat, path, shown)
            except OSError as error:
                why = error.strerror
                raise DocumentError("document_unavailable", name=shown, why=why) from None
            try:
                self._store.attach_document(chat, sha, shown)
            except BaseException:
                self.drop_unused([sha])
                raise
            self.readings.begin(sha, shown, password)
            return sha

    def _copied(self, chat: str, path: Path, shown: str) -> str:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            file.seek(0)
            is_pdf = b"%PDF-" in file.read(1024)
        there = {one.document: one.name for one in self._store.chat_documents(chat)}
        if there.get(digest.hexdigest(), shown) != shown:  # each file of a chat has its own answer
            digest.update(shown.encode())
        sha = digest.hexdigest()
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
        return self.readings.of(sha, name)

    def unlock(self, sha: str, name: str, password: str) -> Reading:
        """Tries a password; what came of it stands in the row. It is kept in memory only."""
        return self.readings.begin(sha, name, password)

    def wait(
        self,
        sha: str,
        name: str,
        cancel: threading.Event | None = None,
        until_s: float | None = None,
    ) -> ReadDocument | None:
        """The document once all of its text is there; None where it cannot be read, or `cancel` is
        set. From `until_s` on, by the clock of `time.monotonic`, what there is once a page has
        text: that is then what `document` gives, until it is waited for again. Blocks.
        """
        reading = self.reading(sha, name)
        while not self.settle(reading, cancel, until_s):
            if cancel is not None and cancel.is_set():
                return None
            if self._take_so_far(sha, name):
                break
            self.settle(reading, cancel, time.monotonic() + _LOOK_S)
        return None if reading.problem is not None else self.document(sha)

    def settle(
        self, reading: Reading, cancel: threading.Event | None, until_s: float | None
    ) -> bool:
        """Whether a file is read, or found unreadable, before that time; waits for it."""
        while not reading.is_complete and reading.problem is None:
            if cancel is not None and cancel.is_set():
                return False
            if until_s is not None and time.monotonic() >= until_s:
                return False
            waiting = reading.recognising if reading.future.done() else reading.future
            if waiting is not None:
                wait_for([waiting], _LOOK_S)
        return True

    def _take_so_far(self, sha: str, name: str) -> bool:
        """Whether there is a page with text."""
        found = self.so_far(sha, name)
        if not any(page.has_text for page in found.pages):
            return False
        with self._lock:
            if not self.is_read(sha):
                self._so_far[sha] = found
                self._forget_cut(sha)
        return True

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """No text becomes another meanwhile."""
        with self._lock:
            yield

    def read_so_far(self, sha: str) -> PagesRead | None:
        """Where pages are still to be read or recognised; None where none is."""
        if self.is_complete(sha):
            return None
        document = self.document(sha)
        waiting = {page.number for page in self.readings.untried(document)}
        if not waiting and not document.num_missing:
            return None
        numbers = [page.number for page in document.pages if page.number not in waiting]
        return PagesRead(tuple(numbers), len(document.pages) + document.num_missing)

    def is_complete(self, sha: str) -> bool:
        """Whether no more text is to come: before that nothing lasting should hang on it."""
        reading = self.readings.known(sha)
        return reading is not None and reading.is_complete

    # --- what was read ----------------------------------------------------------------------------

    def document(self, sha: str, name: str | None = None) -> ReadDocument:
        """The document, under the name that a chat has for it."""
        document = self._read(sha)
        return document if name in (None, document.name) else replace(document, name=name)

    def _from_store(self, sha: str) -> ReadDocument:
        kept = self._store.document(sha)
        if kept is None and sha in self._so_far:
            return self._so_far[sha]
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

    def has_text(self, sha: str, name: str) -> bool:
        """Whether it was read, or pages of it were taken up to now."""
        there = sha in self._so_far or self.is_read(sha)
        return there and self.reading(sha, name).problem is None

    def count(self, text: str) -> int:
        """Tokens of a text; 0 until a model is there to count."""
        return self.tokens.count(text) if self.tokens.count is not None else 0

    def num_tokens(self, sha: str, left: Pages = frozenset()) -> int:
        """See `TokenCounts.of_whole`."""
        return self.tokens.of_whole(self.document(sha), left)

    def index(self, shas: Sequence[str], left: Mapping[str, Pages] = NONE_LEFT) -> Index:
        """One index over the passages of several documents. `left`: pages that it does not have."""
        return self._indexes.index(tuple((sha, left.get(sha, frozenset())) for sha in shas))

    def passages(self, sha: str, left: Pages | None = None) -> tuple[Passage, ...]:
        return self._indexes.passages(sha, left or frozenset())

    def picture(self, sha: str, page: int) -> bytes:
        """One page as PNG. Raises DocumentError."""
        if self.document(sha).kind != "pdf":
            raise DocumentError("document_no_picture", page=page)
        return reader.page_image(self._path(sha), page, password=self.readings.password(sha))

    def marks(self, sha: str, page: int, texts: Sequence[str]) -> list[list[Mark]]:
        """Where texts stand on a page's picture: for each the boxes that cover it, one a line."""
        if self.document(sha).kind != "pdf":
            return [[] for _ in texts]
        words = self._store.page_words(sha, page)
        if words:
            return word_marks(words, texts)
        password = self.readings.password(sha)
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
            named = problem.facts | ({"name": name} if "name" in problem.facts else {})
            row["problem"] = type(problem)(problem.code, **named).row()
        elif reading.future.done():
            document = self.document(sha)
            row["num_pages"] = row["pages_done"] = len(document.pages)
            row["num_tokens"] = self.tokens.of_whole_if_known(document)
            if reading.is_complete and row["num_tokens"] > LONG_TOKENS:
                self._indexes.begin(sha)
            row["notes"] = [
                {"code": code, "facts": facts}
                for code, facts in notes(document)
                # What is being recognised is told by its progress.
                if code != "document.pages_without_text" or reading.is_complete
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
                "num_tokens": self.tokens.of_page(sha, page),
                "order": page.facts.order,
                "confidence": page.facts.confidence,
            }
            for page in self.so_far(sha, name).pages
        ]

    def drop_unused(self, shas: Iterable[str]) -> None:
        """Removes what no chat and no message needs any more; `shas` may have become that."""
        with self._lock:
            gone = {one.sha for one in self._store.remove_unreferenced()}
            # Files that are still being read, or cannot be, are in no table but the chats' own.
            named = [one for one in shas if one not in gone and _SHA.fullmatch(one)]
            unread = [one for one in named if self._store.document(one) is None]
            gone |= set(unread) - self._held(unread)
            for sha in gone:
                self.readings.forget(sha)
                self._remove_file(sha)
                if self.meanings is not None:
                    self.meanings.forget(sha)
        self._read.cache_clear()
        self._indexes.forget()

    def _remove_file(self, sha: str) -> None:
        with suppress(PermissionError):  # Windows keeps a file that is open; its reader removes it
            self._path(sha).unlink(missing_ok=True)

    def _held(self, shas: Sequence[str]) -> set[str]:
        """Those of the documents that a chat has."""
        chats = self._store.chats(unlisted=True) if shas else []
        return {one.document for chat in chats for one in self._store.chat_documents(chat.id)}
