"""Which document text goes with a question: the whole document, or the passages that suit it.

Decided once for each document of a chat, by what fits under the plan, and said in the ledger; so
the same chat keeps the same prompt, and its cache. What was read whole and does not fit any more,
or stands in a turn that was left out, is read by passages from then on. Leading documents that are
read whole stand after the system text, where chats with the same documents share their blocks; any
other text stands in the turn that brought it along.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from kvchat.chat.marks import marks_of
from kvchat.chat.pins import Texts, page_text
from kvchat.chat.shelf import Shelf
from kvchat.documents.fence import fence_document, fence_passages
from kvchat.documents.follow import resolved
from kvchat.documents.passages import Passage
from kvchat.documents.retrieve import asks_something
from kvchat.errors import OutOfMemory
from kvchat.planner.ledger import entry, pages
from kvchat.planner.plan import LEAST_REPLY
from kvchat.settings import Settings
from kvchat.store.records import Attachment, ChatDocument, LedgerEntry, Mode, PinnedPages
from kvchat.store.store import Store

WHOLE_SHARE = 0.6
"""A whole document may take this part of what fits; the rest is for the chat."""

MOST_SHARE = 0.9
"""The part of what fits that it may take where that is wanted, or was decided with more room."""
OVERHEAD_TOKENS = 128
"""For the system text and what a template writes around messages."""
FENCE_TOKENS = 48
"""For what stands around a passage: its document's name, page marks."""


@dataclass(slots=True)
class Brought:
    """What a question brings along, and the ledger entries that say how documents are read from now
    on.
    """

    attachments: list[Attachment] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)


def decided_modes(ledger: Sequence[LedgerEntry]) -> dict[str, Mode]:
    """How each document of a chat is read, as the ledger says; the newest entry counts."""
    modes: dict[str, Mode] = {}
    for row in ledger:
        if row.code in ("read_whole", "read_passages"):
            modes[row.arguments["document"]] = "whole" if row.code == "read_whole" else "passages"
    return modes


@dataclass(frozen=True, slots=True)
class Attached:
    """The documents of a chat, how each is read, and the turns that the model does not see.
    `pinned`: documents and pages that it is to see in any case; `texts`: what came along.
    """

    documents: Sequence[ChatDocument]
    modes: Mapping[str, Mode]
    left_out: Collection[str]
    pinned: PinnedPages = field(default_factory=dict)
    texts: Texts = field(default_factory=dict)

    def whole(self) -> list[ChatDocument]:
        return [one for one in self.documents if self.reads_whole(one)]

    def reads_whole(self, document: ChatDocument) -> bool:
        return self.modes.get(document.document) == "whole"

    def is_pinned(self, document: ChatDocument) -> bool:
        """All of it."""
        return self.pinned.get(document.document, frozenset()) is None

    @property
    def brings_pinned(self) -> bool:
        """Whether the text of a pinned document is to be the question's own."""
        apart = (one for one in self.documents if not one.leading and one.turn is None)
        return any(self.is_pinned(one) for one in apart)

    def missing_pages(self, document: ChatDocument, shelf: Shelf) -> Iterator[Passage]:
        """Pinned pages that no turn has in full; a turn that has one is kept for it."""
        sha = document.document
        for page in shelf.document(sha).pages:
            if page.number in (self.pinned.get(sha) or ()):
                text = page_text(shelf, sha, page.number)
                if text and not any(text in one for one in self.texts.get(sha, ())):
                    start = ((0, page.number),)
                    yield Passage(sha, 0, page.number, page.number, page.text, start)


def attached(store: Store, chat: str) -> Attached:
    """`turn` of each document is here the one that brought the whole of it along, if one did."""
    turns: dict[str, str] = {}
    texts: dict[str, list[str]] = {}
    for message in store.messages(chat):
        for one in message.attachments:
            texts.setdefault(one.document, []).append(one.text)
            if one.mode == "whole" and one.text:
                turns.setdefault(one.document, message.hash)
    documents = [
        one if one.leading else replace(one, turn=turns.get(one.document))
        for one in store.chat_documents(chat)
    ]
    return Attached(
        documents,
        decided_modes(store.ledger(chat)),
        marks_of(store, chat).left_out,
        store.document_pins(chat),
        texts,
    )


def bring(
    there: Attached,
    question: str,
    earlier_questions: Sequence[str],
    shelf: Shelf,
    settings: Settings,
    capacity_tokens: int,
) -> Brought:
    """Waits for documents that are still being read; those that cannot be read bring nothing.

    Raises OutOfMemory where what is pinned cannot come along.
    """
    brought = Brought()
    room = capacity_tokens - LEAST_REPLY - OVERHEAD_TOKENS - shelf.count(question)
    most = min(MOST_SHARE * capacity_tokens, room)
    taken = 0
    retrieved: list[ChatDocument] = []
    for document in there.documents:
        if shelf.wait(document.document, document.name) is None:
            continue
        tokens = shelf.num_tokens(document.document)
        mode, reason = _mode_now(there, document, tokens + taken, settings, capacity_tokens, most)
        if reason is not None:
            lost = tokens if mode == "passages" and there.reads_whole(document) else 0
            brought.entries.append(_entry(document, mode, tokens, reason, lost))
        if mode == "whole":
            taken += tokens
            brought.attachments.extend(_whole(document, shelf))
        else:
            retrieved.append(document)
    pinned = [page for one in retrieved for page in there.missing_pages(one, shelf)]
    taken += sum(shelf.count(page.text) + FENCE_TOKENS for page in pinned)
    if taken > room and (pinned or there.brings_pinned):
        raise _no_room_for(taken, shelf.count(question), capacity_tokens)
    if retrieved:
        query = resolved(question, earlier_questions)
        index = shelf.index([one.document for one in retrieved])
        found = index.search(query.text, settings.passages, query.context)
        suiting = [one.passage for one in found if not _is_among(one.passage, pinned)]
        passages = _that_fit(suiting, shelf, most - taken)
        if len(passages) < len(suiting):
            missing = suiting[len(passages) :]
            brought.entries.append(_fewer(len(passages), missing, shelf))
        if passages or pinned or (not found and asks_something(question)):
            brought.attachments.extend(_fenced(passages, pinned, retrieved))
    return brought


def _no_room_for(pinned_tokens: int, question_tokens: int, capacity_tokens: int) -> OutOfMemory:
    """Documents that stand after the system text the plan refuses; what is pinned here would be the
    question's own text.
    """
    return OutOfMemory(
        "pinned_documents_too_large",
        pinned=pinned_tokens,
        tokens=pinned_tokens + question_tokens + OVERHEAD_TOKENS,
        capacity=max(0, capacity_tokens - LEAST_REPLY),
    )


def _mode_now(
    there: Attached,
    document: ChatDocument,
    tokens: int,
    settings: Settings,
    capacity_tokens: int,
    most: float,
) -> tuple[Mode, str | None]:
    """How a document is read from now on, and why where that is news. `tokens`: with those of the
    documents before it.
    """
    mode = there.modes.get(document.document)
    if there.is_pinned(document):
        return "whole", None if mode == "whole" else "pinned"
    if mode is None:
        return _decide(tokens, settings, capacity_tokens, most)
    if mode == "whole" and tokens > most:
        return "passages", "too_large"
    if mode == "whole" and not document.leading and document.turn in there.left_out:
        return "passages", "left_out"
    return mode, None


def _decide(tokens: int, settings: Settings, capacity_tokens: int, most: float) -> tuple[Mode, str]:
    if settings.document_mode == "passages":
        return "passages", "setting"
    if settings.document_mode == "whole":
        return ("whole", "setting") if tokens <= most else ("passages", "too_large")
    if tokens <= min(most, WHOLE_SHARE * capacity_tokens - settings.max_new_tokens):
        return "whole", "fits"
    return "passages", "too_large"


def _entry(
    document: ChatDocument, mode: Mode, tokens: int, reason: str, lost_tokens: int
) -> dict[str, Any]:
    arguments = {"document": document.document, "name": document.name, "tokens": tokens}
    concerned = [pages(document.document)]
    return entry(
        f"read_{mode}", arguments, reason, 0, None, documents=concerned, lost_tokens=lost_tokens
    )


def _fewer(num_brought: int, missing: Sequence[Passage], shelf: Shelf) -> dict[str, Any]:
    """That passages which suit the question were not brought along."""
    numbers: dict[str, list[int]] = {}
    for one in missing:
        numbers.setdefault(one.document, []).extend(range(one.first_page, one.last_page + 1))
    return entry(
        "fewer_passages",
        {"passages": num_brought, "was": num_brought + len(missing)},
        "prompt_too_long",
        0,
        None,
        documents=[pages(document, those) for document, those in numbers.items()],
        lost_tokens=sum(shelf.count(one.text) for one in missing),
    )


def _whole(document: ChatDocument, shelf: Shelf) -> list[Attachment]:
    """Nothing where the branch has the text already; no text where it stands after the system
    text.
    """
    if document.turn is not None:
        return []
    sha, name = document.document, document.name
    text = "" if document.leading else fence_document(shelf.document(sha, name))
    return [Attachment(sha, name, "whole", (), text)]


def _that_fit(passages: Sequence[Passage], shelf: Shelf, most_tokens: float) -> list[Passage]:
    """The first of them, best first, that may go with one question."""
    sizes = accumulate(shelf.count(one.text) + FENCE_TOKENS for one in passages)
    return [one for one, size in zip(passages, sizes, strict=True) if size <= most_tokens]


def _is_among(passage: Passage, pages: Collection[Passage]) -> bool:
    """Whether whole pages that come along have all of it."""
    numbers = {one.first_page for one in pages if one.document == passage.document}
    return set(range(passage.first_page, passage.last_page + 1)) <= numbers


def _fenced(
    passages: Sequence[Passage], pinned: Sequence[Passage], documents: Sequence[ChatDocument]
) -> list[Attachment]:
    """One attachment a document: pinned pages, then passages, the best last. Where nothing suits,
    the model is told so.

    Next to the question is where a small model looks: of six questions on the built-in one, best
    last answered 4, reading order 3, best first 2.
    """
    names = {one.document: one.name for one in documents}
    there = [*pinned, *reversed(passages)]
    found: dict[str, list[Passage]] = {} if there else {documents[0].document: []}
    for passage in there:
        found.setdefault(passage.document, []).append(passage)
        found[passage.document] = found.pop(passage.document)
    return [
        Attachment(
            sha,
            names[sha],
            "passages",
            tuple(one.index for one in those if one not in pinned),
            fence_passages(those, names),
        )
        for sha, those in found.items()
    ]
