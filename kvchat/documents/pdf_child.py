"""The child process that reads PDFs: requests in as JSON lines, answers out as JSON lines.

Started by `child.py` as `python -m kvchat.documents.pdf_child`; ends when its input ends. Whatever
a hostile file does, it happens here: a crash, a hang or too much memory costs this process only.

{"do": "read", "path", "password", "first"} -> {"pages"}, {"page", "label", "text", "verdict"}...
{"do": "picture", "path", "password", "page", "width"} -> {"png": base64}
{"do": "marks", "path", "password", "page", "texts"} -> {"marks"}
All end with {"done": true}, or {"refused": code} in its place.
"""

import base64
import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pypdfium2

from kvchat.documents.pdf_marks import marks
from kvchat.documents.pdf_open import Refused, open_pdf
from kvchat.documents.pdf_page import label_of, read_page
from kvchat.documents.pdf_picture import picture

MEMORY_BYTES = 1024**3
"""Address space of this process, where the system can limit it (not on Windows)."""


def limit_memory() -> None:
    """Also no core file: a crash must not write a person's document to disk."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS
            resource.setrlimit(kind, (most, most))


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        with contextlib.closing(open_pdf(request["path"], request.get("password"))) as pdf:
            if request["do"] == "read":
                yield from _read(pdf, request["first"])
            elif request["do"] == "marks":
                yield {"marks": _marks(pdf, request["page"], request["texts"])}
            else:
                pdf.init_forms()
                png = picture(pdf, request["page"], request["width"])
                yield {"png": base64.b64encode(png).decode("ascii")}
        yield {"done": True}
    except Refused as refusal:
        yield {"refused": str(refusal)}
    except MemoryError:
        yield {"refused": "memory"}


def _read(pdf: pypdfium2.PdfDocument, first: int) -> Iterator[dict[str, Any]]:
    """Pages from `first` (counted from 0) on."""
    count = len(pdf)
    yield {"pages": count}
    if pdf.get_formtype() != 0:
        pdf.init_forms()
    for number in range(first + 1, count + 1):
        text, verdict = read_page(pdf, number)
        yield {"page": number, "label": label_of(pdf, number), "text": text, "verdict": verdict}


def _marks(
    pdf: pypdfium2.PdfDocument, number: int, texts: list[str]
) -> list[list[tuple[float, float, float, float]]]:
    """None where the page is not there or cannot be read: then nothing is marked."""
    try:
        with contextlib.closing(pdf[number - 1]) as page:
            return marks(page, texts)
    except (pypdfium2.PdfiumError, IndexError):
        return [[] for _ in texts]


def main() -> None:
    limit_memory()
    # PDFium must not be able to write into our answers: keep the pipe, point stdout elsewhere.
    out = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=out)
    for line in sys.stdin:
        for answer in answers(json.loads(line)):
            print(json.dumps(answer), file=out)
        gc.collect()


if __name__ == "__main__":
    main()
