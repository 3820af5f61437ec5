"""What of a document came along with a question, in a row to be shown."""

from typing import Any

from kvchat.documents.fence import PAGE_MARK
from kvchat.store.records import Attachment


def pages_brought(attachment: Attachment) -> list[int]:
    """The pages of which text came along."""
    return [int(number) for number in PAGE_MARK.findall(attachment.text)]


def source(attachment: Attachment) -> dict[str, Any]:
    """`pages` of a searched document; `asked`: whether the question searched it at all."""
    pages = sorted(set(pages_brought(attachment))) if attachment.mode == "passages" else []
    return {
        "document": attachment.document,
        "name": attachment.name,
        "mode": attachment.mode,
        "pages": pages,
        "asked": bool(attachment.text),
    }
