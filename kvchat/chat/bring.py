"""Which document text goes with a question: the whole document, or the passages that suit it.

Decided once for each document of a chat, by what fits under the plan, and said in the ledger; so
the same chat keeps the same prompt, and its cache. What was read whole and does not fit any more,
or stands in a turn that was left out, is read by passages from then on. Leading documents that are
read whole stand after the system text, where chats with the same documents share their blocks; any
other text stands in the turn that brought it along.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvchat.chat.attached import Attached, decisions
from kvchat.chat.shelf import PagesRead, Shelf
from kvchat.chat.suiting import FENCE_TOKENS, Asking, Suits, fenced, suiting
from kvchat.documents.fence import fence_document, runs
from kvchat.documents.follow import meant_documents
from kvchat.documents.passages import Passage
from kvchat.errors import OutOfMemory
from kvchat.planner.ledger import entry, pages
from kvchat.planner.plan import LEAST_REPLY
from kvchat.settings import Settings
from kvchat.store.records import Attachment, ChatDocument, Choice, LedgerEntry
from kvchat.store.store import Store

WHOLE_SHARE = 0.6
"""A whole document may take this part of what fits; the rest is for the chat."""

MOST_SHARE = 0.9
"""The part of what fits that it may take where that is wanted, or was decided with more room."""
OVERHEAD_TOKENS = 128
"""For the system text and what a template writes around messages."""


@dataclass(slots=True)
class Brought:
    """What a question brings along, and the ledger entries that say how documents are read from now
    on. `to_sum`: documents with the pages that are to be summed up first, for which there are
    `room_tokens`.
    """

    attachments: list[Attachment] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    to_sum: list[tuple[ChatDocument, tuple[int, ...]]] = field(default_factory=list)
    room_tokens: float = 0.0


def decided_modes(ledger: Sequence[LedgerEntry]) -> dict[str, Choice]:
    """How each document of a chat is read, as the ledger says."""
    return {document: mode for document, (mode, _) in decisions(ledger).items()}


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that fit in all; `question_tokens` of them are the question's. A whole document may
    take up to `most` of them.
    """

    capacity_tokens: int
    question_tokens: int

    @property
    def tokens(self) -> int:
        return self.capacity_tokens - LEAST_REPLY - OVERHEAD_TOKENS - self.question_tokens

    @property
    def most(self) -> float:
        return min(MOST_SHARE * self.capacity_tokens, self.tokens)

    def unasked(self, settings: Settings) -> float:
        """The same where nobody chose how the document is read: the chat keeps the rest."""
        return min(self.most, WHOLE_SHARE * self.capacity_tokens - settings.max_new_tokens)


@dataclass(frozen=True, slots=True)
class Decided:
    """`reason` is None where it stays as it was. `tokens`: of the document alone."""

    document: ChatDocument
    mode: Choice
    reason: str | None
    tokens: int


def decide(
    there: Attached, documents: Sequence[ChatDocument], shelf: Shelf, settings: Settings, room: Room
) -> list[Decided]:
    """How each of these documents, which have been read, is read from now on."""
    found: list[Decided] = []
    taken = 0
    for one in documents:
        tokens = shelf.num_tokens(one.document, there.left_of(one))
        mode, reason = _mode_now(there, one, tokens + taken, settings, room)
        if mode != "off" and _waits(there, one, shelf):
            # More text is to come: nothing is decided yet, and what there is is not the whole.
            lost = there.reads_whole(one) and not shelf.is_read(one.document)
            mode, reason = "passages", "still_reading" if lost else None
        taken += tokens if mode == "whole" else 0
        found.append(Decided(one, mode, reason, tokens))
    return found


def _waits(there: Attached, document: ChatDocument, shelf: Shelf) -> bool:
    """Pages that are still being recognised do not hold up a document that is pinned."""
    if not shelf.is_read(document.document):
        return True
    return not shelf.is_complete(document.document) and not there.is_pinned(document)


def asking_of(store: Store, chat: str, question: str) -> Asking:
    """A question that comes next in the branch that is shown."""
    there = store.messages(chat)
    replies = [one.content for one in there if one.role == "assistant"]
    questions = [one.content for one in there if one.role == "user"]
    return Asking(question, questions, replies[-1] if replies else "")


def bring(
    there: Attached,
    asking: Asking,
    shelf: Shelf,
    settings: Settings,
    capacity_tokens: int,
    most_tokens: int = 0,
) -> Brought:
    """Of documents that are still being read what was taken up to now; those that cannot be read
    bring nothing. `most_tokens`: what fits where it is read in the smallest steps, for passages.

    Raises OutOfMemory where what is pinned cannot come along.
    """
    brought = Brought()
    room = Room(capacity_tokens, shelf.count(asking.question))
    tight = Room(max(capacity_tokens, most_tokens), room.question_tokens)
    read = [one for one in there.documents if shelf.has_text(one.document, one.name)]
    decided = decide(there, read, shelf, settings, room)
    for one in decided:
        if one.reason is not None:
            was_whole = there.reads_whole(one.document)
            lost = one.tokens if one.mode != "whole" and was_whole else 0
            brought.entries.append(_entry(one, lost))
        if one.mode == "whole":
            brought.attachments.extend(_whole(one.document, there, shelf))
    taken = sum(one.tokens for one in decided if one.mode == "whole")
    searched = [one.document for one in decided if one.mode == "passages"]
    pinned = [page for one in searched for page in there.missing_pages(one, shelf)]
    taken += sum(shelf.count(page.text) + FENCE_TOKENS for page in pinned)
    if taken > room.tokens and (pinned or there.brings_pinned):
        raise _no_room_for(taken, room)
    if searched:
        suits = _suiting(decided, asking, there, shelf, settings, tight.most - taken)
        suits.passages = [one for one in suits.passages if not _is_among(one, pinned)]
        if suits.missed:
            num_brought = len(suits.passages) + len(suits.pages)
            brought.entries.append(_fewer(num_brought, suits.missed, shelf))
        brought.entries.extend(
            _so_far(one, suits.waits[one.document])
            for one in searched
            if one.document in suits.waits
        )
        brought.attachments.extend(fenced(suits, pinned, searched))
        brought.to_sum = [
            (d, suits.to_sum[d.document]) for d in searched if d.document in suits.to_sum
        ]
        brought.room_tokens = tight.most - taken
    _name_new(brought, decided, there)
    return brought


def _suiting(
    decided: Sequence[Decided],
    asking: Asking,
    there: Attached,
    shelf: Shelf,
    settings: Settings,
    room_tokens: float,
) -> Suits:
    """Of the documents that the question names, or of all; nothing where those are read whole."""
    on = [one for one in decided if one.mode != "off"]
    names = [one.document.name for one in on]
    meant = [on[n] for n in meant_documents(asking.question, names)]
    searched = [one.document for one in meant if one.mode == "passages"]
    if not searched:
        return Suits()
    return suiting(asking, searched, there.left, shelf, settings.passages, room_tokens, names)


def _name_new(brought: Brought, decided: Sequence[Decided], there: Attached) -> None:
    """The question that a document first goes with names it, even where nothing of it suits."""
    named = {one.document for one in brought.attachments}
    new = [
        Attachment(one.document.document, one.document.name, "passages", (), "")
        for one in decided
        if one.mode == "passages"
        and there.mode(one.document.document) is None
        and one.document.document not in named
    ]
    brought.attachments = [*new, *brought.attachments]


def _no_room_for(pinned_tokens: int, room: Room) -> OutOfMemory:
    """Documents that stand after the system text the plan refuses; what is pinned here would be the
    question's own text.
    """
    return OutOfMemory(
        "pinned_documents_too_large",
        pinned=pinned_tokens,
        tokens=pinned_tokens + room.question_tokens + OVERHEAD_TOKENS,
        capacity=max(0, room.capacity_tokens - LEAST_REPLY),
    )


def _mode_now(
    there: Attached, document: ChatDocument, tokens: int, settings: Settings, room: Room
) -> tuple[Choice, str | None]:
    """How a document is read from now on, and why where that is news. `tokens`: with those of the
    documents before it.
    """
    mode, why = there.decided.get(document.document, (None, ""))
    chosen = there.chosen.get(document.document)
    if chosen in ("off", "passages"):
        return chosen, None if mode == chosen else "chosen"
    if there.is_pinned(document):
        return "whole", None if mode == "whole" else "pinned"
    if chosen == "whole":
        fits = tokens <= room.most
        wanted: Choice = "whole" if fits else "passages"
        return wanted, None if mode == wanted else "chosen" if fits else "too_large"
    if mode is None or mode == "off" or why in ("chosen", "still_reading"):
        found, reason = _decide(tokens, settings, room)
        return found, reason if (found, reason) != (mode, why) else None
    if mode == "whole" and tokens > room.most:
        return "passages", "too_large"
    if mode == "whole" and not document.leading and document.turn in there.left_out:
        return "passages", "left_out"
    return mode, None


def _decide(tokens: int, settings: Settings, room: Room) -> tuple[Choice, str]:
    if settings.document_mode == "passages":
        return "passages", "setting"
    if settings.document_mode == "whole":
        return ("whole", "setting") if tokens <= room.most else ("passages", "too_large")
    return ("whole", "fits") if tokens <= room.unasked(settings) else ("passages", "too_large")


def _entry(decided: Decided, lost_tokens: int) -> dict[str, Any]:
    document = decided.document
    arguments = {
        "document": document.document,
        "name": document.name,
        "tokens": decided.tokens,
    }
    return entry(
        f"read_{decided.mode}",
        arguments,
        decided.reason or "",
        0,
        None,
        documents=[pages(document.document)],
        lost_tokens=lost_tokens,
    )


def _so_far(document: ChatDocument, read: PagesRead) -> dict[str, Any]:
    """That not all of a document was read when the question was asked."""
    arguments = {
        "document": document.document,
        "name": document.name,
        "pages": runs(read.numbers),
        "of": read.of,
    }
    return entry(
        "read_so_far",
        arguments,
        "still_reading",
        0,
        None,
        documents=[pages(document.document, read.numbers)],
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


def _whole(document: ChatDocument, there: Attached, shelf: Shelf) -> list[Attachment]:
    """Nothing where the branch has the text already; no text where it stands after the system
    text.
    """
    if document.turn is not None:
        return []
    sha, name = document.document, document.name
    left = there.left_of(document)
    text = "" if document.leading else fence_document(shelf.document(sha, name), left)
    return [Attachment(sha, name, "whole", (), text)]


def _is_among(passage: Passage, pages: Collection[Passage]) -> bool:
    """Whether whole pages that come along have all of it."""
    numbers = {one.first_page for one in pages if one.document == passage.document}
    return set(range(passage.first_page, passage.last_page + 1)) <= numbers
