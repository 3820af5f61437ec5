"""What people typed or pinned onto a page: values of form fields, notes, and files inside a PDF.

Runs in the child process only.
"""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from kvchat.documents.clean import clean, clean_name

MOST_ANNOTATIONS = 2000
MOST_ATTACHMENTS = 50
_WRITTEN = (
    pdfium.FPDF_FORMFIELD_TEXTFIELD, pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX,
)  # fmt: skip
_TICKED = (pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON)
_NOT_NOTES = (pdfium.FPDF_ANNOT_LINK, pdfium.FPDF_ANNOT_WIDGET, pdfium.FPDF_ANNOT_POPUP)


def typed(pdf: pypdfium2.PdfDocument, page: pypdfium2.PdfPage) -> tuple[str, int]:
    """(text, number of form fields). A line a value: `label: value`, a tick as `label: ✓`, a note's
    own words.
    """
    lines: list[str] = []
    num_fields = 0
    for note in _annotations(page):
        field = pdfium.FPDFAnnot_GetFormFieldType(pdf.formenv, note) if pdf.formenv else -1
        if field in _WRITTEN or field in _TICKED:
            num_fields += 1
            lines.append(_field(pdf, note, field in _TICKED))
        elif pdfium.FPDFAnnot_GetSubtype(note) not in _NOT_NOTES:
            lines.append(_wide(pdfium.FPDFAnnot_GetStringValue, note, b"Contents"))
    return clean("\n".join(dict.fromkeys(filter(None, lines)))), num_fields


def _annotations(page: pypdfium2.PdfPage) -> Iterator[Any]:
    for i in range(min(pdfium.FPDFPage_GetAnnotCount(page), MOST_ANNOTATIONS)):
        note = pdfium.FPDFPage_GetAnnot(page, i)
        if note:
            yield note
            pdfium.FPDFPage_CloseAnnot(note)


def _field(pdf: pypdfium2.PdfDocument, note: Any, is_tick: bool) -> str:
    """Empty for a field that nobody filled in."""
    if is_tick:
        value = "✓" if pdfium.FPDFAnnot_IsChecked(pdf.formenv, note) else ""
    else:
        value = _wide(pdfium.FPDFAnnot_GetFormFieldValue, pdf.formenv, note)
    if not value.strip():
        return ""
    label = _wide(pdfium.FPDFAnnot_GetFormFieldAlternateName, pdf.formenv, note)
    if is_tick and not label:
        label = _wide(pdfium.FPDFAnnot_GetFormFieldName, pdf.formenv, note)
    return f"{label}: {value}" if label else value


def attachments(pdf: pypdfium2.PdfDocument) -> list[str]:
    """Names of the files that lie inside the PDF; they are not opened."""
    count = min(pdfium.FPDFDoc_GetAttachmentCount(pdf), MOST_ATTACHMENTS)
    inside = (pdfium.FPDFDoc_GetAttachment(pdf, i) for i in range(count))
    names = (_wide(pdfium.FPDFAttachment_GetName, one) for one in inside if one)
    return [clean_name(name) for name in names]


def _wide(function: Callable[..., int], *arguments: Any) -> str:
    """A string of PDFium: asked first for its size in bytes (UTF-16, a final zero)."""
    size = function(*arguments, None, 0)
    if not 2 < size < 100_000:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "ignore")
