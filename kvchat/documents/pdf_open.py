"""A PDF opened, with the spellings that a password may have been given to it in.

Runs in the child process only.
"""

import os
import stringprep
import unicodedata

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.refused import Refused


def open_pdf(path: str, password: str | None) -> pypdfium2.PdfDocument:
    """Raises Refused: encrypted, password, damaged, no_pages.

    PDFium's own error text is not shown: it is stale at times ("Success" for a file of no pages).
    """
    # Owner-only files open with no password at all, whatever was typed.
    for attempt in (None, *spellings(password or "")):
        raw = pdfium.FPDF_LoadDocument(os.fsencode(path), attempt)
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


def spellings(password: str) -> list[bytes]:
    """What a program may have made of a password when it locked the file: UTF-8 as typed, as
    AES-256 files want it (SASLprep) and in both forms of Unicode (a Mac types Hangul taken apart);
    then the bytes of older files: Latin-1 (a part of PDFDocEncoding) and the Korean code page.
    """
    normal = unicodedata.normalize
    texts = (
        password, saslprep(password), normal("NFC", password), normal("NFD", password),
        normal("NFKC", password),
    )  # fmt: skip
    found = [text.encode("utf-8", "ignore") for text in texts]
    for encoding in ("latin-1", "cp949"):
        for text in texts:
            try:
                found.append(text.encode(encoding))
            except UnicodeEncodeError:
                continue
    # A zero would end the password early.
    return [one for one in dict.fromkeys(found) if one and b"\0" not in one]


def saslprep(text: str) -> str:
    """Blanks of all kinds are one, what is never seen is left out, compatibility forms are plain
    (RFC 4013; what it forbids is left in, for then the file was locked without it).
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c)
    )
    return unicodedata.normalize("NFKC", mapped)
