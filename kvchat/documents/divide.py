"""Files without pages of their own, divided into parts that a citation can name.

The rule: a page break of the file itself always begins a new part. Where a file has none, a part
has about `PART_CHARACTERS`; it begins at a heading if it can, else at a paragraph. Knows no file.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

PART_CHARACTERS = 3000
"""As much as a printed page holds: 3,000 Latin letters or 1,500 Hangul syllables."""

_SENTENCE_GAP = re.compile(r"(?<=[.!?。！？])\s+|\n")


@dataclass(frozen=True, slots=True)
class Piece:
    """A paragraph, heading or row of a table; or a page break of the file, which has no text."""

    text: str
    kind: Literal["text", "heading", "break"] = "text"


BREAK = Piece("", "break")


def divided(pieces: Iterable[Piece]) -> tuple[list[str], bool]:
    """(the text of each part, whether the file's own page breaks were used)."""
    there = list(pieces)
    if any(piece.kind == "break" for piece in there):
        return _by_breaks(there), True
    return list(_by_size(there)), False


def _by_breaks(pieces: list[Piece]) -> list[str]:
    """Empty pages in between count, so that numbers are those of the file; not those at its end."""
    parts: list[list[str]] = [[]]
    for piece in pieces:
        if piece.kind == "break":
            parts.append([])
        elif piece.text:
            parts[-1].append(piece.text)
    texts = ["\n".join(part) for part in parts]
    while len(texts) > 1 and not texts[-1].strip():
        texts.pop()
    return texts


def _by_size(pieces: list[Piece]) -> Iterator[str]:
    part: list[str] = []
    size = 0
    for piece in pieces:
        for text in _short(piece.text):
            weight = weight_of(text)
            over = size + weight > PART_CHARACTERS
            begins = piece.kind == "heading" and size > PART_CHARACTERS // 2
            if part and (over or begins):
                yield "\n".join(part)
                part, size = [], 0
            part.append(text)
            size += weight + 1
    if part:
        yield "\n".join(part)


def weight_of(text: str) -> int:
    """Characters, wide ones (Hangul, Han, Kana) twice."""
    return len(text) if text.isascii() else len(text) + sum("\u1100" <= c <= "\uffdc" for c in text)


def _short(text: str) -> Iterator[str]:
    """A paragraph that is longer than a part, in pieces: at ends of sentences, else anywhere.

    Looks no further than one part at a time: a file may be a single line.
    """
    start = 0
    while weight_of(window := text[start : start + PART_CHARACTERS + 1]) > PART_CHARACTERS:
        most = start + (PART_CHARACTERS if window.isascii() else PART_CHARACTERS // 2)
        least = (start + most) // 2
        gaps = [m.end() for m in _SENTENCE_GAP.finditer(text, least, most)]
        blank = text.rfind(" ", least, most) + 1
        cut = gaps[-1] if gaps else blank or most
        if piece := text[start:cut].rstrip():
            yield piece
        start = cut
    if (rest := text[start:]).strip():
        yield rest
