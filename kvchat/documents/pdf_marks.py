"""Where given words stand on a page, so that they can be marked in the page's picture.

Letters and digits alone are compared, so that what `clean` and `join_hyphens` did to a passage does
not matter. Runs in the child process only.
"""

import ctypes
from collections.abc import Sequence

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.pages import Mark
from kvchat.documents.pdf_text import char_boxes, characters, page_text
from kvchat.documents.reading_order import Box
from kvchat.documents.squeeze import found_at, squeezed
from kvchat.documents.word_marks import lines_of

_PARTS = 1 << 20  # PDFium gives whole numbers


def marks(page: pypdfium2.PdfPage, texts: Sequence[str]) -> list[list[Mark]]:
    """For each text the boxes that cover it, one a line; none where the page does not have it."""
    with characters(page) as textpage:
        ordered = page_text(page, textpage).ordered
        letters, places = squeezed(ordered.text, ordered.places())
        boxes = char_boxes(textpage, textpage.count_chars())
        return [
            lines_of([_on_picture(page, boxes[places[at]]) for at in found])
            for found in (found_at(letters, text) for text in texts)
        ]


def _on_picture(page: pypdfium2.PdfPage, box: Box) -> Mark:
    (x0, y0), (x1, y1) = (_point(page, box[0], box[1]), _point(page, box[2], box[3]))
    left, right, top, bottom = min(x0, x1), max(x0, x1), min(y0, y1), max(y0, y1)
    return Mark(max(0.0, left), max(0.0, top), min(1.0, right), min(1.0, bottom))


def _point(page: pypdfium2.PdfPage, x: float, y: float) -> tuple[float, float]:
    """Turned and cropped as the picture is."""
    across, down = ctypes.c_int(), ctypes.c_int()
    pdfium.FPDF_PageToDevice(page, 0, 0, _PARTS, _PARTS, 0, x, y, across, down)
    return across.value / _PARTS, down.value / _PARTS
