"""What of searched documents suits a question: pages that it names, or the passages found for it.

Takes values and gives values; how much may come along it is told in tokens.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from kvchat.chat.shelf import PagesRead, Shelf
from kvchat.documents.asked_pages import PagesAsked, asked_pages
from kvchat.documents.fence import NO_ROOM, SO_FAR, fence_nothing, fence_passages, runs
from kvchat.documents.follow import has_own_words, resolved, without_documents
from kvchat.documents.passages import Passage
from kvchat.documents.retrieve import Index, asks_something
from kvchat.documents.terms import asks_for_summary
from kvchat.store.records import Attachment, ChatDocument

FENCE_TOKENS = 48
"""For what stands around a passage: its document's name, page marks."""

_HANGUL = re.compile("[가-힣]")
# Told to the model in the language of the question: a small one answers in that of what it reads.
_NOTHING = {
    False: "nothing was found in it for this question; say so if it is about the document",
    True: "이 문서에서 질문에 맞는 내용을 찾지 못했음. 문서에 대한 질문이면 문서에 없다고 답할 것",
}
_NO_ROOM = {False: NO_ROOM["en"], True: NO_ROOM["ko"]}
_SO_FAR = {False: SO_FAR["en"], True: SO_FAR["ko"]}
_NO_SUCH_PAGE = {
    False: "it has {of} pages, and no page {pages}",
    True: "이 문서는 {of}쪽이며 {pages}쪽은 없음",
}


@dataclass(frozen=True, slots=True)
class Asking:
    """A question with what was said before it, in the branch that is shown."""

    question: str
    earlier_questions: Sequence[str] = ()
    last_reply: str = ""


@dataclass(slots=True)
class Suits:
    """`pages`: whole ones that were asked for by number, in order; `passages`: the best first;
    `missed`: what suits as well and is too much; `notes`: by document what the model is told of it;
    `to_sum`: by document the pages of which a summary is wanted, as they are too many; `waits`: by
    document what was read of it, where that was not all.
    """

    pages: list[Passage] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    missed: list[Passage] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    to_sum: dict[str, tuple[int, ...]] = field(default_factory=dict)
    waits: dict[str, PagesRead] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.pages or self.passages or self.missed or self.to_sum)


def suiting(
    asking: Asking,
    documents: Sequence[ChatDocument],
    left: Mapping[str, frozenset[int]],
    shelf: Shelf,
    most_passages: int,
    room_tokens: float,
    names: Sequence[str] = (),
) -> Suits:
    """`documents` are searched; `left`: their pages that are not to be given; `names`: of all
    documents that could have been meant.
    """
    found, korean = Suits(), bool(_HANGUL.search(asking.question))
    is_choice = len(documents) < len(names)
    named: dict[str, PagesAsked] = {}
    for one in documents:
        read = shelf.document(one.document)
        labels = [*(page.label for page in read.pages), *[None] * read.num_missing]
        asked = asked_pages(asking.question, labels)
        if asked is not None:
            named[one.document] = asked
            if asked.missing:
                numbers = ", ".join(map(str, asked.missing[:8]))
                note = _NO_SUCH_PAGE[korean].format(of=len(labels), pages=numbers)
                found.notes.setdefault(one.document, []).append(note)
    is_whole = not named and asks_for_summary(asking.question)
    if is_whole or any(asks_for_summary(one.rest) for one in named.values()):
        _take_summed(found, documents, named, left, shelf, room_tokens)
    elif named:
        _take_pages(found, named, left, shelf, most_passages, room_tokens)
    else:
        index = shelf.index([one.document for one in documents], left)
        query = resolved(asking.question, asking.earlier_questions, asking.last_reply)
        if is_choice:
            query = without_documents(query, names)
        scored = index.search(query.text, most_passages, query.context)
        if shelf.meanings is not None and asks_something(asking.question):
            cut = [shelf.passages(one.document, left.get(one.document)) for one in documents]
            said = f"{query.context} {query.text}".strip()
            scored = shelf.meanings.fused(scored, said, cut, most_passages)
        _take(found, [one.passage for one in scored], shelf, room_tokens)
    if found.missed and not (found.pages or found.passages):
        for sha in dict.fromkeys(one.document for one in found.missed):
            found.notes.setdefault(sha, []).append(_NO_ROOM[korean])
    if named or asks_something(asking.question) or not found.is_empty:
        _tell_of_each(found, documents, shelf, korean=korean)
    return found


def _tell_of_each(
    found: Suits, documents: Sequence[ChatDocument], shelf: Shelf, *, korean: bool
) -> None:
    """That a document was not read whole yet, or has nothing that suits."""
    is_empty = found.is_empty
    for one in documents:
        so_far = shelf.read_so_far(one.document)
        if so_far is not None:
            found.waits[one.document] = so_far
            note = _SO_FAR[korean].format(pages=runs(so_far.numbers), of=so_far.of)
            found.notes.setdefault(one.document, []).append(note)
        if is_empty:
            found.notes.setdefault(one.document, []).append(_NOTHING[korean])


def _take_pages(
    found: Suits,
    named: Mapping[str, PagesAsked],
    left: Mapping[str, frozenset[int]],
    shelf: Shelf,
    most_passages: int,
    room_tokens: float,
) -> None:
    """All of the pages where they fit; else what of them suits the rest of the question, or as many
    as fit.
    """
    pages = [
        page
        for sha, asked in named.items()
        for page in page_passages(shelf, sha, set(asked.pages) - left.get(sha, frozenset()))
    ]
    fitting = that_fit(pages, shelf, room_tokens)
    if len(fitting) == len(pages):
        found.pages = pages
        return
    rest = next(iter(named.values())).rest
    if has_own_words(rest):
        inside = {(page.document, page.first_page) for page in pages}
        passages = [
            one
            for sha in named
            for one in shelf.passages(sha)
            if all((sha, number) in inside for number, _ in one.parts())
        ]
        scored = Index(passages).search(rest, most_passages)
        _take(found, [one.passage for one in scored], shelf, room_tokens)
    if not found.passages:
        found.pages, found.missed = fitting, pages[len(fitting) :]


def _take_summed(
    found: Suits,
    documents: Sequence[ChatDocument],
    named: Mapping[str, PagesAsked],
    left: Mapping[str, frozenset[int]],
    shelf: Shelf,
    room_tokens: float,
) -> None:
    """Where a summary is asked for: all the pages, or what is to be summed up part by part."""
    pages: list[Passage] = []
    for one in documents:
        sha = one.document
        numbers = set(named[sha].pages) if sha in named else set[int]()
        if not named:
            numbers = {page.number for page in shelf.document(sha).pages}
        pages += page_passages(shelf, sha, numbers - left.get(sha, frozenset()))
    if len(that_fit(pages, shelf, room_tokens)) == len(pages):
        found.pages = pages
        return
    for page in pages:
        found.to_sum[page.document] = (*found.to_sum.get(page.document, ()), page.first_page)


def _take(found: Suits, passages: Sequence[Passage], shelf: Shelf, room_tokens: float) -> None:
    found.passages = that_fit(passages, shelf, room_tokens)
    found.missed = list(passages[len(found.passages) :])


def page_passages(shelf: Shelf, sha: str, numbers: Collection[int]) -> list[Passage]:
    """Whole pages that have text, in order."""
    return [
        Passage(sha, 0, page.number, page.number, page.text, ((0, page.number),))
        for page in shelf.document(sha).pages
        if page.number in numbers and page.has_text and page.text
    ]


def that_fit(passages: Sequence[Passage], shelf: Shelf, most_tokens: float) -> list[Passage]:
    """The first of them that may go with one question."""
    sizes = accumulate(shelf.count(one.text) + FENCE_TOKENS for one in passages)
    return [one for one, size in zip(passages, sizes, strict=True) if size <= most_tokens]


def fenced(
    suits: Suits, pinned: Sequence[Passage], documents: Sequence[ChatDocument]
) -> list[Attachment]:
    """One attachment a document: pinned pages, then pages that were asked for, then passages, the
    best last. Where nothing suits, the model is told so.

    Next to the question is where a small model looks: of six questions on the built-in one, best
    last answered 4, reading order 3, best first 2.
    """
    names = {one.document: one.name for one in documents}
    whole = [*pinned, *(page for page in suits.pages if page not in pinned)]
    brought: dict[str, list[Passage]] = {}
    for passage in [*whole, *reversed(suits.passages)]:
        brought.setdefault(passage.document, []).append(passage)
        brought[passage.document] = brought.pop(passage.document)
    for sha in suits.notes:
        if sha not in brought:
            brought = {sha: [], **brought}
    return [
        Attachment(
            sha,
            names[sha],
            "passages",
            tuple(one.index for one in those if one not in whole),
            fence_passages(those, names, suits.notes.get(sha, ()))
            if those
            else fence_nothing(names[sha], suits.notes[sha]),
        )
        for sha, those in brought.items()
    ]
