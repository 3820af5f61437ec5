"""Files that are no PDF, as the same answers: parts with text, a verdict and facts.

Runs in the child process only.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvchat.documents.clean import clean
from kvchat.documents.divide import PART_CHARACTERS, divided
from kvchat.documents.docx_file import docx_pieces
from kvchat.documents.html_file import html_text
from kvchat.documents.kinds import Kind
from kvchat.documents.limits import MOST_PAGES
from kvchat.documents.orders import order_in
from kvchat.documents.refused import Refused
from kvchat.documents.text_file import decoded, markdown_pieces, plain_pieces
from kvchat.units import MIB

MOST_TEXT_BYTES = 64 * MIB
"""Of a file as it lies there; its text is bounded by the parts that it would become."""


def read_divided(path: str, kind: Kind) -> Iterator[dict[str, Any]]:
    """Raises Refused: not_text, other_kind, damaged, memory, text_too_long."""
    hidden: list[str] = []
    if kind == "docx":
        texts, is_paged = divided(docx_pieces(path))
    elif kind == "html":
        found = html_text(_bytes(path))
        hidden = list(dict.fromkeys(clean(text) for text in found.hidden))
        texts, is_paged = divided(found.pieces)
    else:
        text = decoded(_bytes(path))
        if len(text) > MOST_PAGES * PART_CHARACTERS:
            raise Refused("text_too_long")
        pieces = markdown_pieces(text) if kind == "markdown" else plain_pieces(text)
        texts, is_paged = divided(pieces)
    texts = [clean(text) for text in texts] or [""]
    yield {"pages": len(texts), "is_divided": not is_paged, "attachments": []}
    for number, text in enumerate(texts, 1):
        inside = " ".join(one for one in hidden if one and one in text)
        facts = {"num_hidden": len("".join(inside.split())), "order": order_in(inside)}
        verdict = "text" if text else "empty"
        yield {"page": number, "label": None, "text": text, "verdict": verdict, "facts": facts}


def _bytes(path: str) -> bytes:
    file = Path(path)
    if file.stat().st_size > MOST_TEXT_BYTES:
        raise Refused("memory")
    return file.read_bytes()
