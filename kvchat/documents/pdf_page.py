"""One page by PDFium: text in reading order, verdict, printed label.

Runs in the child process only (`pdf_child.py`): PDFium is neither thread-safe nor crash-proof.
Imports nothing heavier than PDFium, so that the child starts in a moment.
"""

import ctypes
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.clean import HYPHEN_MARK, clean
from kvchat.documents.pdf_text import characters, ordered_text

FEW_CHARACTERS = 25
"""A page with a picture and fewer characters is a scan: a stamp or a page number is no text."""


def label_of(pdf: pypdfium2.PdfDocument, number: int) -> str | None:
    """The printed page label where it says something else than the page's number (from 1)."""
    label = clean(pdf.get_page_label(number - 1) or "").replace("\n", " ").strip()[:40]
    return label if label and label != str(number) else None


def read_page(pdf: pypdfium2.PdfDocument, number: int) -> tuple[str, str]:
    """(text, verdict) of page `number` (from 1). A page that PDFium cannot load is `unreadable`.

    The text still holds HYPHEN_MARKs: only the whole document can resolve them.
    """
    try:
        page = pdf[number - 1]
    except pypdfium2.PdfiumError:
        return "", "unreadable"
    try:
        with characters(page) as textpage:
            raw = ordered_text(page, textpage).text
        text = clean(raw)
        if is_garbled(raw):
            return "", "unreadable"
        text = "\n".join(filter(None, [text, _field_values(pdf, page)]))
        return text, _verdict(page, text)
    except pypdfium2.PdfiumError:
        return "", "unreadable"
    finally:
        page.close()


def is_garbled(text: str) -> bool:
    """Whether a font had no map to Unicode: control or private codes, or words of mixed scripts."""
    if text.isascii() and not _CONTROLS.search(text):
        return False
    counts = Counter(c for c in text if not c.isspace() and c != HYPHEN_MARK)
    odd = sum(n for c, n in counts.items() if unicodedata.category(c) in _ODD or c == "\ufffd")
    if counts.total() < FEW_CHARACTERS:
        return False
    pairs = [(a, b, n) for (a, b), n in Counter(pairwise(text)).items() if (a + b).isalpha()]
    mixed = sum(n for a, b, n in pairs if not (a + b).isascii() and _script(a) != _script(b))
    return odd > 0.25 * counts.total() or mixed > 0.25 * max(sum(n for _, _, n in pairs), 40)


_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ODD = ("Cc", "Co", "Cn", "Cs")


def _script(char: str) -> str:
    """'GREEK', 'CYRILLIC'...; '' for Latin, Han, Kana and Hangul, which do stand together."""
    name = unicodedata.name(char, "").partition(" ")[0]
    return "" if name in _MIXES_WELL else name


_MIXES_WELL = {"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "FULLWIDTH",
               "HALFWIDTH", "FEMININE", "MASCULINE", "MODIFIER", "MICRO"}  # fmt: skip


def _verdict(page: pypdfium2.PdfPage, text: str) -> str:
    count = sum(not c.isspace() for c in text)
    if count >= FEW_CHARACTERS:
        return "text"
    drawn = pdfium.FPDFPage_CountObjects(page)
    if count == 0:
        return "scan" if drawn > 0 else "empty"
    return "scan" if _image_share(page) > 0.3 else "text"


def _image_share(page: pypdfium2.PdfPage) -> float:
    """The largest image's share of the page's area."""
    width, height = page.get_size()
    areas = [0.0]
    for image in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3):
        left, bottom, right, top = image.get_bounds()
        areas.append(max(0.0, right - left) * max(0.0, top - bottom))
    return float(max(areas) / max(width * height, 1.0))


_WRITTEN_FIELDS = (
    pdfium.FPDF_FORMFIELD_TEXTFIELD, pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX,
)  # fmt: skip


def _field_values(pdf: pypdfium2.PdfDocument, page: pypdfium2.PdfPage) -> str:
    """What was typed into a form's fields, one `label: value` a line; ticks are not read."""
    if not pdf.formenv:
        return ""
    lines = []
    for i in range(min(pdfium.FPDFPage_GetAnnotCount(page), 2000)):
        note = pdfium.FPDFPage_GetAnnot(page, i)
        if not note:
            continue
        if pdfium.FPDFAnnot_GetFormFieldType(pdf.formenv, note) in _WRITTEN_FIELDS:
            value = _wide(pdfium.FPDFAnnot_GetFormFieldValue, pdf.formenv, note)
            label = _wide(pdfium.FPDFAnnot_GetFormFieldAlternateName, pdf.formenv, note)
            if value:
                lines.append(f"{label}: {value}" if label else value)
        pdfium.FPDFPage_CloseAnnot(note)
    return clean("\n".join(lines))


def _wide(function: Callable[..., int], *arguments: Any) -> str:
    """A string of PDFium: asked first for its size in bytes (UTF-16, a final zero)."""
    size = function(*arguments, None, 0)
    if not 2 < size < 100_000:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "ignore")
