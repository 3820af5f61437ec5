"""Plain text and Markdown: which encoding, and where it may be divided.

Runs in the child process only.
"""

import codecs
import re
from collections.abc import Iterator

from kvchat.documents.divide import BREAK, Piece
from kvchat.documents.refused import Refused

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SAMPLE_BYTES = 1 << 18
_WESTERN = "cp1252"
_MOST_ODD = 0.02
_ODD = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd\ue000-\uf8ff]")


def decoded(raw: bytes) -> str:
    """The text of a file. Raises Refused `not_text` for bytes that are no text."""
    text = raw.decode(encoding_of(raw), "replace")
    if len(_ODD.findall(text)) > _MOST_ODD * max(len(text), 50):
        raise Refused("not_text")
    return text


def encoding_of(raw: bytes) -> str:
    """By its mark, else UTF-8 where that fits, else what most Korean files are in, else guessed."""
    for mark, name in _BOMS:
        if raw.startswith(mark):
            return name
    if _fits(raw, "utf-8"):
        return "utf-8"
    if _fits(raw, "cp949") and _is_mostly_hangul(raw[:_SAMPLE_BYTES].decode("cp949", "ignore")):
        return "cp949"
    from charset_normalizer import from_bytes  # 50 ms, and seldom wanted

    guesses = from_bytes(raw[:_SAMPLE_BYTES])
    best = guesses.best()
    if best is None:
        return _WESTERN
    # Of code pages that fit as well as another, the one that far more files are in.
    for guess in guesses:
        as_good = guess.coherence >= best.coherence - 0.1 and guess.chaos <= best.chaos + 0.15
        if guess.encoding == _WESTERN and as_good:
            return _WESTERN
    return best.encoding


def _fits(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_mostly_hangul(text: str) -> bool:
    foreign = [c for c in text if not c.isascii() and c.isalpha()]
    return sum("가" <= c <= "힣" for c in foreign) > 0.8 * len(foreign) > 0


def plain_pieces(text: str) -> Iterator[Piece]:
    """Lines as they are; a form feed is a page break."""
    for number, page in enumerate(_unified(text).split("\f")):
        if number:
            yield BREAK
        yield from (Piece(part) for part in page.split("\n"))


def markdown_pieces(text: str) -> Iterator[Piece]:
    """The source as written, which a model reads well; its headings are known as such."""
    from markdown_it import MarkdownIt

    text = _unified(text)
    # Only what tells a heading from code: the whole of Markdown takes six times as long.
    blocks = MarkdownIt("zero").enable(["heading", "lheading", "fence", "code"])
    blocks.core.ruler.enableOnly(["normalize", "block"])
    headings = {
        token.map[0] for token in blocks.parse(text) if token.type == "heading_open" and token.map
    }
    for number, line in enumerate(text.split("\n")):
        yield Piece(line, "heading" if number in headings else "text")


def _unified(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
