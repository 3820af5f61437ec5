"""Where given words stand on a page, so that they can be marked in the page's picture.

Letters and digits alone are compared, so that what `clean` and `join_hyphens` did to a passage does
not matter. Runs in the child process only.
"""

import ctypes
from collections.abc import Sequence

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.pdf_text import char_boxes, characters, ordered_text
from kvchat.documents.reading_order import Box
from kvchat.documents.squeeze import found_at, squeezed

Mark = tuple[float, float, float, float]
"""left, top, right, bottom as parts (0 to 1) of the picture's width and height, y downwards."""

_PARTS = 1 << 20  # PDFium gives whole numbers


def marks(page: pypdfium2.PdfPage, texts: Sequence[str]) -> list[list[Mark]]:
    """For each text the boxes that cover it, one a line; none where the page does not have it."""
    with characters(page) as textpage:
        ordered = ordered_text(page, textpage)
        letters, places = squeezed(ordered.text, ordered.places())
        boxes = char_boxes(textpage, textpage.count_chars())
        return [
            _lines([_on_picture(page, boxes[places[at]]) for at in found])
            for found in (found_at(letters, text) for text in texts)
        ]


def _on_picture(page: pypdfium2.PdfPage, box: Box) -> Mark:
    (x0, y0), (x1, y1) = (_point(page, box[0], box[1]), _point(page, box[2], box[3]))
    left, right, top, bottom = min(x0, x1), max(x0, x1), min(y0, y1), max(y0, y1)
    return max(0.0, left), max(0.0, top), min(1.0, right), min(1.0, bottom)


def _point(page: pypdfium2.PdfPage, x: float, y: float) -> tuple[float, float]:
    """Turned and cropped as the picture is."""
    across, down = ctypes.c_int(), ctypes.c_int()
    pdfium.FPDF_PageToDevice(page, 0, 0, _PARTS, _PARTS, 0, x, y, across, down)
    return across.value / _PARTS, down.value / _PARTS


def _lines(boxes: Sequence[Mark]) -> list[Mark]:
    """Boxes of characters that follow each other on one line, as one."""
    lines: list[Mark] = []
    for box in boxes:
        left, top, right, bottom = box
        if right <= left or bottom <= top:
            continue
        last = lines[-1] if lines else None
        if last is not None and _on_one_line(last, box):
            lines[-1] = (
                min(last[0], left), min(last[1], top), max(last[2], right), max(last[3], bottom)
            )  # fmt: skip
        else:
            lines.append(box)
    return lines


def _on_one_line(line: Mark, box: Mark) -> bool:
    """They overlap in height by half of the lower one, and no column's gap lies between them."""
    overlap = min(line[3], box[3]) - max(line[1], box[1])
    lower = min(line[3] - line[1], box[3] - box[1])
    apart = max(box[0] - line[2], line[0] - box[2])
    return overlap > 0.3 * lower and apart < 0.08
