"""Our end of the child process that reads PDFs: start, ask, watch, end.

One `Child` serves one request at a time (PDFium is not thread-safe); threads queue at its lock. It
stays warm between requests and is started again after it died or was ended. Knows no PDF.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kvchat

START_S = 60.0
"""Python and PDFium start in 0.2 s; a cold disk with a virus scanner may take long."""

SILENCE_S = 8.0
"""The longest that one page, or opening a file, may take."""

_LOOK_S = 0.05


class ChildLost(Exception):
    """The child died in the middle of a request; the next one starts it again."""


class ChildSilent(ChildLost):
    """The child was ended, as it gave no answer in time."""


class Cancelled(Exception):
    """The caller's event was set; the child was ended."""


class Child:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def ask(
        self, request: Mapping[str, Any], cancel: threading.Event | None = None
    ) -> Iterator[dict[str, Any]]:
        """The answers to one request as they come, without the closing one.

        Holds the child until the end; a caller that leaves early ends it. Raises ChildLost and
        Cancelled.
        """
        while not self._lock.acquire(timeout=_LOOK_S):
            _check(cancel)
        finished = False
        try:
            running = self._started(cancel)
            running.write(request)
            while "done" not in (answer := running.next_answer(SILENCE_S, cancel)):
                finished = "refused" in answer
                yield answer
                if finished:
                    return
            finished = True
        finally:
            if not finished:
                self._end()
            self._lock.release()

    def close(self) -> None:
        """Ends the child, after the request that it is at."""
        with self._lock:
            self._end()

    def _started(self, cancel: threading.Event | None) -> "_Running":
        if self._running is None or not self._running.is_alive():
            self._end()
            self._running = _Running()
            self._running.next_answer(START_S, cancel)
        return self._running

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()
            self._running = None


class _Running:
    """One life of the child: its process and the thread that takes its lines."""

    def __init__(self) -> None:
        root = str(Path(kvchat.__file__).resolve().parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "kvchat.documents.pdf_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._taker = threading.Thread(target=self._take_lines, name="pdf-child", daemon=True)
        self._taker.start()

    def _take_lines(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def write(self, request: Mapping[str, Any]) -> None:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(request).encode("ascii") + b"\n")
            self._popen.stdin.flush()
        except OSError as error:
            raise ChildLost from error

    def next_answer(self, patience_s: float, cancel: threading.Event | None) -> dict[str, Any]:
        deadline = time.monotonic() + patience_s
        while True:
            _check(cancel)
            try:
                line = self._lines.get(timeout=_LOOK_S)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise ChildSilent from None
                continue
            if not line.endswith(b"\n"):
                raise ChildLost
            answer: dict[str, Any] = json.loads(line)
            return answer

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._taker.join()
        for pipe in (self._popen.stdin, self._popen.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _check(cancel: threading.Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled
