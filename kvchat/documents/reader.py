"""A PDF becomes text by page, each page with a verdict; and a page becomes a picture.

The work is done in child processes (`child.py`), one for reading and one for pictures, so that a
click on a page does not wait for a long book. Knows no model and no chat.
"""

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kvchat.documents.child import Cancelled, Child, ChildLost, ChildSilent
from kvchat.documents.clean import clean_name, join_hyphens
from kvchat.errors import DocumentError
from kvchat.units import MIB, format_size

Verdict = Literal["text", "scan", "unreadable", "empty"]

MOST_BYTES = 512 * MIB
MOST_PAGES = 5000
MOST_LOST_PAGES = 2
"""Pages that may cost the child its life before the file is given up as damaged."""

_reading = Child()
_pictures = Child()


@dataclass(frozen=True, slots=True)
class Page:
    """`number` counts the PDF's pages from 1; `label` is what is printed where that differs.

    Verdicts: `text`; `scan` is a picture without (enough) text; `unreadable` has a font without a
    map to letters, or is broken; `empty` has nothing on it. Only `text` pages have text to use.
    """

    number: int
    label: str | None
    text: str
    verdict: Verdict


class Mark(NamedTuple):
    """A box on a page's picture: parts (0 to 1) of its width and height, y downwards."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """A document as it was read. `sha256` names it: the same bytes are the same document."""

    sha256: str
    name: str
    pages: tuple[Page, ...]


def read(
    path: Path,
    name: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    cancel: threading.Event | None = None,
    password: str | None = None,
) -> ReadDocument:
    """The text of a PDF. `progress(done, of)` is called after each page, in this thread.

    Raises DocumentError: one sentence and a remedy for whatever cannot be read.
    """
    shown = clean_name(name)
    check_file(path, shown)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    pages = _Reading(path, shown, password, cancel, progress).pages()
    if not any(page.verdict == "text" for page in pages):
        raise DocumentError(_why_no_text(pages), name=shown, pages=len(pages))
    texts = join_hyphens(page.text for page in pages)
    finished = (replace(page, text=text) for page, text in zip(pages, texts, strict=True))
    return ReadDocument(sha256, shown, tuple(finished))


def page_image(path: Path, page: int, *, width: int = 1000, password: str | None = None) -> bytes:
    """Page `page` (from 1) as PNG, at most `width` and 2,000 pixels wide. Raises DocumentError."""
    request = {"do": "picture", "path": str(path), "password": password}
    try:
        for answer in _pictures.ask({**request, "page": page, "width": max(16, min(width, 2000))}):
            if "png" in answer:
                return base64.b64decode(answer["png"])
    except ChildLost:
        pass
    raise DocumentError("document_no_picture", page=page)


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


def notes(document: ReadDocument) -> list[tuple[str, dict[str, str]]]:
    """What a person must know before the first question: (code, facts) of sentences."""
    found = []
    for verdict, code in _NOTES.items():
        pages = [page.number for page in document.pages if page.verdict == verdict]
        if pages:
            found.append((code, {"pages": page_ranges(pages)}))
    return found


_NOTES: dict[Verdict, str] = {
    "scan": "document.pages_without_text",
    "unreadable": "document.pages_unreadable",
}


def page_ranges(numbers: list[int]) -> str:
    """[3, 5, 6, 7] -> '3, 5–7'"""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}–{b}" if b > a else str(a) for a, b in runs)


def check_file(path: Path, name: str) -> None:
    """What can be told without PDFium. Raises DocumentError."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError:
        raise DocumentError("document_unopened", name=name) from None
    if size_bytes == 0:
        raise DocumentError("document_empty", name=name)
    if size_bytes > MOST_BYTES:
        facts = {"size": format_size(size_bytes), "most": format_size(MOST_BYTES)}
        raise DocumentError("document_too_large", name=name, **facts)
    if b"%PDF-" not in head:
        claims = name.lower().endswith(".pdf")
        raise DocumentError("document_not_pdf" if claims else "document_other_kind", name=name)


def _why_no_text(pages: list[Page]) -> str:
    verdicts = {page.verdict for page in pages}
    if "unreadable" in verdicts:
        return "document_unreadable"
    return "document_scan" if "scan" in verdicts else "document_blank"


@dataclass(slots=True)
class _Reading:
    """One document being read, across the deaths of a child: a page that kills it is left out."""

    path: Path
    name: str
    password: str | None
    cancel: threading.Event | None
    progress: Callable[[int, int], None] | None

    def pages(self) -> list[Page]:
        done: list[Page] = []
        of = lost = 0
        while True:
            try:
                for answer in self._answers(first=len(done)):
                    if "pages" in answer:
                        of = self._checked_count(answer["pages"])
                    else:
                        done.append(_page(answer))
                        if self.progress is not None:
                            self.progress(len(done), of)
                return done
            except Cancelled:
                raise DocumentError("document_cancelled", name=self.name) from None
            except ChildLost as error:
                lost += 1
                if lost > MOST_LOST_PAGES or (of == 0 and isinstance(error, ChildSilent)):
                    raise DocumentError("document_damaged", name=self.name) from None
                if of == 0:  # it may have died before, between two documents
                    continue
                done.append(Page(len(done) + 1, None, "", "unreadable"))
                if len(done) >= of:
                    return done

    def _answers(self, first: int) -> Iterator[dict[str, Any]]:
        request = {"do": "read", "path": str(self.path), "password": self.password, "first": first}
        for answer in _reading.ask(request, self.cancel):
            if "refused" in answer:
                raise DocumentError(f"document_{answer['refused']}", name=self.name)
            yield answer

    def _checked_count(self, count: int) -> int:
        if count > MOST_PAGES:
            raise DocumentError("document_too_long", name=self.name, pages=count, most=MOST_PAGES)
        return count


def _page(answer: dict[str, Any]) -> Page:
    return Page(answer["page"], answer["label"], answer["text"], answer["verdict"])
