"""One page by PDFium: text in reading order, verdict, printed label.

Runs in the child process only (`pdf_child.py`): PDFium is neither thread-safe nor crash-proof.
Imports nothing heavier than PDFium, so that the child starts in a moment.
"""

import re
import unicodedata
from collections import Counter
from itertools import pairwise
from typing import Any

import pypdfium2

from kvchat.documents.clean import HYPHEN_MARK, clean
from kvchat.documents.orders import order_in
from kvchat.documents.pdf_hidden import Drawn, drawn
from kvchat.documents.pdf_text import characters, page_text
from kvchat.documents.pdf_typed import typed

FEW_CHARACTERS = 25
"""A page with a picture and fewer characters is a scan: a stamp or a page number is no text."""

SCAN_SHARE = 0.3
"""The part of the page that such a picture takes at least."""


def label_of(pdf: pypdfium2.PdfDocument, number: int) -> str | None:
    """The printed page label where it says something else than the page's number (from 1)."""
    label = clean(pdf.get_page_label(number - 1) or "").replace("\n", " ").strip()[:40]
    return label if label and label != str(number) else None


def read_page(pdf: pypdfium2.PdfDocument, number: int) -> dict[str, Any]:
    """text, verdict and facts of page `number` (from 1). A page that PDFium cannot load is
    `unreadable`.

    The text still holds HYPHEN_MARKs: only the whole document can resolve them.
    """
    try:
        page = pdf[number - 1]
    except pypdfium2.PdfiumError:
        return _unreadable()
    try:
        with characters(page) as textpage:
            found = page_text(page, textpage)
            seen = drawn(page, textpage, places=found.stands_out)
        values, num_fields = typed(pdf, page)
    except pypdfium2.PdfiumError:
        return _unreadable()
    finally:
        page.close()
    raw = found.ordered.text
    if is_garbled(raw):
        return _unreadable()
    printed = clean(raw)
    text = "\n".join(filter(None, [printed, values]))
    hidden = clean(seen.hidden_text)
    order = order_in(hidden)
    facts = {
        "num_hidden": _num_seen(hidden),
        "order": order,
        "over_picture": seen.image_share > SCAN_SHARE,
        "num_fields": num_fields,
    }
    return {"text": text, "verdict": _verdict(printed, values, seen, facts), "facts": facts}


def _unreadable() -> dict[str, Any]:
    return {"text": "", "verdict": "unreadable", "facts": {}}


def _verdict(printed: str, values: str, seen: Drawn, facts: dict[str, Any]) -> str:
    count = _num_seen(printed)
    if count < FEW_CHARACTERS and seen.image_share > SCAN_SHARE and not values:
        return "scan"
    if values and (facts["num_fields"] or count < FEW_CHARACTERS):
        return "form"
    if count:
        return "text"
    return "scan" if seen.num_objects else "empty"


def _num_seen(text: str) -> int:
    return len("".join(text.split()))


def is_garbled(text: str) -> bool:
    """Whether a font had no map to Unicode: control or private codes, or words of mixed scripts."""
    if not _UNUSUAL.search(text):
        return False
    counts = Counter("".join(text.replace(HYPHEN_MARK, "").split()))
    odd = sum(n for c, n in counts.items() if unicodedata.category(c) in _ODD or c == "\ufffd")
    if counts.total() < FEW_CHARACTERS:
        return False
    pairs = [(a, b, n) for (a, b), n in Counter(pairwise(text)).items() if (a + b).isalpha()]
    mixed = sum(n for a, b, n in pairs if not (a + b).isascii() and _script(a) != _script(b))
    return odd > 0.25 * counts.total() or mixed > 0.25 * max(sum(n for _, _, n in pairs), 40)


# Anything but Latin letters, common signs, Han, Kana and Hangul: only such text may be garbled.
_UNUSUAL = re.compile(
    "[^\t\n\r -~\xa0-\u024f\u2000-\u22ff\u3000-\u30ff\u3130-\u318f\u4e00-\u9fff\uac00-\ud7a3"
    "\ufb00-\ufb06\uff00-\uffef\ufffe]"
)
_ODD = ("Cc", "Co", "Cn", "Cs")


def _script(char: str) -> str:
    """'GREEK', 'CYRILLIC'...; '' for Latin, Han, Kana and Hangul, which do stand together."""
    name = unicodedata.name(char, "").partition(" ")[0]
    return "" if name in _MIXES_WELL else name


_MIXES_WELL = {"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "FULLWIDTH",
               "HALFWIDTH", "FEMININE", "MASCULINE", "MODIFIER", "MICRO"}  # fmt: skip
