"""What a file is, told by its first bytes and never by its name. Knows no reader."""

import re
from typing import Literal

from kvchat.documents.refused import Refused

Kind = Literal["pdf", "docx", "html", "markdown", "text"]

HEAD_BYTES = 4096

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ZIP = b"PK\x03\x04"
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_MARKDOWN = (".md", ".markdown", ".mdown", ".mkd")
_TEXTS = (*_MARKDOWN, ".txt", ".text", ".html", ".htm")
_WIDE_NULS = {b"\xff\xfe", b"\xfe\xff"}


def kind_of(head: bytes, name: str) -> Kind:
    """The kind of a file by its first `HEAD_BYTES`. `name` only parts Markdown from plain text, and
    tells what a PDF was to be. Raises Refused: not_pdf, old_office, not_text,
    other_kind.
    """
    lower = name.lower()
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if lower.endswith(".pdf"):
        raise Refused("not_pdf")
    if head.startswith(_OLE):
        raise Refused("old_office")
    if head.startswith(_ZIP):
        return "docx"  # whether it is one is seen when it is opened
    if _is_binary(head) and lower.endswith(_TEXTS):
        raise Refused("not_text")
    if _is_binary(head) or head.startswith(b"{\\rtf"):
        raise Refused("other_kind")
    if _HTML.search(_narrow(head)[:2048]):
        return "html"
    return "markdown" if lower.endswith(_MARKDOWN) else "text"


def _is_binary(head: bytes) -> bool:
    if head[:2] in _WIDE_NULS:
        return False
    body = head.removeprefix(_BOMS[0])
    controls = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 or byte == 127 for byte in body)
    return b"\0" in body or controls > len(body) / 50


def _narrow(head: bytes) -> bytes:
    return head.replace(b"\0", b"") if head[:2] in _WIDE_NULS else head
