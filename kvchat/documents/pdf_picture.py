"""One page of a PDF as a picture: bounded in pixels, and never of an image that is a bomb.

Runs in the child process only.
"""

import struct
import zlib

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.pdf_open import Refused

MOST_PICTURE_PIXELS = 4_000_000
MOST_PICTURE_HEIGHT = 4000
MOST_IMAGE_PIXELS = 150_000_000
"""An image with more pixels than this inside a page is not decoded for its picture (a bomb)."""


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
