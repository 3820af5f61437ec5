"""Word files: paragraphs, tables row by row, text boxes, notes and comments.

Word writes down where its pages ended when it last showed the file; those are the pages then.
Nothing that a file points to is fetched, and no entity of its XML is resolved (python-docx).
Runs in the child process only.
"""

import zipfile
from collections.abc import Iterator
from typing import Any

from kvchat.documents.divide import BREAK, Piece
from kvchat.documents.refused import Refused
from kvchat.units import MIB

MOST_UNPACKED_BYTES = 256 * MIB
MOST_RATIO = 400
"""Unpacked to packed bytes: XML of a real file packs to a tenth, a bomb to a thousandth."""

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_SKIPPED = (
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",  # says it all again
    f"{_W}del", f"{_W}moveFrom", f"{_W}instrText", f"{_W}rPr", f"{_W}pPr", f"{_W}sectPr",
)  # fmt: skip
_NOTES = ("footnotes", "endnotes", "comments")
_MOST_DEPTH = 200


def docx_pieces(path: str) -> Iterator[Piece]:
    """Raises Refused: other_kind, damaged, memory."""
    _check_size(path)
    import docx
    from docx.opc.exceptions import PackageNotFoundError
    from lxml.etree import XMLSyntaxError

    try:
        document = docx.Document(path)
    except ValueError:
        raise Refused("other_kind") from None
    except (PackageNotFoundError, XMLSyntaxError, KeyError, zipfile.BadZipFile, OSError):
        raise Refused("damaged") from None
    headings = {
        style.style_id
        for style in document.styles
        if (style.name or "").lower().startswith(("heading", "title"))
    }
    yield from _pieces(document.element.body, headings)
    yield from _notes(document, headings)


def _check_size(path: str) -> None:
    """A bomb is refused by what its list of contents says; what says less than it holds is broken,
    and is refused as such when it is unpacked.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            inside = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise Refused("damaged") from None
    if not any(one.filename == "[Content_Types].xml" for one in inside):
        raise Refused("other_kind")
    unpacked, packed = sum(i.file_size for i in inside), sum(i.compress_size for i in inside)
    if unpacked > MOST_UNPACKED_BYTES or unpacked > MOST_RATIO * max(packed, 10_000):
        raise Refused("memory")


def _pieces(element: Any, headings: set[str], depth: int = 0) -> Iterator[Piece]:
    """The paragraphs and tables right under an element, in order."""
    if depth > _MOST_DEPTH:
        return
    for child in element:
        if child.tag == f"{_W}p":
            yield from _paragraph(child, headings)
        elif child.tag == f"{_W}tbl":
            yield from (Piece(row) for row in _rows(child) if row)
        elif isinstance(child.tag, str) and child.tag not in _SKIPPED:
            yield from _pieces(child, headings, depth + 1)


def _paragraph(paragraph: Any, headings: set[str]) -> Iterator[Piece]:
    """A paragraph in parts where a page ended within it."""
    style = paragraph.find(f"{_W}pPr/{_W}pStyle")
    is_heading = style is not None and style.get(f"{_W}val") in headings
    parts = _text(paragraph).split("\f")
    for number, part in enumerate(parts):
        if number:
            yield BREAK
        if part.strip():
            yield Piece(part.strip(), "heading" if is_heading else "text")


def _rows(table: Any) -> Iterator[str]:
    for row in table.iter(f"{_W}tr"):
        cells = (" ".join(_text(cell).split()) for cell in row.iterchildren(f"{_W}tc"))
        yield " | ".join(cells).strip(" |")


def _text(element: Any) -> str:
    """All text under an element; `\\f` where a page ended, a line a paragraph of a box in it."""
    found: list[str] = []
    stack = [iter(element)]
    while stack:
        child = next(stack[-1], None)
        if child is None:
            stack.pop()
            continue
        tag = child.tag
        if tag in _SKIPPED or not isinstance(tag, str):
            continue
        if tag == f"{_W}t":
            found.append(child.text or "")
        elif tag == f"{_W}tab":
            found.append("\t")
        elif tag in (f"{_W}br", f"{_W}lastRenderedPageBreak"):
            is_page = tag != f"{_W}br" or child.get(f"{_W}type") == "page"
            found.append("\f" if is_page else "\n")
        elif tag == f"{_W}noBreakHyphen":
            found.append("-")
        elif tag in (f"{_W}p", f"{_W}tr") and found:
            found.append("\n")
        if len(stack) < _MOST_DEPTH:
            stack.append(iter(child))
    # A break that a person set is followed by Word's own note of the page that it began.
    text = "".join(found)
    while "\f\f" in text:
        text = text.replace("\f\f", "\f")
    return text


def _notes(document: Any, headings: set[str]) -> Iterator[Piece]:
    """Footnotes, endnotes and comments, after the text."""
    from docx.oxml.parser import parse_xml

    for relation in document.part.rels.values():
        kind = relation.reltype.rpartition("/")[2]
        if kind not in _NOTES or relation.is_external:
            continue
        for note in parse_xml(relation.target_part.blob):
            if note.get(f"{_W}type") is None:  # the others are lines between text and notes
                yield from (piece for piece in _pieces(note, headings) if piece.kind != "break")
