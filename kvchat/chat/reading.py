"""Files being read in the background, several at a time; pages that are pictures, recognised after.

Told of by `Reading`, which fills while the work goes on. Knows no chat and no question.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from kvchat.documents import reader
from kvchat.documents.pages import Page, PageFacts, ReadDocument, Verdict
from kvchat.documents.recognise import Tesseract
from kvchat.errors import DocumentError, KVChatError
from kvchat.store.records import Document, DocumentFile, DocumentPage
from kvchat.store.store import Store

_LOCKED = ("document_encrypted", "document_password")
_LONGEST_END_S = 10.0


@dataclass(slots=True)
class Reading:
    """A document being read, or read, or found unreadable. `future` ends with the text that the
    file has; `recognising` with that of its pictures. `pages`: those read so far.
    """

    name: str
    pages: list[Page] = field(default_factory=list)
    num_pages: int = 0
    error: KVChatError | None = None
    future: Future[None] = field(default_factory=Future)
    recognising: Future[None] | None = None
    num_recognised: int = 0
    num_to_recognise: int = 0
    cancel: threading.Event = field(default_factory=threading.Event)

    @property
    def problem(self) -> KVChatError | None:
        """Why there is no text, as far as is known now."""
        if self.error is not None or not self.future.done():
            return self.error
        if self.future.cancelled() or self.future.exception() is not None:
            return DocumentError("document_damaged", name=self.name)
        return None

    @property
    def is_complete(self) -> bool:
        """Whether no more text is to come."""
        return self.future.done() and (self.recognising is None or self.recognising.done())

    @property
    def asks_password(self) -> bool:
        return self.problem is not None and self.problem.code in _LOCKED


def stored(document: ReadDocument, path: Path) -> tuple[DocumentFile, list[DocumentPage]]:
    file = DocumentFile(
        *(document.sha256, document.name, str(path), document.kind, reader.EXTRACTOR),
        attachments=document.attachments,
        is_divided=document.is_divided,
    )
    return file, [stored_page(page) for page in document.pages]


def stored_page(page: Page) -> DocumentPage:
    usual = asdict(PageFacts())
    facts = {name: value for name, value in asdict(page.facts).items() if value != usual[name]}
    return DocumentPage(page.number, page.label, page.verdict, page.text, facts)


def from_store(kept: Document) -> ReadDocument:
    pages = tuple(
        Page(one.number, one.label, one.text, cast(Verdict, one.verdict), PageFacts(**one.facts))
        for one in kept.pages
    )
    file = kept.file
    kind = cast(reader.Kind, file.kind)
    return ReadDocument(kept.sha, kept.name, pages, kind, file.attachments, file.is_divided)


class Readings:
    """`path_of`: where a document's file lies; `changed`: called when the text of one is another.

    `lock` is the shelf's: held while a document comes or goes.
    """

    def __init__(
        self,
        store: Store,
        path_of: Callable[[str], Path],
        changed: Callable[[str], None],
        lock: threading.RLock,
        find: Callable[[], Tesseract | None],
    ) -> None:
        self._store, self._path_of, self._changed, self._lock = store, path_of, changed, lock
        self._find = find
        self.may_recognise: Callable[[], bool] = lambda: True
        """Whether pictures of text are to be recognised at all; asked before each page."""
        self._by_sha: dict[str, Reading] = {}
        self._passwords: dict[str, str] = {}
        """Only in memory: after a restart the pictures of a locked file want its password again."""
        size = len(reader.reading.children)
        self._readers = ThreadPoolExecutor(size, thread_name_prefix="kvchat-reading")
        self._recognisers = ThreadPoolExecutor(1, thread_name_prefix="kvchat-recognising")

    @cached_property
    def _tesseract(self) -> Tesseract | None:
        """Looked for where it is first wanted: that starts a program."""
        return self._find()

    @property
    def tesseract(self) -> Tesseract | None:
        """None where there is none, or pictures are not to be recognised."""
        return self._tesseract if self.may_recognise() else None

    def close(self) -> None:
        """Calls off what is being done, and waits for its end, but not for ever."""
        for reading in list(self._by_sha.values()):
            reading.cancel.set()
        for pool in (self._readers, self._recognisers):
            pool.shutdown(wait=False, cancel_futures=True)
        under_way = [reading.future for reading in self._by_sha.values()]
        under_way += [one.recognising for one in self._by_sha.values() if one.recognising]
        if not wait_for(under_way, _LONGEST_END_S).not_done:
            for pool in (self._readers, self._recognisers):
                pool.shutdown(wait=True)

    def of(self, sha: str, name: str) -> Reading:
        """How far a document is; begins to read one that was not read before the program ended."""
        known = self._by_sha.get(sha)
        return known if known is not None else self.begin(sha, name)

    def known(self, sha: str) -> Reading | None:
        return self._by_sha.get(sha)

    def password(self, sha: str) -> str | None:
        return self._passwords.get(sha)

    def begin(self, sha: str, name: str, password: str | None = None) -> Reading:
        """Again where it failed before, or where a password is given for a file that is locked."""
        with self._lock:
            known = self._by_sha.get(sha)
            if known is not None and (known.problem is None or not known.future.done()):
                if password is not None and known.future.done():
                    self._readers.submit(self._try_password, sha, password)
                return known
            reading = self._by_sha[sha] = Reading(name)
            kept = self._store.document(sha)
            if kept is None:
                reading.future = self._readers.submit(self._read, sha, reading, password)
            elif kept.file.extractor != reader.EXTRACTOR:
                reading.future = self._readers.submit(self._read_again, sha, reading, kept)
            else:
                reading.future.set_result(None)
                self._recognise_rest(sha, reading, from_store(kept))
            return reading

    def recognise_again(self) -> None:
        """Pictures may be recognised from now on: those that were not tried are."""
        with self._lock:
            for sha, reading in list(self._by_sha.items()):
                if reading.is_complete and not reading.asks_password:
                    del self._by_sha[sha]
                    self.begin(sha, reading.name, self._passwords.get(sha))

    def untried(self, document: ReadDocument) -> list[Page]:
        """Its pages that are still to be recognised."""
        is_pdf = document.kind == "pdf" and self.tesseract is not None
        return [page for page in document.pages if is_pdf and _is_untried(page)]

    def forget(self, sha: str) -> None:
        """Ends what is being done to it."""
        reading = self._by_sha.pop(sha, None)
        self._passwords.pop(sha, None)
        if reading is not None:
            reading.cancel.set()

    # --- in the readers' threads ------------------------------------------------------------------

    def _read(self, sha: str, reading: Reading, password: str | None) -> None:
        def on_page(page: Page, of: int) -> None:
            reading.num_pages = of
            reading.pages.append(page)

        try:
            found = reader.read(
                self._path_of(sha),
                reading.name,
                on_page=on_page,
                cancel=reading.cancel,
                password=password,
                may_recognise=self.tesseract is not None,
            )
            with self._lock:
                if reading.cancel.is_set():
                    raise DocumentError("document_cancelled", name=reading.name)
                if password is not None:
                    self._passwords[sha] = password
                found = replace(found, sha256=sha)
                self._store.add_document(*stored(found, self._path_of(sha)))
                self._changed(sha)
            self._recognise_rest(sha, reading, found)
        except KVChatError as error:
            reading.error = error
        finally:
            reading.pages = []
            self._clear_away(sha, reading)

    def _read_again(self, sha: str, reading: Reading, kept: Document) -> None:
        """By a newer version of the reader; where that fails, what the older one read stays."""
        self._read(sha, reading, self._passwords.get(sha))
        if reading.error is not None and not reading.cancel.is_set():
            reading.error = None
            reading.num_pages = len(kept.pages)

    def _try_password(self, sha: str, password: str) -> None:
        """For the pictures of a file that was read in an earlier run."""
        try:
            reader.page_image(self._path_of(sha), 1, width=16, password=password)
        except DocumentError as error:
            if error.code == "document_picture_locked":
                return
        self._passwords[sha] = password

    def _clear_away(self, sha: str, reading: Reading) -> None:
        """Windows keeps an open file: where it was let go meanwhile, its reader removes it."""
        with self._lock:
            if reading.cancel.is_set() and sha not in self._by_sha:
                self._path_of(sha).unlink(missing_ok=True)

    # --- pictures of text -------------------------------------------------------------------------

    def _recognise_rest(self, sha: str, reading: Reading, document: ReadDocument) -> None:
        """Begins to recognise the pages that have no text to use and were not tried before."""
        pages = self.untried(document)
        if pages:
            submit = self._recognisers.submit
            reading.recognising = submit(self._recognise, sha, reading, pages)
        else:
            self._say_if_no_text(sha, reading)

    def _recognise(self, sha: str, reading: Reading, pages: Sequence[Page]) -> None:
        reading.num_to_recognise = len(pages)
        for page in pages:
            tesseract = self.tesseract
            if tesseract is None or not self._recognise_page(sha, reading, page, tesseract):
                break
        self._say_if_no_text(sha, reading)

    def _recognise_page(self, sha: str, reading: Reading, page: Page, tesseract: Tesseract) -> bool:
        """Whether to go on: not for a document that was let go, or is locked again."""
        found = None
        try:
            password = self._passwords.get(sha)
            picture = reader.page_scan(self._path_of(sha), page.number, password)
            found = tesseract.read(picture, reading.cancel)
        except DocumentError as error:
            if error.code == "document_picture_locked":
                return False
        with self._lock:
            if reading.cancel.is_set():
                return False
            if found is None or not found.text:
                tried = replace(page, facts=replace(page.facts, tried=True))
                self._store.replace_page(sha, stored_page(tried), ())
            else:
                facts = PageFacts(confidence=found.confidence, over_picture=True)
                known = replace(page, text=found.text, verdict="ocr", facts=facts)
                self._store.replace_page(sha, stored_page(known), found.words)
            self._changed(sha)
        reading.num_recognised += 1
        return True

    def _say_if_no_text(self, sha: str, reading: Reading) -> None:
        kept = self._store.document(sha)
        if kept is None or any(page.has_text for page in from_store(kept).pages):
            return
        code = "document_no_letters" if self.tesseract is not None else "document_scan"
        reading.error = DocumentError(code, name=reading.name, pages=len(kept.pages))


def _is_untried(page: Page) -> bool:
    return page.verdict in ("scan", "unreadable") and not page.facts.tried
