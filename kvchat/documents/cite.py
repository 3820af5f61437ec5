"""Citations, made by the program: which pages were given, and which of them an answer confirms.

A page is `matched` when a sentence of the answer shares its numbers, names or a long run of letters
with it; until then it is only `given`. Knows no model and nothing of how an answer was made.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from kvchat.documents.contents import is_contents
from kvchat.documents.passages import Passage, split
from kvchat.documents.reader import ReadDocument
from kvchat.documents.retrieve import Index
from kvchat.documents.terms import asked_terms, fold, is_cjk, terms


@dataclass(frozen=True, slots=True)
class Citation:
    """One page of one document, as a PDF counts it, with the part of its text that was given.

    `quote`: what of it a sentence of the answer is confirmed by, empty where none is; `at`: ends of
    those sentences, as places in the answer.
    """

    document: str
    name: str
    page: int
    label: str | None
    text: str
    support: Literal["given", "matched"]
    quote: str = ""
    at: tuple[int, ...] = ()


_LEAST_PART = 40
"""Characters; what is shorter at the edge of a passage is no reason to cite a page."""

_SENTENCES = re.compile(r"(?<=[.!?。！？])\s+|\n+")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_AMOUNT = re.compile(r"[$€£₩]\s?\d+(?:[.,]\d+)*|\d+(?:[.,]\d+)*\s?%|\d[\d.,:]*\d")
_PAGE_MARK = re.compile(
    r"[\[(]?\b(?:pages?|pp?\.)\s*(\d+)[\])]?|[\[(]?(\d+)\s*(?:쪽|페이지)[\])]?", re.I
)
_NAME = re.compile(r"[/~][\w./-]*\w|\w+(?:[./_-]\w+)+|\b[A-Z]{2,}\w*|(?<=[^.!?\s] )[A-Z][\w'’]+")
_LONG_RUN, _LONG_CJK_RUN = 30, 10


def given(
    passages: Sequence[Passage], names: Mapping[str, str], documents: Mapping[str, ReadDocument]
) -> list[Citation]:
    """One citation for each page that the passages bring, in their order. `names` by document."""
    texts: dict[tuple[str, int], list[str]] = {}
    for passage in passages:
        for page, text in _parts(passage):
            texts.setdefault((passage.document, page), []).append(text)
    return [
        Citation(sha, names[sha], page, _label(documents[sha], page), "\n…\n".join(parts), "given")
        for (sha, page), parts in texts.items()
    ]


def best_pages(
    document: ReadDocument, question: str, answer: str = "", k: int = 3
) -> list[Citation]:
    """At most k pages of a document that was read whole: what suits the question, then the answer.

    None where nothing of either is found in it.
    """
    index = _fine_index(document)
    found: dict[int, str] = {}
    for asked in filter(None, (question, answer)):
        for scored in index.search(asked, 2 * k):
            page, text = _best_part(scored.passage, asked)
            found.setdefault(page, text)
    pages = list(found.items())[:k] if not answer else _confirmed_first(found, answer)[:k]
    return [
        Citation(document.sha256, document.name, page, _label(document, page), text, "given")
        for page, text in pages
    ]


def matched(citations: Sequence[Citation], answer: str) -> list[Citation]:
    """The same citations; those that a sentence of the answer confirms are `matched`.

    A sentence confirms the page that it shares most with; two pages only if they are as good. A
    table of contents is confirmed only where no other page is nearly as good.
    """
    places: dict[int, list[int]] = {}
    quotes: dict[int, str] = {}
    for sentence, end in _sentences(answer):
        shares = [_worth(sentence, one.text, one.page) for one in citations]
        best = max(shares, default=0.0)
        for i, share in enumerate(shares):
            if best > 0 and share >= 0.95 * best:
                places.setdefault(i, []).append(end)
                quotes.setdefault(i, _quote(sentence, citations[i].text))
    return [
        replace(one, support="matched", quote=quotes[i], at=tuple(places[i]))
        if i in places
        else one
        for i, one in enumerate(citations)
    ]


def _sentences(answer: str) -> Iterator[tuple[str, int]]:
    """Sentences, and where each ends in the answer."""
    start = 0
    for gap in [*_SENTENCES.finditer(answer), None]:
        stop = gap.start() if gap is not None else len(answer)
        sentence = answer[start:stop].strip()
        if sentence:
            yield sentence, start + len(answer[start:stop].rstrip())
        start = gap.end() if gap is not None else stop


_QUOTED_LINES = 3


def _quote(sentence: str, text: str) -> str:
    """The lines of a page that share most with a sentence: a few, side by side."""
    lines = [line for line in text.split("\n") if line.strip()]
    wanted = {term for word in asked_terms(_PAGE_MARK.sub(" ", sentence)) for term in word}
    shared = [wanted & set(terms(line)) for line in lines]
    best, most = "", 0.0
    for start in range(len(lines)):
        together: set[str] = set()
        for stop in range(start, min(start + _QUOTED_LINES, len(lines))):
            together |= shared[stop]
            worth = len(together) - 0.5 * (stop - start)  # a line more must bring something
            if shared[start] and shared[stop] and worth > most:
                best, most = "\n".join(lines[start : stop + 1]), worth
    return best


def _share(sentence: str, text: str, page: int) -> float:
    """How much of a sentence stands in a text; 0 where it does not confirm it.

    A number that the text does not have speaks against it, whatever else is shared. A page that
    the sentence itself names counts for the page, never against it.
    """
    named = {int(a or b) for a, b in _PAGE_MARK.findall(sentence)}
    sentence = _PAGE_MARK.sub(" ", sentence)
    if not set(_NUMBER.findall(sentence)) <= set(_NUMBER.findall(text)):
        return 0.0
    words, there = asked_terms(sentence), _terms_there(text)
    share = sum(sum(t in there for t in word) / len(word) for word in words) / max(len(words), 1)
    if _has_long_run(sentence, text):
        return 1.0 + share
    if share >= 0.6 and _is_telling(sentence, text, len(words)):
        return share
    if page in named and share >= 0.4:
        return share
    return share if len(words) >= 4 and share >= 0.8 else 0.0


_CONTENTS_WORTH = 0.8


def _worth(sentence: str, text: str, page: int) -> float:
    """The share, less for a table of contents."""
    share = _share(sentence, text, page)
    return share * _CONTENTS_WORTH if share and is_contents(text) else share


def _is_telling(sentence: str, text: str, num_words: int) -> bool:
    """Whether amounts or names are shared; one alone tells only where it is all of the answer."""
    if num_words < 2 and len(sentence.split()) > 3:
        return False
    amounts = {_squeezed_amount(one) for one in _AMOUNT.findall(text)}
    if any(_squeezed_amount(one) in amounts for one in _AMOUNT.findall(sentence)):
        return True
    return any(_stands_in(fold(name), fold(text)) for name in _NAME.findall(sentence))


def _stands_in(name: str, text: str) -> bool:
    """Whether a name stands in a text by itself: /run does not stand in /var/run."""
    return re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", text) is not None


def _squeezed_amount(amount: str) -> str:
    return "".join(amount.split())


def _has_long_run(sentence: str, text: str) -> bool:
    """Whether a stretch of letters and digits, blanks apart, stands in both."""
    ours, theirs = _squeezed(sentence), _squeezed_page(text)
    length = _LONG_CJK_RUN if sum(map(is_cjk, ours)) > len(ours) / 2 else _LONG_RUN
    return any(ours[i : i + length] in theirs for i in range(len(ours) - length + 1))


def _squeezed(text: str) -> str:
    return "".join(c for c in fold(text) if c.isalnum())


# The same pages are compared with every sentence of an answer that grows.
_squeezed_page = lru_cache(maxsize=64)(_squeezed)


@lru_cache(maxsize=64)
def _terms_there(text: str) -> frozenset[str]:
    return frozenset(terms(text))


def _confirmed_first(found: Mapping[int, str], answer: str) -> list[tuple[int, str]]:
    def share(page: int, text: str) -> float:
        return max((_worth(one, text, page) for one, _ in _sentences(answer)), default=0.0)

    return sorted(found.items(), key=lambda item: -share(*item))


def _parts(passage: Passage) -> list[tuple[int, str]]:
    parts = list(passage.parts())
    return [part for part in parts if len(part[1]) >= _LEAST_PART] or parts


def _best_part(passage: Passage, asked: str) -> tuple[int, str]:
    """The page of a passage on which most of the question stands, with its part of the text."""
    wanted = {term for word in asked_terms(asked) for term in word}

    def worth(part: tuple[int, str]) -> float:
        shared = len(wanted & _terms_there(part[1]))
        return shared * _CONTENTS_WORTH if is_contents(part[1]) else shared

    return max(_parts(passage), key=worth)


def _label(document: ReadDocument, page: int) -> str | None:
    return document.pages[page - 1].label


@lru_cache(maxsize=8)
def _fine_index(document: ReadDocument) -> Index:
    """Passages of a few sentences, whose size no model has to bear: four characters a token."""
    return Index(split(document, lambda text: len(text) // 4, target_tokens=120))
