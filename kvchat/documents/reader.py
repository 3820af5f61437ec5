"""A file becomes text by page, each page with a verdict; and a page of a PDF becomes a picture.

The work is done in child processes (`child.py`): a pool of them for reading, one for pictures, so
that a click on a page does not wait for a long book. Knows no model and no chat.
"""

import base64
import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvchat.documents import limits
from kvchat.documents.child import ChildLost, Pool
from kvchat.documents.clean import clean_name, join_hyphens
from kvchat.documents.kinds import HEAD_BYTES, kind_of
from kvchat.documents.kinds import Kind as Kind
from kvchat.documents.pages import Mark as Mark
from kvchat.documents.pages import Page as Page
from kvchat.documents.pages import ReadDocument as ReadDocument
from kvchat.documents.pages import Verdict as Verdict
from kvchat.documents.pages import hidden_told
from kvchat.documents.pages import notes as notes
from kvchat.documents.pages import page_ranges as page_ranges
from kvchat.documents.reading_job import OnPage, ReadingJob
from kvchat.documents.refused import Refused
from kvchat.errors import DocumentError
from kvchat.units import format_size

EXTRACTOR = 2
"""Counts up whenever the same file would give other text: what another one read is read again."""

reading = Pool(max(1, min(4, os.cpu_count() or 1)))
_pictures = Pool(1)


def read(
    path: Path,
    name: str,
    *,
    on_page: OnPage | None = None,
    cancel: threading.Event | None = None,
    password: str | None = None,
    may_recognise: bool = False,
) -> ReadDocument:
    """The text of a file. `on_page` is called for one page after the other, in any thread; hyphens
    at line ends are still marked in what it gets. `may_recognise`: a scan of which no page has text
    is no error.

    Raises DocumentError: one sentence and a remedy for whatever cannot be read.
    """
    shown = clean_name(name)
    kind = check_file(path, shown)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    found = ReadingJob(path, kind, shown, password, cancel, on_page)
    pages = found.pages(reading)
    if not any(page.has_text for page in pages):
        code = _why_no_text(pages)
        if code == "document_blank" or not may_recognise:
            raise DocumentError(code, name=shown, pages=len(pages))
    document = ReadDocument(
        sha256, shown, (), kind, tuple(found.about["attachments"]), found.about["is_divided"]
    )
    return finished(document, pages)


def finished(document: ReadDocument, pages: Sequence[Page]) -> ReadDocument:
    """The document with these pages, all or the first of them: hyphens joined, hidden text told."""
    texts = join_hyphens(page.text for page in pages)
    joined = [replace(page, text=text) for page, text in zip(pages, texts, strict=True)]
    return replace(document, pages=tuple(hidden_told(joined)))


def page_image(path: Path, page: int, *, width: int = 1000, password: str | None = None) -> bytes:
    """Page `page` (from 1) as PNG, at most `width` and 2,000 pixels wide. Raises DocumentError."""
    asked = {"do": "picture", "page": page, "width": max(16, min(width, 2000))}
    return _png(path, asked, password)


def page_scan(path: Path, page: int, password: str | None = None) -> bytes:
    """The same in grey and sharp, for text recognition. Raises DocumentError."""
    return _png(path, {"do": "scan", "page": page}, password)


def _png(path: Path, asked: dict[str, Any], password: str | None) -> bytes:
    code = "document_no_picture"
    try:
        with closing(_pictures.ask({**asked, "path": str(path), "password": password})) as answers:
            for answer in answers:
                if "png" in answer:
                    return base64.b64decode(answer["png"])
                if answer.get("refused") in ("encrypted", "password"):
                    code = "document_picture_locked"
    except ChildLost:
        pass
    raise DocumentError(code, page=asked["page"])


def page_marks(
    path: Path, page: int, texts: Sequence[str], *, password: str | None = None
) -> list[list[Mark]]:
    """Where the texts stand on page `page` (from 1) of a PDF: for each the boxes that cover it, one
    a line; none for a text that the page does not have, or where the page cannot be read.
    """
    request = {"do": "marks", "path": str(path), "password": password}
    try:
        for answer in _pictures.ask({**request, "page": page, "texts": list(texts)}):
            if "marks" in answer:
                return [[Mark(*box) for box in boxes] for boxes in answer["marks"]]
    except ChildLost:
        pass
    return [[] for _ in texts]


def check_file(path: Path, name: str) -> Kind:
    """What can be told by a file's size and first bytes. Raises DocumentError."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        raise DocumentError("document_unopened", name=name) from None
    if size_bytes == 0:
        raise DocumentError("document_empty", name=name)
    if size_bytes > limits.MOST_BYTES:
        facts = {"size": format_size(size_bytes), "most": format_size(limits.MOST_BYTES)}
        raise DocumentError("document_too_large", name=name, **facts)
    try:
        return kind_of(head, name)
    except Refused as refusal:
        raise DocumentError(f"document_{refusal}", name=name) from None


def _why_no_text(pages: Sequence[Page]) -> str:
    verdicts = {page.verdict for page in pages}
    if "unreadable" in verdicts:
        return "document_unreadable"
    return "document_scan" if "scan" in verdicts else "document_blank"
