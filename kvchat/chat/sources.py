"""What of a document came along with a question, in a row to be shown."""

from typing import Any

from kvchat.documents.fence import NO_ROOM, PAGE_MARK, pages_summed, read_so_far
from kvchat.store.records import Attachment


def pages_brought(attachment: Attachment) -> list[int]:
    """The pages of which text came along."""
    return [int(number) for number in PAGE_MARK.findall(attachment.text)]


def source(attachment: Attachment) -> dict[str, Any]:
    """`pages` of a searched document, or those that a summary covers; `asked`: whether the question
    searched it at all; `no_room`: something of it suited, and did not fit; `so_far`: the pages that
    were read when it was asked, where that was not all.
    """
    pages = sorted(set(pages_brought(attachment))) if attachment.mode == "passages" else []
    so_far = read_so_far(attachment.text) if attachment.mode == "passages" else None
    summed = pages_summed(attachment.text) if attachment.mode == "passages" else None
    return {
        "document": attachment.document,
        "name": attachment.name,
        "mode": "summary" if summed is not None else attachment.mode,
        "pages": pages if summed is None else summed,
        "asked": bool(attachment.text),
        "so_far": {"pages": so_far[0], "of": so_far[1]} if so_far is not None else None,
        "no_room": not pages and any(f"({note})" in attachment.text for note in NO_ROOM.values()),
    }
