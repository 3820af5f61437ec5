"""The pages that a question names: 'summarise pages 10-14', 'the last page', '10~14쪽 요약'.

Pages are those of the PDF, counted from 1, as everywhere; where a question says that it means the
printed number, labels are looked up. Knows no text of a page.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TO = r"\s*(?:-|–|—|~|〜|to|through|until|till|bis|에서|부터)\s*"
_LIST = r"\d{1,4}(?:\s*(?:,|and|&|및|와|과)\s*\d{1,4})*"
_LEAF = r"(?:쪽|페이지)(?!\s*(?:짜리|분량|이내|안에|안으로|으로|로\s|정도))"  # no length
_LEAF += r"(?:까지|에서|에는|에|을|를|의|은|는|만)?"
_RANGES = (
    re.compile(rf"\b(?:pages?|pp?\.)\s*(\d{{1,4}}){_TO}(?:page\s*|p\.\s*)?(\d{{1,4}})\b", re.I),
    re.compile(rf"(\d{{1,4}})\s*(?:쪽|페이지)?{_TO}(\d{{1,4}})\s*{_LEAF}"),
)
_SINGLES = (
    re.compile(rf"\b(?:pages?|pp?\.)\s*({_LIST})\b", re.I),
    re.compile(rf"({_LIST})\s*{_LEAF}"),
)
_COUNTS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "ten": 10,
    "두": 2, "세": 3, "네": 4, "다섯": 5, "열": 10,
}  # fmt: skip
_NUMBER = rf"(\d{{1,3}}|{'|'.join(_COUNTS)})"
_EDGES = (
    re.compile(rf"\b(first|last|final)\s+(?:{_NUMBER}\s+)?pages?\b", re.I),
    re.compile(rf"(첫|처음|맨\s?앞|마지막|맨\s?뒤|끝)\s*(?:{_NUMBER}\s*)?(?:번째\s*)?{_LEAF}"),
)
_AT_THE_END = ("last", "final", "마지막", "맨뒤", "끝")
_PRINTED = re.compile(r"\b(?:printed|labell?ed)\b|인쇄", re.I)


@dataclass(frozen=True, slots=True)
class PagesAsked:
    """`pages`: those that the document has; `missing`: numbers that were asked for and it has not.
    `rest`: the question without what names them.
    """

    pages: tuple[int, ...]
    missing: tuple[int, ...]
    rest: str


def asked_pages(question: str, labels: Sequence[str | None]) -> PagesAsked | None:
    """None where the question names no page. `labels`: what is printed on each page of the
    document, where that differs from its number.
    """
    found: list[int] = []
    rest = question
    for numbers, words in _named(question, len(labels)):
        found += numbers
        rest = rest.replace(words, " ", 1)
    if not found:
        return None
    wanted = list(dict.fromkeys(found))
    if _PRINTED.search(question):
        known = {label: number for number, label in reversed(list(enumerate(labels, 1))) if label}
        places = {one: known.get(str(one)) for one in wanted}
        pages = tuple(page for page in places.values() if page is not None)
        missing = tuple(one for one, page in places.items() if page is None)
        return PagesAsked(pages, missing, " ".join(_PRINTED.sub(" ", rest).split()))
    there = tuple(one for one in wanted if 1 <= one <= len(labels))
    missing = tuple(one for one in wanted if one not in there)
    return PagesAsked(there, missing, " ".join(rest.split()))


def _named(question: str, num_pages: int) -> Iterator[tuple[list[int], str]]:
    """Page numbers, and the words that name them. What a range names is no single page besides."""
    for pattern in _RANGES:
        for match in pattern.finditer(question):
            first, last = sorted((int(match[1]), int(match[2])))
            # a mistyped end ("10-1400") names no more than the document and one page beyond it
            yield list(range(first, min(last, max(first, num_pages + 1)) + 1)), match[0]
        question = pattern.sub(" ", question)
    for pattern in _SINGLES:
        for match in pattern.finditer(question):
            yield [int(number) for number in re.findall(r"\d+", match[1])], match[0]
    for pattern in _EDGES:
        for match in pattern.finditer(question):
            said = match[2].lower() if match[2] else "1"
            count = min(num_pages, int(said) if said.isdecimal() else _COUNTS[said])
            at_end = "".join(match[1].lower().split()) in _AT_THE_END
            start = num_pages - count if at_end else 0
            yield list(range(start + 1, start + count + 1)), match[0]
