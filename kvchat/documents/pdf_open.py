"""A PDF opened, with the spellings that a password may have been given to it in.

Runs in the child process only.
"""

import unicodedata

import pypdfium2
import pypdfium2.raw as pdfium


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
