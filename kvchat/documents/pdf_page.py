"""One page by PDFium: text in reading order, verdict, printed label, picture.

Runs in the child process only (`pdf_child.py`): PDFium is neither thread-safe nor crash-proof.
Imports nothing heavier than PDFium, so that the child starts in a moment.
"""

import ctypes
import re
import struct
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.clean import HYPHEN_MARK, clean
from kvchat.documents.reading_order import Box, in_reading_order

FEW_CHARACTERS = 25
"""A page with a picture and fewer characters is a scan: a stamp or a page number is no text."""

MOST_PAGE_CHARACTERS = 1_000_000
MOST_PICTURE_PIXELS = 4_000_000
MOST_PICTURE_HEIGHT = 4000
MOST_IMAGE_PIXELS = 150_000_000
"""An image with more pixels than this inside a page is not decoded for its picture (a bomb)."""


class Refused(Exception):
    """PDFium cannot or must not do this; the argument is a code for the parent."""


def open_pdf(path: str, password: str | None) -> pypdfium2.PdfDocument:
    """Raises Refused: encrypted, password, damaged, no_pages.

    PDFium's own error text is not shown: it is stale at times ("Success" for a file of no pages).
    """
    for attempt in _spellings(password):
        raw = pdfium.FPDF_LoadDocument(path.encode(), attempt)
        if raw:
            break
        if pdfium.FPDF_GetLastError() != pdfium.FPDF_ERR_PASSWORD:
            raise Refused("damaged")
    else:
        raise Refused("password" if password else "encrypted")
    pdf = pypdfium2.PdfDocument(raw)
    if pdfium.FPDF_GetPageCount(raw) < 1:
        pdf.close()
        raise Refused("no_pages")
    return pdf


def _spellings(password: str | None) -> list[bytes | None]:
    """UTF-8 as typed and normalised (AES-256 files want that), then the bytes of older files."""
    if not password:
        return [None]
    normal = unicodedata.normalize("NFKC", password)
    return [password.encode(), normal.encode(), normal.encode("latin-1", "replace")]


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
        raw = _text(page)
        text = clean(raw)
        if is_garbled(raw):
            return "", "unreadable"
        text = "\n".join(filter(None, [text, _field_values(pdf, page)]))
        return text, _verdict(page, text)
    except pypdfium2.PdfiumError:
        return "", "unreadable"
    finally:
        page.close()


def _text(page: pypdfium2.PdfPage) -> str:
    textpage = page.get_textpage()
    try:
        count = textpage.count_chars()
        if count > MOST_PAGE_CHARACTERS:
            raise pypdfium2.PdfiumError("too many characters on one page")
        text = textpage.get_text_range()
        if len(text) != count:  # characters without a code were left out: take them one by one
            codes = (pdfium.FPDFText_GetUnicode(textpage, i) for i in range(count))
            text = "".join(HYPHEN_MARK if code == 2 else chr(code) for code in codes)
        return in_reading_order(text, _boxes(page, textpage, count))
    finally:
        textpage.close()


def _boxes(page: pypdfium2.PdfPage, textpage: pypdfium2.PdfTextPage, count: int) -> list[Box]:
    """Tight boxes of all characters, turned as the page is shown.

    The binding's checks of each argument cost most of the time; one buffer filled by address is
    twice as fast (1.1 against 2.3 us a character).
    """
    buffer = (ctypes.c_double * (4 * count))()
    address, handle = ctypes.addressof(buffer), ctypes.cast(textpage.raw, ctypes.c_void_p).value
    for i in range(count):
        _get_char_box(handle, i, address, address + 16, address + 8, address + 24)
        address += 32
    flat = list(buffer)
    boxes = list(zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True))
    return _turned(boxes, page.get_rotation(), *page.get_size())


_CHAR_BOX = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 4
)  # fmt: skip
_get_char_box = _CHAR_BOX(ctypes.cast(pdfium.FPDFText_GetCharBox, ctypes.c_void_p).value or 0)
"""FPDFText_GetCharBox(text page, index, &left, &right, &bottom, &top)"""


def _turned(boxes: list[Box], rotation: int, width: float, height: float) -> list[Box]:
    """Boxes of a page that is shown turned clockwise; width and height are the shown page's."""
    match rotation:
        case 90:
            return [(y0, height - x1, y1, height - x0) for x0, y0, x1, y1 in boxes]
        case 180:
            return [(width - x1, height - y1, width - x0, height - y0) for x0, y0, x1, y1 in boxes]
        case 270:
            return [(width - y1, x0, width - y0, x1) for x0, y0, x1, y1 in boxes]
    return boxes


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


def picture(pdf: pypdfium2.PdfDocument, number: int, width: int) -> bytes:
    """The page as PNG, `width` pixels wide unless that makes too many pixels.

    Raises Refused: no_picture, for a page that is not there or holds an image of absurd size.
    """
    try:
        page = pdf[number - 1]
        points_wide, points_high = page.get_size()
        if min(points_wide, points_high) <= 0 or _largest_image(page) > MOST_IMAGE_PIXELS:
            raise Refused("no_picture")
        scale = min(
            width / points_wide,
            MOST_PICTURE_HEIGHT / points_high,
            (MOST_PICTURE_PIXELS / (points_wide * points_high)) ** 0.5,
        )
        bitmap = page.render(scale=scale, rev_byteorder=True)
        return _png(bitmap)
    except (pypdfium2.PdfiumError, IndexError, MemoryError) as error:
        raise Refused("no_picture") from error


def _largest_image(page: pypdfium2.PdfPage) -> int:
    sizes = [0]
    for image in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=8):
        wide, high = image.get_px_size()
        sizes.append(wide * high)
    return max(sizes)


def _png(bitmap: pypdfium2.PdfBitmap) -> bytes:
    """RGB, 8 bits, no filter (PNG specification, third edition)."""
    if bitmap.format != pdfium.FPDFBitmap_BGR:  # also the name of RGB, when bytes are reversed
        raise Refused("no_picture")
    rows, line = bytes(bitmap.buffer), 3 * bitmap.width
    scan = b"".join(
        b"\0" + rows[y * bitmap.stride : y * bitmap.stride + line] for y in range(bitmap.height)
    )
    header = struct.pack(">IIBBBBB", bitmap.width, bitmap.height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(scan, 4)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
