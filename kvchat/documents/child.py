"""Our end of the child processes that read documents: start, ask, watch, end.

A `Child` serves one request at a time (PDFium is not thread-safe); a `Pool` has several, and
threads wait for one that is free. A child stays warm between requests and is started again after it
died or was ended. Its memory and computing are limited by the system where that can be
(`reading_child.py`), and watched from here everywhere. Knows no PDF.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import psutil

import kvchat
from kvchat.documents.limits import ANSWER_CPU_S, MEMORY_BYTES

START_S = 60.0
"""Python and PDFium start in 0.2 s; a cold disk with a virus scanner may take long."""

SILENCE_S = 30.0
"""The longest that one page, or opening a file, may take on a machine that does much else too."""

_LOOK_S = 0.05
_WATCH_S = 0.25


class ChildLost(Exception):
    """The child died in the middle of a request; the next one starts it again."""


class ChildSilent(ChildLost):
    """The child was ended, as it gave no answer in time."""


class Cancelled(Exception):
    """The caller's event was set; the child was ended."""


class Pool:
    """Children that are started when they are wanted, at most `size` at a time."""

    def __init__(self, size: int) -> None:
        self.children = tuple(Child() for _ in range(size))
        # The one that was used last is warm: it is the next to be used.
        self._free: queue.LifoQueue[Child] = queue.LifoQueue()
        for child in reversed(self.children):
            self._free.put(child)

    def ask(
        self, request: Mapping[str, Any], cancel: threading.Event | None = None
    ) -> Generator[dict[str, Any], None, None]:
        """The answers to one request as they come, without the closing one.

        Waits for a free child and holds it until the end; a caller that leaves early ends it.
        Raises ChildLost and Cancelled.
        """
        child = self._taken(cancel)
        try:
            yield from child.ask(request, cancel)
        finally:
            self._free.put(child)

    @property
    def num_free(self) -> int:
        """About: it may be another a moment later."""
        return self._free.qsize()

    def _taken(self, cancel: threading.Event | None) -> "Child":
        while True:
            try:
                return self._free.get(timeout=_LOOK_S)
            except queue.Empty:
                _check(cancel)

    def close(self) -> None:
        """Ends the children that are free; the others when they are asked next."""
        for child in self.children:
            child.close()


class Child:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def ask(
        self, request: Mapping[str, Any], cancel: threading.Event | None = None
    ) -> Generator[dict[str, Any], None, None]:
        """As `Pool.ask`."""
        with self._lock:
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

    def close(self) -> None:
        """Ends the child, after the request that it is at."""
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        """Of the running process; None while there is none."""
        running = self._running
        return running.pid if running is not None and running.is_alive() else None

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
            [sys.executable, "-m", "kvchat.documents.reading_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self.pid = self._popen.pid
        self._watched = psutil.Process(self.pid)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._taker = threading.Thread(target=self._take_lines, name="kvchat-child", daemon=True)
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
        begun = looked = time.monotonic()
        used_s: float | None = None
        while True:
            _check(cancel)
            try:
                line = self._lines.get(timeout=_LOOK_S)
            except queue.Empty:
                now = time.monotonic()
                if now - begun > patience_s:
                    raise ChildSilent from None
                if now - looked > _WATCH_S:
                    looked, used_s = now, self._within_limits(used_s)
                continue
            if not line.endswith(b"\n"):
                raise ChildLost
            answer: dict[str, Any] = json.loads(line)
            return answer

    def _within_limits(self, used_before_s: float | None) -> float:
        """Seconds of computing up to this answer's first look. Raises ChildLost, ChildSilent.

        The second net: on Linux the system ends a child at the same limits by itself.
        """
        try:
            used_s = sum(self._watched.cpu_times()[:2])
            if self._watched.memory_info().rss > MEMORY_BYTES:
                raise ChildLost
        except psutil.Error:
            return used_before_s or 0.0  # it died: its last line tells
        if used_before_s is not None and used_s - used_before_s > ANSWER_CPU_S:
            raise ChildSilent
        return used_s if used_before_s is None else used_before_s

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
