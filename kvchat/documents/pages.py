"""A document as it was read: pages with their text, a verdict on each, and what a person must know.

Plain values; knows no file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from kvchat.documents.kinds import Kind

Verdict = Literal["text", "form", "hidden", "ocr", "scan", "unreadable", "empty"]

HAVE_TEXT: frozenset[Verdict] = frozenset(("text", "form", "hidden", "ocr"))

LEAST_HIDDEN = 25
"""Characters; fewer are a typesetter's marks."""

_MOST_HIDDEN_PAGES = 0.5
"""What more pages than this have is a printer's line on each, not a message."""

_MUCH_HIDDEN = 0.5
_NAMED_ATTACHMENTS = 8

_LEAST_CONFIDENCE = 75
"""Percent; recognised text below it is told to be doubtful."""


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What the reader saw beside the text. `num_hidden`: characters that cannot be seen;
    `order`: words among them that speak to a program; `over_picture`: a picture fills the page;
    `num_fields`: of a form; `confidence`: of recognised text, percent; `tried`: recognition found
    nothing.
    """

    num_hidden: int = 0
    order: str | None = None
    over_picture: bool = False
    num_fields: int = 0
    confidence: int | None = None
    tried: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """`number` counts the file's pages from 1; `label` is what is printed where that differs.

    Verdicts: `text`; `form` has values typed into fields or notes; `hidden` has text that cannot be
    seen (also the text layer of an honest scan); `ocr` was recognised from a picture. Without
    text to use: `scan`, a picture only; `unreadable`, a font without a map to letters, or broken;
    `empty`, nothing on it.
    """

    number: int
    label: str | None
    text: str
    verdict: Verdict
    facts: PageFacts = PageFacts()

    @property
    def has_text(self) -> bool:
        return self.verdict in HAVE_TEXT


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """A document as it was read. `sha256` names it: of its bytes, or of these and its file name.

    `attachments`: names of files inside it, which are not read. `is_divided`: the file has no pages
    of its own, and a "page" is a part of about `divide.PART_CHARACTERS`. `num_missing`: pages that
    were not read yet.
    """

    sha256: str
    name: str
    pages: tuple[Page, ...]
    kind: Kind = "pdf"
    attachments: tuple[str, ...] = ()
    is_divided: bool = False
    num_missing: int = 0


class Mark(NamedTuple):
    """A box on a page's picture: parts (0 to 1) of its width and height, y downwards."""

    left: float
    top: float
    right: float
    bottom: float


Note = tuple[str, dict[str, Any]]
"""A code and the facts of its sentence."""


def notes(document: ReadDocument) -> list[Note]:
    """What a person must know before the first question."""
    found = list(_unread(document.pages))
    hidden = [page for page in document.pages if page.verdict == "hidden"]
    orders = [page for page in hidden if page.facts.order is not None]
    layers = [page for page in hidden if _is_layer(page) and page not in orders]
    others = [page for page in hidden if page not in layers and page not in orders]
    found += _named("document.pages_text_layer", layers)
    found += _named("document.pages_hidden", others)
    for page in orders:
        facts = {"page": page.number, "words": page.facts.order}
        found.append(("document.page_orders", facts))
    found += _named("document.pages_form", [p for p in document.pages if p.verdict == "form"])
    ocr = [page for page in document.pages if page.verdict == "ocr"]
    found += _named("document.pages_ocr", ocr)
    doubtful = [p for p in ocr if (p.facts.confidence or 0) < _LEAST_CONFIDENCE]
    found += _named("document.pages_doubtful", doubtful)
    if document.attachments:
        names = ", ".join(document.attachments[:_NAMED_ATTACHMENTS])
        more = "…" if len(document.attachments) > _NAMED_ATTACHMENTS else ""
        found.append(("document.attachments", {"names": f"{names}{more}"}))
    if document.is_divided and len(document.pages) > 1:
        found.append(("document.divided", {"parts": len(document.pages)}))
    return found


def _unread(pages: Sequence[Page]) -> Iterator[Note]:
    scans = [page for page in pages if page.verdict == "scan"]
    yield from _named("document.pages_without_text", [p for p in scans if not p.facts.tried])
    yield from _named("document.pages_no_letters", [p for p in scans if p.facts.tried])
    yield from _named("document.pages_unreadable", [p for p in pages if p.verdict == "unreadable"])


def _named(code: str, pages: Sequence[Page]) -> list[Note]:
    return [(code, {"pages": page_ranges([page.number for page in pages])})] if pages else []


def page_ranges(numbers: list[int]) -> str:
    """[3, 5, 6, 7] -> '3, 5–7'"""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}–{b}" if b > a else str(a) for a, b in runs)


def hidden_told(pages: Sequence[Page]) -> list[Page]:
    """Pages with text that cannot be seen get their verdict: always where it is an order or much of
    the page; else only if few pages have any, as a printer's line stands on all of them.
    """
    some = [page for page in pages if page.facts.num_hidden >= LEAST_HIDDEN]
    is_usual = len(some) > max(1, _MOST_HIDDEN_PAGES * len(pages))
    return [
        replace(page, verdict="hidden") if page.has_text and _hides(page, is_usual) else page
        for page in pages
    ]


def _hides(page: Page, is_usual: bool) -> bool:
    if page.facts.order is not None:
        return True
    return page.facts.num_hidden >= LEAST_HIDDEN and (
        not is_usual or _hidden_share(page) > _MUCH_HIDDEN
    )


def _is_layer(page: Page) -> bool:
    return page.facts.over_picture and _hidden_share(page) > _MUCH_HIDDEN


def _hidden_share(page: Page) -> float:
    return page.facts.num_hidden / max(len("".join(page.text.split())), 1)
