"""Text of a page that nobody can see: drawn invisibly, white on white, too small, off the page.

An honest scan has such a layer over its picture, made by text recognition. Other text of this kind
is meant for programs. It is found, counted and told, never dropped. Runs in the child process only.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.pdf_text import LEAST_HEIGHT
from kvchat.documents.reading_order import Box

MOST_OBJECTS = 20_000
MOST_HIDDEN_OBJECTS = 3000
_MOST_DEPTH = 4
_LEAST_WHITE, _LEAST_ALPHA = 250, 6  # of 255
_INVISIBLE = (pdfium.FPDF_TEXTRENDERMODE_INVISIBLE, pdfium.FPDF_TEXTRENDERMODE_CLIP)


def _fast(function: Any, result: Any, *arguments: Any) -> Any:
    """The same function without the binding's checks, for a page of thousands of objects."""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return ctypes.PYFUNCTYPE(result, *arguments)(address)


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_object_at = _fast(pdfium.FPDFPage_GetObject, _POINTER, _POINTER, _INT)
_inner_at = _fast(pdfium.FPDFFormObj_GetObject, _POINTER, _POINTER, ctypes.c_ulong)
_num_inner = _fast(pdfium.FPDFFormObj_CountObjects, _INT, _POINTER)
_kind_of = _fast(pdfium.FPDFPageObj_GetType, _INT, _POINTER)
_mode_of = _fast(pdfium.FPDFTextObj_GetTextRenderMode, _INT, _POINTER)
_bounds_of = _fast(pdfium.FPDFPageObj_GetBounds, _INT, _POINTER, *[_POINTER] * 4)
_matrix_of = _fast(pdfium.FPDFPageObj_GetMatrix, _INT, _POINTER, _POINTER)
_fill_of = _fast(pdfium.FPDFPageObj_GetFillColor, _INT, _POINTER, *[_POINTER] * 4)
_text_of = _fast(
    pdfium.FPDFTextObj_GetText, ctypes.c_ulong, _POINTER, _POINTER, _POINTER, ctypes.c_ulong
)


@dataclass(slots=True)
class Drawn:
    """What is drawn on a page: the share of it that its largest image takes, whether there is
    anything at all, and the text that cannot be seen.
    """

    num_objects: int = 0
    image_share: float = 0.0
    hidden: list[str] = field(default_factory=list)

    @property
    def hidden_text(self) -> str:
        return " ".join(self.hidden)


Matrix = tuple[float, float, float, float, float, float]
"""a b c d e f: x' = a x + c y + e, y' = b x + d y + f."""

_PLAIN: Matrix = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)


def drawn(
    page: pypdfium2.PdfPage, textpage: pypdfium2.PdfTextPage, *, places: bool = True
) -> Drawn:
    """`places`: whether any letter may be too small to be seen, or off the page."""
    left, bottom, right, top = page.get_bbox()
    area = max((right - left) * (top - bottom), 1.0)
    found = Drawn()
    handle = ctypes.cast(textpage.raw, _POINTER).value
    look = _Look((left, bottom, right, top), handle, places)
    for matrix, one, kind in _objects(page):
        found.num_objects += 1
        if kind == pdfium.FPDF_PAGEOBJ_IMAGE:
            x0, y0, x1, y1 = look.bounds(one, matrix)
            share = max(0.0, x1 - x0) * max(0.0, y1 - y0) / area
            found.image_share = max(found.image_share, share)
        if kind != pdfium.FPDF_PAGEOBJ_TEXT:
            look.remember(one, kind, matrix)
        elif len(found.hidden) < MOST_HIDDEN_OBJECTS and look.hides(one, matrix):
            found.hidden.append(_text(one, handle))
    return found


def _objects(page: pypdfium2.PdfPage) -> Iterator[tuple[Matrix, int, int]]:
    """All objects in the order in which they are painted, forms entered, each with the matrix from
    its own space to the page's, and its kind.
    """
    handle = ctypes.cast(page.raw, _POINTER).value
    left = MOST_OBJECTS
    stack: list[tuple[Matrix, Iterator[int]]] = [
        (_PLAIN, map(_object_at, repeat(handle), range(pdfium.FPDFPage_CountObjects(page))))
    ]
    while stack and left > 0:
        matrix, objects = stack[-1]
        one = next(objects, None)
        if one is None:
            stack.pop()
            continue
        left -= 1
        kind = _kind_of(one)
        if kind == pdfium.FPDF_PAGEOBJ_FORM and len(stack) <= _MOST_DEPTH:
            inner = range(min(max(0, _num_inner(one)), MOST_OBJECTS))
            stack.append(
                (_combined(_matrix(one), matrix), iter([_inner_at(one, i) for i in inner]))
            )
        yield matrix, one, kind


def _matrix(form: int) -> Matrix:
    found = pdfium.FS_MATRIX()
    if not _matrix_of(form, ctypes.addressof(found)):
        return _PLAIN
    return (found.a, found.b, found.c, found.d, found.e, found.f)


def _combined(inner: Matrix, outer: Matrix) -> Matrix:
    a, b, c, d, e, f = inner
    g, h, i, j, k, m = outer
    return (
        a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k,
        e * h + f * j + m,
    )  # fmt: skip


def _mapped(box: Box, matrix: Matrix) -> Box:
    if matrix is _PLAIN:
        return box
    a, b, c, d, e, f = matrix
    points = [(x, y) for x in (box[0], box[2]) for y in (box[1], box[3])]
    xs, ys = [a * x + c * y + e for x, y in points], [b * x + d * y + f for x, y in points]
    return (min(xs), min(ys), max(xs), max(ys))


class _Look:
    """Which text can be seen, with what was painted before it."""

    def __init__(self, page: Box, textpage: int | None, places: bool) -> None:
        self._page, self._textpage, self._places_count = page, textpage, places
        self._painted: list[tuple[int, Matrix]] = []
        self._box = (ctypes.c_float * 4)()
        self._places = [ctypes.byref(self._box, 4 * i) for i in range(4)]
        self._colour = (ctypes.c_uint * 4)()
        self._parts = [ctypes.byref(self._colour, 4 * i) for i in range(4)]

    def bounds(self, one: int, matrix: Matrix) -> Box:
        """left, bottom, right, top in the space of the page."""
        if not _bounds_of(one, *self._places):
            return (0.0, 0.0, 0.0, 0.0)
        return _mapped((self._box[0], self._box[1], self._box[2], self._box[3]), matrix)

    def remember(self, one: int, kind: int, matrix: Matrix) -> None:
        if kind != pdfium.FPDF_PAGEOBJ_FORM:
            self._painted.append((one, matrix))

    def hides(self, one: int, matrix: Matrix) -> bool:
        if _mode_of(one) in _INVISIBLE:
            return True
        filled = bool(_fill_of(one, *self._parts))
        if filled and self._colour[3] < _LEAST_ALPHA:
            return True
        is_white = filled and self._has_white()
        if not (is_white or self._places_count):
            return False
        box = x0, y0, x1, y1 = self.bounds(one, matrix)
        if x1 <= x0 or y1 <= y0:
            return False  # blanks
        left, bottom, right, top = self._page
        if x1 < left or x0 > right or y1 < bottom or y0 > top:
            return True
        if y1 - y0 < LEAST_HEIGHT and sum(map(str.isalnum, _text(one, self._textpage))) > 2:
            return True  # but a dash is flat, too
        return is_white and not self._is_on_colour(box)

    def _has_white(self) -> bool:
        """The colour that was looked up last."""
        red, green, blue, _ = self._colour
        return red >= _LEAST_WHITE and green >= _LEAST_WHITE and blue >= _LEAST_WHITE

    def _is_on_colour(self, box: Box) -> bool:
        """Whether anything but white was painted under the middle of a box."""
        x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        for one, matrix in reversed(self._painted):
            left, bottom, right, top = self.bounds(one, matrix)
            if left <= x <= right and bottom <= y <= top and not self._is_white(one):
                return True
        return False

    def _is_white(self, one: int) -> bool:
        if _kind_of(one) != pdfium.FPDF_PAGEOBJ_PATH or not _fill_of(one, *self._parts):
            return False
        return self._has_white()


def _text(one: int, textpage: int | None) -> str:
    size = _text_of(one, textpage, None, 0)
    if not 2 < size < 100_000:
        return ""
    buffer = ctypes.create_string_buffer(size)
    _text_of(one, textpage, ctypes.addressof(buffer), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "ignore")
