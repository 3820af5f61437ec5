"""`bench documents`, its reading part: how long files take, one at a time and all at once.

A row a file: milliseconds a page, by the clock and of computing (a long file is read by several
children at once); then a row for all of them, whose medians are over pages, with the memory of the
children that read. Nothing is asserted here.
"""

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kvchat.documents import reader
from kvchat.errors import DocumentError

SUFFIXES = (".pdf", ".docx", ".html", ".htm", ".md", ".txt")
_LOOK_S = 0.02


@dataclass(slots=True)
class _Timed:
    """`cpu_s`: of the children; `outcome`: `read`, or a refusal."""

    file: Path
    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_pages: int = 0
    outcome: str = "read"


class _Watch:
    """The most memory that the children have held together while this was open."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.most_bytes = max(self.most_bytes, children_bytes())


def children_bytes() -> int:
    """What the children that read hold in memory now."""
    return sum(int(one.memory_info().rss) for one in _children())


def _children_cpu_s() -> float:
    return sum(sum(one.cpu_times()[:2]) for one in _children())


def _children() -> Iterator[psutil.Process]:
    for child in reader.reading.children:
        with suppress(psutil.Error):
            if child.pid is not None:
                yield psutil.Process(child.pid)


def of_files(folder: Path) -> Iterator[dict[str, Any]]:
    """Those right in the folder. Raises OSError."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    found: list[_Timed] = []
    with _Watch() as watch:
        for file in files:
            timed = _timed(file)
            found.append(timed)
            if timed.num_pages:
                yield _row(timed)
    yield from _total(found, watch.most_bytes)


def _timed(file: Path) -> _Timed:
    timed = _Timed(file)
    begun_s, used_s = time.perf_counter(), _children_cpu_s()
    try:
        timed.num_pages = len(reader.read(file, file.name).pages)
    except DocumentError as error:
        timed.outcome = error.code
    timed.wall_s = time.perf_counter() - begun_s
    timed.cpu_s = max(0.0, _children_cpu_s() - used_s)
    return timed


def _row(timed: _Timed) -> dict[str, Any]:
    return {
        "name": "documents",
        "part": "reading",
        "file": timed.file.name,
        "pages": timed.num_pages,
        "page_ms": round(timed.wall_s / timed.num_pages * 1000, 2),
        "page_cpu_ms": round(timed.cpu_s / timed.num_pages * 1000, 2),
        "wall_s": round(timed.wall_s, 3),
        "outcome": timed.outcome,
    }


def _total(found: Sequence[_Timed], most_bytes: int) -> Iterator[dict[str, Any]]:
    read = [timed for timed in found if timed.num_pages]
    if not read:
        return
    walls = [one.wall_s / one.num_pages for one in read for _ in range(one.num_pages)]
    cpus = [one.cpu_s / one.num_pages for one in read for _ in range(one.num_pages)]
    begun_s = time.perf_counter()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(_timed, [timed.file for timed in found]))
    yield {
        "name": "documents",
        "part": "reading_all",
        "files": len(found),
        "pages": sum(timed.num_pages for timed in found),
        "page_ms": round(statistics.median(walls) * 1000, 2),
        "page_cpu_ms": round(statistics.median(cpus) * 1000, 2),
        "longest_s": round(max(timed.wall_s for timed in found), 3),
        "one_by_one_s": round(sum(timed.wall_s for timed in found), 2),
        "at_once_s": round(time.perf_counter() - begun_s, 2),
        "children_bytes": most_bytes,
    }
