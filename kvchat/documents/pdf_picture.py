"""One page of a PDF as a picture: bounded in pixels, and never of an image that is a bomb.

Runs in the child process only.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.refused import Refused

MOST_PICTURE_PIXELS = 4_000_000
MOST_PICTURE_HEIGHT = 4000
MOST_IMAGE_PIXELS = 150_000_000
"""An image with more pixels than this inside a page is not decoded for its picture (a bomb)."""


SCAN_PIXELS = 12_000_000
SCAN_DPI = 300
"""What Tesseract reads best; A4 has 8.7 million pixels then."""


def picture(pdf: pypdfium2.PdfDocument, number: int, width: int) -> bytes:
    """The page as PNG, `width` pixels wide unless that makes too many pixels.

    Raises Refused: no_picture, for a page that is not there or holds an image of absurd size.
    """
    with _drawable(pdf, number) as page:
        points_wide, points_high = page.get_size()
        scale = min(
            width / points_wide,
            MOST_PICTURE_HEIGHT / points_high,
            (MOST_PICTURE_PIXELS / (points_wide * points_high)) ** 0.5,
        )
        return _png(page.render(scale=scale, rev_byteorder=True))


def scan(pdf: pypdfium2.PdfDocument, number: int) -> bytes:
    """The page in grey, as PNG, for text recognition. Raises Refused: no_picture."""
    with _drawable(pdf, number) as page:
        points_wide, points_high = page.get_size()
        scale = min(SCAN_DPI / 72, (SCAN_PIXELS / (points_wide * points_high)) ** 0.5)
        return _png(page.render(scale=scale, grayscale=True))


@contextmanager
def _drawable(pdf: pypdfium2.PdfDocument, number: int) -> Iterator[pypdfium2.PdfPage]:
    try:
        page = pdf[number - 1]
        if min(page.get_size()) <= 0 or _largest_image(page) > MOST_IMAGE_PIXELS:
            raise Refused("no_picture")
        yield page
    except (pypdfium2.PdfiumError, IndexError, MemoryError) as error:
        raise Refused("no_picture") from error


def _largest_image(page: pypdfium2.PdfPage) -> int:
    sizes = [0]
    for image in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=8):
        wide, high = image.get_px_size()
        sizes.append(wide * high)
    return max(sizes)


def _png(bitmap: pypdfium2.PdfBitmap) -> bytes:
    """RGB or grey, 8 bits, no filter (PNG specification, third edition)."""
    # BGR is also the name of RGB, when bytes are reversed.
    kinds = {pdfium.FPDFBitmap_BGR: (3, 2), pdfium.FPDFBitmap_Gray: (1, 0)}
    if bitmap.format not in kinds:
        raise Refused("no_picture")
    num_bytes, colour = kinds[bitmap.format]
    rows, line = bytes(bitmap.buffer), num_bytes * bitmap.width
    lines = b"".join(
        b"\0" + rows[y * bitmap.stride : y * bitmap.stride + line] for y in range(bitmap.height)
    )
    header = struct.pack(">IIBBBBB", bitmap.width, bitmap.height, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 4)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
