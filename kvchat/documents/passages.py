"""A document as passages of about equal size in the model's own tokens; all parts know their page.

Cut where the text itself pauses: before a heading, after a sentence. Lines that stand at the head
or foot of many pages are left out. Knows no question.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from kvchat.documents.reader import Page, ReadDocument


@dataclass(frozen=True, slots=True)
class Passage:
    """`page_starts`: (offset in `text`, page) of each page's part, in order; the first offset is 0.

    `heading` names the sections that it begins in, for the search; it is not part of the text.
    """

    document: str
    index: int
    first_page: int
    last_page: int
    text: str
    page_starts: tuple[tuple[int, int], ...]
    heading: str = ""

    def parts(self) -> Iterator[tuple[int, str]]:
        """(page, text) of each page's part."""
        ends = [start for start, _ in self.page_starts[1:]] + [len(self.text)]
        for (start, page), end in zip(self.page_starts, ends, strict=True):
            yield page, self.text[start:end].strip()


@dataclass(frozen=True, slots=True)
class _Line:
    page: int
    text: str
    tokens: float


_HEADING = re.compile(
    r"(?:(?P<word>chapter|section|part|appendix|annex|제)\s*)?"
    r"(?P<number>\d{1,3}(?:\.\d{1,3})*|[A-Z](?:\.\d{1,3})*)[.:)]?(?:\s?[장절])?"
    r"(?:\s+(?P<title>\S.{0,90}))?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?;:…。！？][)\]\"'”’]*$|[다요][.]?$")
_SENTENCE_GAP = re.compile(r"(?<=[.!?。！？])\s+")


def split(
    document: ReadDocument, count_tokens: Callable[[str], int], target_tokens: int = 220
) -> tuple[Passage, ...]:
    """All text of the document's readable pages, in order, without overlap.

    Tokens are counted once a page and shared out by bytes, so a passage is near `target_tokens`,
    not exactly of it.
    """
    lines = list(_lines(document, count_tokens, target_tokens))
    passages: list[Passage] = []
    start, sections = 0, _Sections()
    while start < len(lines):
        stop = _best_stop(lines, start, target_tokens)
        sections.enter(lines[start].text)
        taken = lines[start:stop]
        passages.append(_passage(document.sha256, len(passages), taken, sections.path()))
        for line in taken:
            sections.enter(line.text)
        start = stop
    return tuple(passages)


def without(document: ReadDocument, pages: Collection[int]) -> ReadDocument:
    """The document as if these pages were empty."""
    if not pages:
        return document
    kept = (
        replace(page, text="", verdict="empty") if page.number in pages else page
        for page in document.pages
    )
    return replace(document, pages=tuple(kept))


def _lines(
    document: ReadDocument, count_tokens: Callable[[str], int], target_tokens: int
) -> Iterator[_Line]:
    pages = [page for page in document.pages if page.has_text]
    repeated = _repeated_lines(pages)
    for page in pages:
        lines = [line for line in page.text.split("\n") if line.strip()]
        kept = [x for n, x in enumerate(lines) if not _is_repeated(page, n, lines, repeated)]
        per_byte = count_tokens(page.text) / max(len(page.text.encode()), 1)
        for line in kept:
            for part in _short_parts(line, per_byte, target_tokens / 2):
                yield _Line(page.number, part, per_byte * len(part.encode()))


def _short_parts(line: str, per_byte: float, most_tokens: float) -> Iterator[str]:
    """A line too long for a passage in parts: at sentence ends, else at blanks, else anywhere."""
    if per_byte * len(line.encode()) <= most_tokens:
        yield line
        return
    middle = len(line) // 2
    gaps = [m.start() for m in _SENTENCE_GAP.finditer(line)] or [
        m.start() for m in re.finditer(" ", line)
    ]
    cut = min(gaps, key=lambda at: abs(at - middle), default=middle) or middle
    for part in (line[:cut], line[cut:].lstrip()):
        if len(part) < len(line):
            yield from _short_parts(part, per_byte, most_tokens)


_EDGE_LINES = 3


def _repeated_lines(pages: Sequence[Page]) -> frozenset[str]:
    """Headers and footers: lines near the edge of one page in twelve or more.

    Equal but for the page's own number; rows of a table that differ in other numbers stay.
    """
    counts = Counter(
        shape
        for page in pages
        for shape in {_shape(page, line) for line in _edges(page.text.split("\n"))}
    )
    least = max(4, 0.08 * len(pages))
    return frozenset(shape for shape, count in counts.items() if count >= least)


def _edges(lines: Sequence[str]) -> list[str]:
    return [*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:]]


def _shape(page: Page, line: str) -> str:
    """The line with the page's own number, where it first stands, left open: 'Page # of 48'."""
    own, words = {str(page.number), page.label}, line.split()
    at = next((n for n, word in enumerate(words) if word.strip("-–.,") in own), None)
    return " ".join("#" if n == at else word for n, word in enumerate(words))


def _is_repeated(page: Page, number: int, lines: Sequence[str], repeated: frozenset[str]) -> bool:
    at_edge = number < _EDGE_LINES or number >= len(lines) - _EDGE_LINES
    return at_edge and _shape(page, lines[number]) in repeated


def _best_stop(lines: Sequence[_Line], start: int, target_tokens: int) -> int:
    """Where the passage that begins at `start` ends best, near the target."""
    best, best_score, tokens = len(lines), -1.0, 0.0
    for stop in range(start + 1, len(lines) + 1):
        tokens += lines[stop - 1].tokens
        if tokens > 1.3 * target_tokens and best_score >= 0:
            return best
        if tokens >= 0.5 * target_tokens:
            score = _pause(lines, stop) - abs(tokens - target_tokens) / target_tokens
            if score + 1 > best_score:
                best, best_score = stop, score + 1
    return best


def _pause(lines: Sequence[_Line], stop: int) -> float:
    """How much the text pauses before line `stop`."""
    if stop == len(lines) or _heading_number(lines[stop].text):
        return 0.6
    pause = 0.4 if _SENTENCE_END.search(lines[stop - 1].text) else 0.0
    return pause + (0.1 if lines[stop].page != lines[stop - 1].page else 0.0)


def _heading_number(text: str) -> str:
    """'3' for 'Chapter 3', '3.15' for '3.15. /run'; empty for what is no heading.

    A bare '3. You paid' is taken for an item of a list.
    """
    match = _HEADING.fullmatch(text) if len(text) <= 100 else None
    if match is None or text.endswith((",", ";")):
        return ""
    title = match["title"] or ""
    if title.endswith(".") or title[:1].islower() or not (match["word"] or "." in match["number"]):
        return ""
    return match["number"]


class _Sections:
    """The headings above a line, outermost first: each one's number begins the next one's."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []

    def enter(self, text: str) -> None:
        number = _heading_number(text)
        if number:
            kept = [one for one in self._open if number.startswith(f"{one[0]}.")]
            self._open = [*kept, (number, text)]

    def path(self) -> str:
        return "\n".join(text for _, text in self._open)


def _passage(document: str, index: int, lines: Sequence[_Line], heading: str) -> Passage:
    text = ""
    starts: list[tuple[int, int]] = []
    for line in lines:
        if not starts or line.page != starts[-1][1]:
            starts.append((len(text) + bool(text), line.page))
        text += ("\n" if text else "") + line.text
    first, last = lines[0].page, lines[-1].page
    return Passage(document, index, first, last, text, tuple(starts), heading)
