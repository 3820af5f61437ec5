"""What is pinned in a chat, as the turns that are never left out for it.

A document that stands after the system text is no turn: what is pinned of it is told to the plan by
pages. One that was brought along with a question keeps that turn.
"""

from collections.abc import Collection, Mapping, Sequence

from kvchat.chat.shelf import Shelf
from kvchat.documents.fence import fenced_page
from kvchat.store.records import Attachment, Message, PinnedPages

Texts = Mapping[str, Sequence[str]]
"""By document what of it came along with messages, oldest first."""


def kept_turns(
    messages: Sequence[Message], pinned: Collection[str], documents: PinnedPages, shelf: Shelf
) -> frozenset[str]:
    """Pinned turns, and of each pinned document and page the newest turn that has all of it."""
    kept = set(pinned)
    for document, numbers in documents.items():
        brought = _brought(messages, document)
        for number in (None,) if numbers is None else numbers:
            kept |= set(_having(brought, document, number, shelf)[-1:])
    return frozenset(kept)


def apart(messages: Sequence[Message], documents: PinnedPages, shelf: Shelf) -> PinnedPages:
    """What is pinned of documents and stands in no turn."""
    found: dict[str, frozenset[int] | None] = {}
    for document, numbers in documents.items():
        brought = _brought(messages, document)
        if numbers is not None:
            those = {one for one in numbers if not _having(brought, document, one, shelf)}
            found[document] = frozenset(those)
        elif not _having(brought, document, None, shelf):
            found[document] = None
    return found


def _brought(messages: Sequence[Message], document: str) -> list[tuple[str, Attachment]]:
    return [
        (message.hash, one)
        for message in messages
        for one in message.attachments
        if one.document == document and one.text
    ]


def _having(
    brought: Sequence[tuple[str, Attachment]], document: str, number: int | None, shelf: Shelf
) -> list[str]:
    """The turns that have all of that page, or for None of the document, oldest first."""
    page = page_text(shelf, document, number) if brought and number is not None else None
    return [
        name
        for name, one in brought
        if one.mode == "whole" or (page is not None and page in one.text)
    ]


def page_text(shelf: Shelf, document: str, number: int) -> str | None:
    """As it stands in a fence; None where there is no such page, or no text on it."""
    found = [one for one in shelf.document(document).pages if one.number == number]
    if not found or not found[0].has_text:
        return None
    return fenced_page(number, found[0].text)


def document_tokens(documents: PinnedPages, shelf: Shelf) -> int:
    """What so much of documents takes, without those that are still being read."""
    total = 0
    for document, numbers in documents.items():
        if numbers is None:
            total += shelf.num_tokens(document) if shelf.is_read(document) else 0
        else:
            texts = (page_text(shelf, document, number) for number in numbers)
            total += sum(shelf.count(text) for text in texts if text is not None)
    return total
