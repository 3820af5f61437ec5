"""The characters of one page as PDFium has them, where each stands, and their reading order.

Runs in the child process only.
"""

import ctypes
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import sub
from struct import iter_unpack
from typing import Any, NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.clean import HYPHEN_MARK
from kvchat.documents.reading_order import MOST_CHARACTERS, Box, Ordered, in_reading_order
from kvchat.documents.right_to_left import is_right_to_left, written_order

MOST_PAGE_CHARACTERS = 1_000_000
LEAST_HEIGHT = 1.2
"""Points; nobody reads smaller letters."""


@contextmanager
def characters(page: pypdfium2.PdfPage) -> Iterator[pypdfium2.PdfTextPage]:
    """PDFium's list of the page's characters. Raises PdfiumError for a page that has too many."""
    textpage = page.get_textpage()
    try:
        if textpage.count_chars() > MOST_PAGE_CHARACTERS:
            raise pypdfium2.PdfiumError("too many characters on one page")
        yield textpage
    finally:
        textpage.close()


class PageText(NamedTuple):
    """A page's text in the order in which a person reads it, not cleaned yet; `stands_out`: some
    letters are off the page, or too small to be seen.
    """

    ordered: Ordered
    stands_out: bool


def page_text(page: pypdfium2.PdfPage, textpage: pypdfium2.PdfTextPage) -> PageText:
    count = textpage.count_chars()
    text = textpage.get_text_range()
    if len(text) != count:  # characters without a code were left out: take them one by one
        codes = map(_get_code, repeat(ctypes.byref(textpage.raw.contents)), range(count))
        text = "".join(HYPHEN_MARK if code == 2 else chr(code) for code in codes)
    turn = _turn(page, textpage, text)
    boxes = char_boxes(textpage, count)
    stands_out = _stand_out(text, boxes, page.get_bbox())
    boxes = _turned(boxes, *turn)
    if is_right_to_left(text) and len(text) <= MOST_CHARACTERS:
        advances, origins = _advances(textpage, count)
        baselines = [y for _, y, _, _ in _turned(origins, *turn)]
        ordered = written_order(text, _turned(advances, *turn), boxes, baselines)
    else:
        ordered = in_reading_order(text, boxes)
    return PageText(ordered, stands_out)


def _stand_out(text: str, boxes: Sequence[Box], page: Box) -> bool:
    """Blanks and signs do not count as small: a dash is flat, too."""
    if not boxes:
        return False
    lefts, bottoms, rights, tops = zip(*boxes, strict=True)
    if min(lefts) < page[0] or min(bottoms) < page[1] or max(rights) > page[2]:
        return True
    if max(tops) > page[3]:
        return True
    flat = [at for at, height in enumerate(map(sub, tops, bottoms)) if 0 < height < LEAST_HEIGHT]
    return sum(text[at].isalnum() for at in flat) > 2


_SAMPLED = 24
_RIGHT_ANGLE = math.pi / 2


def _turn(
    page: pypdfium2.PdfPage, textpage: pypdfium2.PdfTextPage, text: str
) -> tuple[int, float, float]:
    """(degrees, width, height) by which boxes are turned so that the text runs from left to right:
    as the page is shown, unless most letters stand askew then too.
    """
    rotation, (width, height) = page.get_rotation(), page.get_size()
    if rotation in (90, 270):
        width, height = height, width
    step = max(1, len(text) // _SAMPLED)
    sampled = (i for i in range(0, len(text), step) if text[i].isalnum())
    angles = [pdfium.FPDFText_GetCharAngle(textpage, i) for i in sampled]
    # Letters that lean to the left are upright once the page is turned to the right.
    turns = Counter(-round(angle / _RIGHT_ANGLE) % 4 * 90 for angle in angles if angle >= 0)
    if turns:
        rotation = turns.most_common(1)[0][0]
    return (rotation, height, width) if rotation in (90, 270) else (rotation, width, height)


def _advances(textpage: pypdfium2.PdfTextPage, count: int) -> tuple[list[Box], list[Box]]:
    """The boxes of the characters with the room that they take in their line, and their origins on
    the baseline as boxes without a size.
    """
    room = pdfium.FS_RECTF()
    x, y = ctypes.c_double(), ctypes.c_double()
    boxes: list[Box] = []
    origins: list[Box] = []
    handle = ctypes.byref(textpage.raw.contents)
    to_room, to_x, to_y = ctypes.byref(room), ctypes.byref(x), ctypes.byref(y)
    for i in range(count):
        _get_room(handle, i, to_room)
        _get_origin(handle, i, to_x, to_y)
        boxes.append((room.left, room.bottom, room.right, room.top))
        origins.append((x.value, y.value, x.value, y.value))
    return boxes, origins


def char_boxes(textpage: pypdfium2.PdfTextPage, count: int) -> list[Box]:
    """Tight boxes of all characters, in points of the page as it lies in the file.

    What ctypes makes of each argument costs more than PDFium's answer: so the loop runs in C, over
    pointers that were made once, and with no prototype, which would make them anew (0.36 against
    1.2 us a character; 2.3 through the binding).
    """
    handle = ctypes.byref(textpage.raw.contents)
    boxes: list[Box] = []
    for start in range(0, count, _AT_ONCE):
        stop = min(start + _AT_ONCE, count)
        for _ in map(_get_char_box, repeat(handle), range(start, stop), *_PLACES):
            pass
        boxes += iter_unpack("4d", memoryview(_BOXES).cast("B")[: 32 * (stop - start)])
    return boxes


_AT_ONCE = 4096
_BOXES = (ctypes.c_double * (4 * _AT_ONCE))()
"""left, bottom, right, top of one character after the other. One page is read at a time."""

_PLACES = [
    [ctypes.byref(_BOXES, at) for at in range(place, ctypes.sizeof(_BOXES), 32)]
    for place in (0, 16, 8, 24)
]


def _bare(function: Any, result: Any) -> Any:
    """The same function, its arguments passed as they are: pointers made before, and numbers."""
    return ctypes.PYFUNCTYPE(result)(ctypes.cast(function, ctypes.c_void_p).value or 0)


_get_char_box = _bare(pdfium.FPDFText_GetCharBox, ctypes.c_int)
"""FPDFText_GetCharBox(text page, index, &left, &right, &bottom, &top)"""

_get_code = _bare(pdfium.FPDFText_GetUnicode, ctypes.c_uint)
_get_room = _bare(pdfium.FPDFText_GetLooseCharBox, ctypes.c_int)
_get_origin = _bare(pdfium.FPDFText_GetCharOrigin, ctypes.c_int)


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
