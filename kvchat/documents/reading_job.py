"""One file being read by children: in runs of pages, several at a time where children are free.

A child that dies in the middle of a page costs that page and no other. Knows no text.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvchat.documents import limits
from kvchat.documents.child import Cancelled, ChildLost, ChildSilent, Pool
from kvchat.documents.kinds import Kind
from kvchat.documents.pages import Page, PageFacts
from kvchat.errors import DocumentError

OnPage = Callable[[Page, int], None]
"""Told of each page and of how many there are, as soon as all before it are read, too."""

RUN_PAGES, MOST_RUNS = 24, 64
"""A run has so many pages, or more where that would make too many: each opens the file again."""


@dataclass(slots=True)
class ReadingJob:
    """`about`: what the file says of itself; `num_lost`, `num_silent`: pages that cost a child."""

    path: Path
    kind: Kind
    name: str
    password: str | None
    cancel: threading.Event | None
    on_page: OnPage | None
    about: dict[str, Any] = field(default_factory=dict)
    num_lost: int = 0
    num_silent: int = 0
    _read: dict[int, Page] = field(default_factory=dict)
    _num_told: int = 0
    _runs: deque[tuple[int, int]] = field(default_factory=deque)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _error: DocumentError | None = None
    _is_left: bool = False
    _begun_s: float = 0.0

    def pages(self, pool: Pool) -> list[Page]:
        """All of them, in order. Raises DocumentError."""
        self._begun_s = time.monotonic()
        self._run(pool, 0, RUN_PAGES)
        if not self._is_left:
            self._runs.extend(self._rest())
        spare = min(len(self._runs), len(pool.children)) - 1
        extra = [
            threading.Thread(target=self._take_part, args=(pool,), name="kvchat-reading-part")
            for _ in range(max(0, spare))
        ]
        begun = []
        with suppress(RuntimeError):  # no memory for a thread: those that there are read it all
            for thread in extra:
                thread.start()
                begun.append(thread)
        try:
            self._work(pool)
        finally:
            self._runs.clear()
            for thread in begun:
                thread.join()
        if self._error is not None:
            raise self._error
        numbers = range(1, self._num_pages + 1)
        for number in numbers:
            self._add(_unread(number))  # unless it was read
        return [self._read[number] for number in numbers]

    @property
    def _num_pages(self) -> int:
        return int(self.about.get("pages", 0))

    def _rest(self) -> list[tuple[int, int]]:
        if self.kind != "pdf":
            return []
        size = max(RUN_PAGES, -(-self._num_pages // MOST_RUNS))
        starts = range(RUN_PAGES, self._num_pages, size)
        return [(start, min(start + size, self._num_pages)) for start in starts]

    def _take_part(self, pool: Pool) -> None:
        """In a thread of its own, as long as nobody else wants the child."""
        try:
            self._work(pool, only_if_free=True)
        except DocumentError as error:
            with self._lock:
                self._error = self._error or error
                self._runs.clear()

    def _work(self, pool: Pool, *, only_if_free: bool = False) -> None:
        while not (only_if_free and pool.num_free == 0):
            try:
                start, stop = self._runs.popleft()
            except IndexError:
                return
            self._run(pool, start, stop)

    def _run(self, pool: Pool, start: int, stop: int) -> None:
        """Pages [start, stop), counted from 0; the first run is the one that says how many."""
        at = start
        while True:
            try:
                for answer in self._answers(pool, at, stop):
                    at += self._take(answer, at)
                    if at > start and time.monotonic() - self._begun_s > self._most_s:
                        self._leave()
                        return
                return
            except Cancelled:
                raise DocumentError("document_cancelled", name=self.name) from None
            except ChildLost as error:
                if self._gives_up(isinstance(error, ChildSilent)):
                    self._leave()
                    return
                if self._num_pages:
                    self._add(_unread(at + 1))
                    at += 1
                if 0 < self._num_pages <= at or (start > 0 and at >= stop):
                    return

    def _answers(self, pool: Pool, first: int, stop: int) -> Any:
        request: dict[str, Any] = {"do": "read", "kind": self.kind, "path": str(self.path)}
        request |= {"first": first, "stop": stop, "password": self.password}
        with closing(pool.ask(request, self.cancel)) as answers:
            for answer in answers:
                if "refused" in answer:
                    raise DocumentError(f"document_{answer['refused']}", name=self.name)
                yield answer

    def _take(self, answer: dict[str, Any], at: int) -> int:
        """How many pages it was: one, or none."""
        if "pages" in answer:
            if not self.about:
                self.about = answer
            if self._num_pages > limits.MOST_PAGES:
                facts = {"pages": self._num_pages, "most": limits.MOST_PAGES}
                raise DocumentError("document_too_long", name=self.name, **facts)
            return 0
        seen = PageFacts(**answer["facts"])
        plain = (answer["label"], answer["text"], answer["verdict"])
        self._add(Page(at + 1, *plain, seen))
        return 1

    def _add(self, page: Page) -> None:
        """Pages are told of in their order, however the runs end."""
        with self._lock:
            self._read.setdefault(page.number, page)
            while (following := self._read.get(self._num_told + 1)) is not None:
                self._num_told += 1
                if self.on_page is not None:
                    self.on_page(following, self._num_pages)

    @property
    def _most_s(self) -> float:
        return limits.DOCUMENT_S + limits.PAGE_S * self._num_pages

    def _gives_up(self, is_silent: bool) -> bool:
        """Whether too many pages were lost to go on. Raises DocumentError where there are none."""
        with self._lock:
            self.num_lost += 1
            self.num_silent += is_silent
            if self._num_pages == 0 or self.kind != "pdf":
                # It may have died before, between two documents: once more.
                if is_silent or self.num_lost > 1:
                    raise DocumentError("document_damaged", name=self.name)
                return False
            too_many = self.num_lost > limits.MOST_LOST_PAGES
            return too_many or self.num_silent > limits.MOST_SILENT_PAGES

    def _leave(self) -> None:
        """What nobody has begun to read stays unread."""
        self._is_left = True
        self._runs.clear()


def _unread(number: int) -> Page:
    return Page(number, None, "", "unreadable")
