"""Text of a page's picture by Tesseract, where that is installed: another program, with limits.

Knows no document. Tesseract is Apache-licensed and not part of kvchat.
"""

import os
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from kvchat.documents.clean import clean
from kvchat.units import GIB

PAGE_CPU_S = 120
"""A dense page takes 3 to 10 s of computing."""

PAGE_S = 600.0
"""By the clock: it runs behind everything else on the machine."""

MEMORY_BYTES = 2 * GIB
_LIST_S = 5.0
_LOOK_S = 0.1
_LEAST_CONFIDENCE = 35.0
"""Percent. What is recognised with less in the mean is a drawing, or dirt."""

_WORD_CONFIDENCE = 20.0
_LEAST_LETTERS = 3
_ORIENTATION = "osd"
_WANTED = ("kor", "eng")
_TIGHT_SCRIPTS = ("jpn", "chi_sim", "chi_tra", "jpn_vert")

Word = tuple[str, float, float, float, float]
"""text, left, top, right, bottom: parts of the picture's width and height, y downwards."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """`confidence`: percent, the mean over the words. Without any text: nothing was found."""

    text: str
    words: tuple[Word, ...]
    confidence: int


@dataclass(frozen=True, slots=True)
class Tesseract:
    """The program and the language packs that it has (`eng`, `kor`...)."""

    program: str
    languages: tuple[str, ...]

    @property
    def used(self) -> tuple[str, ...]:
        """The languages that pages are read in: Korean and English, else what there is."""
        wanted = tuple(one for one in _WANTED if one in self.languages)
        usual = tuple(one for one in self.languages if one != _ORIENTATION)
        return wanted or usual[:3]

    def read(self, png: bytes, cancel: threading.Event | None = None) -> Recognised | None:
        """None where it fails, is called off, or takes more time or memory than a page may."""
        told = self._run(png, cancel)
        return None if told is None else recognised(told)

    def _run(self, png: bytes, cancel: threading.Event | None) -> str | None:
        layout = "1" if _ORIENTATION in self.languages else "3"  # 1 turns pages upright first
        words = [self.program, "stdin", "stdout", "-l", "+".join(self.used), "--psm", layout]
        try:
            running = subprocess.Popen(
                [*words, "--dpi", "300", "tsv"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_THREAD_LIMIT": "1"},
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError:
            return None
        try:
            _limit(running.pid)
            with _ended_when(cancel, running):
                out, _ = running.communicate(png, timeout=PAGE_S)
        except (subprocess.TimeoutExpired, OSError):
            return None
        finally:
            running.kill()
            running.wait()
        return out.decode("utf-8", "replace") if running.returncode == 0 else None


@contextmanager
def _ended_when(cancel: threading.Event | None, running: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the program as soon as nobody wants what it does any more."""
    is_over = threading.Event()

    def watch() -> None:
        while cancel is not None and not is_over.wait(_LOOK_S):
            if cancel.is_set():
                running.kill()
                return

    threading.Thread(target=watch, name="kvchat-recognising-watch", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _limit(pid: int) -> None:
    """Behind the chat's own work, and bounded where the system can do that."""
    with suppress(psutil.Error, OSError, ValueError):
        program = psutil.Process(pid)
        if sys.platform == "win32":
            program.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        else:
            program.nice(10)
        if sys.platform == "linux":
            program.rlimit(psutil.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            program.rlimit(psutil.RLIMIT_CPU, (PAGE_CPU_S, PAGE_CPU_S))


def find_tesseract() -> Tesseract | None:
    """None where it is not installed, or has no language to read in."""
    program = shutil.which("tesseract")
    if program is None:
        return None
    found = Tesseract(program, tuple(languages(program)))
    return found if found.used else None


def languages(program: str) -> list[str]:
    try:
        told = subprocess.run(
            [program, "--list-langs"], capture_output=True, timeout=_LIST_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = told.decode("utf-8", "replace").splitlines()[1:]
    return sorted(line.strip() for line in lines if line.strip())


def recognised(tsv: str) -> Recognised:
    """What Tesseract's table says: words of a line a blank apart, lines, and blocks."""
    rows = [row for row in (line.split("\t") for line in tsv.splitlines()) if len(row) == 12]
    size = next(((float(r[8]), float(r[9])) for r in rows if r[0] == "1"), (1.0, 1.0))
    words: list[Word] = []
    sure: list[float] = []
    lines: list[tuple[list[str], list[str]]] = []
    for row in rows:
        text = clean(row[11]).strip()
        if row[0] != "5" or not text or float(row[10]) < _WORD_CONFIDENCE:
            continue
        place = row[2:5]
        if not lines or lines[-1][0] != place:
            lines.append((place, []))
        lines[-1][1].append(text)
        words.append((text, *_box(row, *size)))
        sure.append(float(row[10]))
    confidence = statistics.fmean(sure) if sure else 0.0
    if confidence < _LEAST_CONFIDENCE or sum(c.isalnum() for w in words for c in w[0]) < (
        _LEAST_LETTERS
    ):
        return Recognised("", (), round(confidence))
    return Recognised("\n".join(_lines(lines)), tuple(words), round(confidence))


def _box(row: Sequence[str], wide: float, high: float) -> tuple[float, float, float, float]:
    left, top, width, height = (float(value) for value in row[6:10])
    return (left / wide, top / high, (left + width) / wide, (top + height) / high)


def _lines(lines: Sequence[tuple[list[str], list[str]]]) -> Iterator[str]:
    """A blank line between blocks; a hyphen at a line's end joins a word with its other half."""
    carried = ""
    for number, (place, words) in enumerate(lines):
        text = carried + " ".join(words)
        carried = ""
        following = lines[number + 1] if number + 1 < len(lines) else None
        breaks = text.endswith("-") and len(text) > 1 and text[-2].isalpha()
        if following and breaks and following[1][0][:1].islower():
            head, _, tail = text.rpartition(" ")
            carried = tail[:-1]
            text = head
        if text:
            yield text
        if following and following[0][0] != place[0] and not carried:
            yield ""
