"""The child process that reads documents: requests in as JSON lines, answers out as JSON lines.

Started by `child.py` as `python -m kvchat.documents.reading_child`; ends when its input ends.
Whatever a hostile file does, it happens here: a crash, a hang or too much memory costs this process
only.

{"do": "read", "kind", "path", "password", "first", "stop"}
    -> {"pages", "is_divided", "attachments"}, {"page", "label", "text", "verdict", "facts"}...
{"do": "picture", "path", "password", "page", "width"} -> {"png": base64}
{"do": "scan", "path", "password", "page"} -> {"png": base64}: grey, sharp enough to be recognised
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

from kvchat.documents.limits import ANSWER_CPU_S, MEMORY_BYTES
from kvchat.documents.pages import Mark
from kvchat.documents.pdf_marks import marks
from kvchat.documents.pdf_open import open_pdf
from kvchat.documents.pdf_page import label_of, read_page
from kvchat.documents.pdf_picture import picture, scan
from kvchat.documents.pdf_typed import attachments
from kvchat.documents.refused import Refused


def limit_memory() -> None:
    """Also no core file: a crash must not write a person's document to disk."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS
            resource.setrlimit(kind, (most, most))


def _allow_cpu() -> None:
    """So many seconds more than were used up to now; then the system ends this process."""
    try:
        import resource
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soon = int(used.ru_utime + used.ru_stime) + ANSWER_CPU_S + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (soon, resource.RLIM_INFINITY))


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        if request["do"] == "read" and request["kind"] != "pdf":
            # The libraries of other kinds are imported only where they are wanted.
            from kvchat.documents.divided_file import read_divided

            yield from read_divided(request["path"], request["kind"])
        else:
            yield from _of_pdf(request)
        yield {"done": True}
    except Refused as refusal:
        yield {"refused": str(refusal)}
    except MemoryError:
        yield {"refused": "memory"}


def _of_pdf(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with contextlib.closing(open_pdf(request["path"], request.get("password"))) as pdf:
        match request["do"]:
            case "read":
                yield from _read(pdf, request["first"], request["stop"])
            case "marks":
                yield {"marks": _marks(pdf, request["page"], request["texts"])}
            case "scan":
                yield _png(scan(pdf, request["page"]))
            case _:
                pdf.init_forms()
                yield _png(picture(pdf, request["page"], request["width"]))


def _png(png: bytes) -> dict[str, Any]:
    return {"png": base64.b64encode(png).decode("ascii")}


def _read(pdf: pypdfium2.PdfDocument, first: int, stop: int) -> Iterator[dict[str, Any]]:
    """Pages [first, stop), counted from 0."""
    count = len(pdf)
    yield {"pages": count, "is_divided": False, "attachments": attachments(pdf)}
    if pdf.get_formtype() != 0:
        with contextlib.redirect_stderr(None):  # it complains of forms of a kind it cannot show
            pdf.init_forms()
    for number in range(first + 1, min(stop, count) + 1):
        yield {"page": number, "label": label_of(pdf, number), **read_page(pdf, number)}


def _marks(pdf: pypdfium2.PdfDocument, number: int, texts: list[str]) -> list[list[Mark]]:
    """None where the page is not there or cannot be read: then nothing is marked."""
    try:
        with contextlib.closing(pdf[number - 1]) as page:
            return marks(page, texts)
    except (pypdfium2.PdfiumError, IndexError):
        return [[] for _ in texts]


def main() -> None:
    limit_memory()
    # Boxes by the thousand would have all that Python keeps looked through several times a page.
    gc.freeze()
    gc.set_threshold(100_000)
    # PDFium must not be able to write into our answers: keep the pipe, point stdout elsewhere.
    out = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=out)
    for line in sys.stdin:
        _allow_cpu()
        for answer in answers(json.loads(line)):
            print(json.dumps(answer), file=out)
            _allow_cpu()
        gc.collect()


if __name__ == "__main__":
    main()
