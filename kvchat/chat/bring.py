"""Which document text goes with a question: the whole document, or the passages that suit it.

Decided once for each document of a chat, by what fits under the plan, and said in the ledger; so
the same chat keeps the same prompt, and its cache. What was read whole and does not fit any more,
or stands in a turn that was left out, is read by passages from then on. Leading documents that are
read whole stand after the system text, where chats with the same documents share their blocks; any
other text stands in the turn that brought it along.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from kvchat.chat.keep import left_out
from kvchat.chat.shelf import Shelf
from kvchat.documents.fence import fence_document, fence_passages
from kvchat.documents.passages import Passage
from kvchat.documents.retrieve import asks_something, follow_up
from kvchat.planner.ledger import entry
from kvchat.planner.plan import LEAST_REPLY
from kvchat.settings import Settings
from kvchat.store.records import Attachment, ChatDocument, LedgerEntry, Mode
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
    """The documents of a chat, how each is read, and the turns that the model does not see."""

    documents: Sequence[ChatDocument]
    modes: Mapping[str, Mode]
    left_out: Collection[str]

    def whole(self) -> list[ChatDocument]:
        return [one for one in self.documents if self.modes.get(one.document) == "whole"]


def attached(store: Store, chat: str) -> Attached:
    """`turn` of each document is here the one that brought the whole of it along, if one did."""
    turns: dict[str, str] = {}
    for message in store.messages(chat):
        for one in message.attachments:
            if one.mode == "whole" and one.text:
                turns.setdefault(one.document, message.hash)
    documents = [
        one if one.leading else replace(one, turn=turns.get(one.document))
        for one in store.chat_documents(chat)
    ]
    return Attached(documents, decided_modes(store.ledger(chat)), left_out(store, chat))


def bring(
    there: Attached,
    question: str,
    earlier_questions: Sequence[str],
    shelf: Shelf,
    settings: Settings,
    capacity_tokens: int,
) -> Brought:
    """Waits for documents that are still being read; those that cannot be read bring nothing."""
    brought = Brought()
    most = MOST_SHARE * capacity_tokens
    most = min(most, capacity_tokens - LEAST_REPLY - OVERHEAD_TOKENS - shelf.count(question))
    taken = 0
    retrieved: list[ChatDocument] = []
    for document in there.documents:
        if shelf.wait(document.document, document.name) is None:
            continue
        tokens = shelf.num_tokens(document.document)
        mode, reason = there.modes.get(document.document), None
        if mode is None:
            mode, reason = _decide(tokens + taken, settings, capacity_tokens, most)
        elif mode == "whole" and tokens + taken > most:
            mode, reason = "passages", "too_large"
        elif mode == "whole" and not document.leading and document.turn in there.left_out:
            mode, reason = "passages", "left_out"
        if reason is not None:
            brought.entries.append(_entry(document, mode, tokens, reason))
        if mode == "whole":
            taken += tokens
            brought.attachments.extend(_whole(document, shelf))
        else:
            retrieved.append(document)
    if retrieved:
        found = shelf.index([one.document for one in retrieved]).search(
            follow_up(question, earlier_questions), settings.passages
        )
        passages = _that_fit([one.passage for one in found], shelf, most - taken)
        if len(passages) < len(found):
            arguments = {"passages": len(passages), "was": len(found)}
            brought.entries.append(entry("fewer_passages", arguments, "prompt_too_long", 0, None))
        if passages or (not found and asks_something(question)):
            brought.attachments.extend(_fenced(passages, retrieved))
    return brought


def _decide(tokens: int, settings: Settings, capacity_tokens: int, most: float) -> tuple[Mode, str]:
    if settings.document_mode == "passages":
        return "passages", "setting"
    if settings.document_mode == "whole":
        return ("whole", "setting") if tokens <= most else ("passages", "too_large")
    if tokens <= min(most, WHOLE_SHARE * capacity_tokens - settings.max_new_tokens):
        return "whole", "fits"
    return "passages", "too_large"


def _entry(document: ChatDocument, mode: Mode, tokens: int, reason: str) -> dict[str, Any]:
    arguments = {"document": document.document, "name": document.name, "tokens": tokens}
    return entry(f"read_{mode}", arguments, reason, 0, None)


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


def _fenced(passages: Sequence[Passage], documents: Sequence[ChatDocument]) -> list[Attachment]:
    """One attachment a document, the best passage last. Where nothing suits, the model is told so.

    Next to the question is where a small model looks: of six questions on the built-in one, best
    last answered 4, reading order 3, best first 2.
    """
    names = {one.document: one.name for one in documents}
    found: dict[str, list[Passage]] = {} if passages else {documents[0].document: []}
    for passage in reversed(passages):
        found.setdefault(passage.document, []).append(passage)
        found[passage.document] = found.pop(passage.document)
    return [
        Attachment(
            sha,
            names[sha],
            "passages",
            tuple(one.index for one in passages),
            fence_passages(passages, names),
        )
        for sha, passages in found.items()
    ]
