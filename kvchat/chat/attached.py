"""The documents of a chat as they stand now: how each is read and why, what of them is pinned, what
is left out, and what of them the model is still to be told.

What was decided stands in the ledger, what a person chose in the store. Decides nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvchat.chat.marks import marks_of
from kvchat.chat.pins import Texts
from kvchat.chat.shelf import Shelf
from kvchat.chat.suiting import page_passages
from kvchat.documents.fence import fence_document, fenced_page, without_pages
from kvchat.documents.passages import Passage
from kvchat.store.choices import LeftPages
from kvchat.store.records import (
    Attachment,
    ChatDocument,
    Choice,
    LedgerEntry,
    Message,
    PinnedPages,
)
from kvchat.store.store import Store


def decisions(ledger: Sequence[LedgerEntry]) -> dict[str, tuple[Choice, str]]:
    """How each document of a chat is read and why, as the ledger says; the newest entry counts."""
    return {
        row.arguments["document"]: (_CODES[row.code], row.reason)
        for row in ledger
        if row.code in _CODES
    }


_CODES: dict[str, Choice] = {"read_whole": "whole", "read_passages": "passages", "read_off": "off"}


@dataclass(frozen=True, slots=True)
class Attached:
    """The documents of a chat, how each is read and why, and the turns that the model does not see.
    `pinned`: documents and pages that it is to see in any case; `left`: pages that it is not to
    see; `chosen`: how a person wants a document to be read; `texts`: what came along.
    """

    documents: Sequence[ChatDocument]
    decided: Mapping[str, tuple[Choice, str]]
    left_out: Collection[str]
    pinned: PinnedPages = field(default_factory=dict)
    texts: Texts = field(default_factory=dict)
    left: LeftPages = field(default_factory=dict)
    chosen: Mapping[str, Choice] = field(default_factory=dict)

    def mode(self, document: str) -> Choice | None:
        return self.decided[document][0] if document in self.decided else None

    def whole(self) -> list[ChatDocument]:
        return [one for one in self.documents if self.reads_whole(one)]

    def reads_whole(self, document: ChatDocument) -> bool:
        return self.mode(document.document) == "whole"

    def left_of(self, document: ChatDocument) -> frozenset[int]:
        return self.left.get(document.document, frozenset())

    def is_pinned(self, document: ChatDocument) -> bool:
        """All of it."""
        return self.pinned.get(document.document, frozenset()) is None

    @property
    def brings_pinned(self) -> bool:
        """Whether the text of a pinned document is to be the question's own."""
        apart = (one for one in self.documents if not one.leading and one.turn is None)
        return any(self.is_pinned(one) for one in apart)

    def missing_pages(self, document: ChatDocument, shelf: Shelf) -> list[Passage]:
        """Pinned pages that no turn has in full; a turn that has one is kept for it."""
        sha = document.document
        there = self.texts.get(sha, ())
        wanted = (self.pinned.get(sha) or frozenset()) - self.left_of(document)
        return [
            page
            for page in page_passages(shelf, sha, wanted)
            if not any(fenced_page(page.first_page, page.text) in one for one in there)
        ]

    def leading_texts(self, shelf: Shelf) -> list[tuple[str, str]]:
        """(hash, fenced text) of what stands after the system text."""
        return [
            (
                one.document,
                fence_document(shelf.document(one.document, one.name), self.left_of(one)),
            )
            for one in self.whole()
            if one.leading
        ]

    def as_told(self, message: Message) -> Message:
        """A message with what the model is still to be given of what came along with it."""
        kept = tuple(filter(None, map(self._kept, message.attachments)))
        return message if kept == message.attachments else replace(message, attachments=kept)

    def _kept(self, one: Attachment) -> Attachment | None:
        mode = self.mode(one.document)
        has = any(document.document == one.document for document in self.documents)
        if not has or mode == "off" or (one.mode == "whole" and mode not in ("whole", None)):
            return None
        left = self.left.get(one.document)
        return replace(one, text=without_pages(one.text, left)) if left and one.text else one


def attached(store: Store, chat: str) -> Attached:
    """`turn` of each document is here the one that brought the whole of it along, if one did."""
    decided, pinned = decisions(store.ledger(chat)), store.document_pins(chat)
    rows, left = store.chat_documents(chat), store.left_pages(chat)
    found = Attached(
        rows,
        decided,
        marks_of(store, chat).left_out,
        pinned,
        left=left,
        chosen=store.chosen_modes(chat),
    )
    turns: dict[str, str] = {}
    texts: dict[str, list[str]] = {}
    for message in store.messages(chat):
        for one in found.as_told(message).attachments:
            texts.setdefault(one.document, []).append(one.text)
            if one.mode == "whole" and one.text:
                turns.setdefault(one.document, message.hash)
    documents = [one if one.leading else replace(one, turn=turns.get(one.document)) for one in rows]
    return replace(found, documents=documents, texts=texts)
