"""`/api/live`: the frame of DESIGN §9 as server-sent events, for as long as somebody looks.

At most 10 a second while something changes, one a second when idle. A frame is made once and shared
by all who look at the same chat; nobody looking costs nothing. Each event carries `id:`, the newest
change of the ledger that was sent, and only entries that are new or grew since, each to take the
place of what had its number; a browser that comes back sends it as `Last-Event-ID` and misses
none. Knows nothing of what a frame shows.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from kvchat.api.wire import EventStream, encoded, sse
from kvchat.errors import KVChatError

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

BUSY_S = 0.1
IDLE_S = 1.0
# A frame that is dear to make is made less often, so that frames take 1/40 of a core at most.
_REST = 40
_WORKING = ("loading", "prefill", "decode", "stopping")
_MOST_DIGITS = 18
GONE = b"event: gone\ndata: {}\n\n"
"""The last event of a chat that is deleted; whoever comes back is refused."""


@dataclass(frozen=True, slots=True)
class View:
    """What is to be seen of one chat. A new View is a frame to be sent; seconds are monotonic.

    `text` is the frame without its ledger and its closing brace; `entries` are all of the chat's.
    """

    frame: dict[str, Any]
    text: str
    entries: tuple[dict[str, Any], ...]
    busy: bool
    made_s: float
    cost_s: float

    @property
    def number(self) -> int:
        """Of the newest change."""
        return max((_changed(entry) for entry in self.entries), default=0)

    def event(self, number: int) -> bytes:
        """The frame, with the ledger entries that changed after `number`."""
        after = 0 if number > self.number else number  # numbers begin anew with a new data folder
        ledger = [entry for entry in self.entries if _changed(entry) > after]
        return sse(f'{self.text},"ledger":{encoded(ledger)}}}', self.number)


@dataclass(slots=True)
class Window:
    """One chat that somebody looks at. `looked_s`: when it was last asked what is to be seen."""

    chat: str | None
    num_looking: int = 0
    view: View | None = None
    looked_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Live:
    def __init__(self, conversations: "Conversations") -> None:
        self._conversations = conversations
        self._windows: dict[str | None, Window] = {}

    async def stream(self, request: Request) -> Response:
        """`?chat=ID`, and `&since=NUMBER` for a page that has older entries already.

        Raises KVChatError for a chat that is not there.
        """
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        chat = request.query_params.get("chat") or None
        since = request.headers.get("last-event-id") or request.query_params.get("since") or "0"
        number = int(since) if since.isdecimal() and len(since) <= _MOST_DIGITS else 0
        await run_in_threadpool(self._conversations.ledger_since, chat, number)
        return EventStream(self._events(chat, number))

    async def _events(self, chat: str | None, number: int) -> AsyncGenerator[bytes, None]:
        sent: View | None = None
        with self._looking(chat) as window:
            while True:
                try:
                    view = await self._look(window)
                except KVChatError:  # the chat was deleted
                    yield GONE
                    return
                if view is not sent:
                    yield view.event(number)
                    sent, number = view, view.number
                await asyncio.sleep(max(BUSY_S, view.cost_s * _REST))

    @contextmanager
    def _looking(self, chat: str | None) -> Iterator[Window]:
        window = self._windows.setdefault(chat, Window(chat))
        window.num_looking += 1
        try:
            yield window
        finally:
            window.num_looking -= 1
            if not window.num_looking:
                del self._windows[chat]

    async def _look(self, window: Window) -> View:
        """What is to be seen now; the same View as before if there is nothing to send."""
        async with window.lock:
            if window.view is None or time.monotonic() - window.looked_s > BUSY_S / 2:
                window.view = await run_in_threadpool(self._seen, window.chat, window.view)
                window.looked_s = time.monotonic()
            return window.view

    def _seen(self, chat: str | None, before: View | None) -> View:
        now_s, cpu_s = time.monotonic(), time.thread_time()
        busy = self._busy(chat, before)
        due = before is None or now_s - before.made_s >= IDLE_S
        if before is not None and not (busy or before.busy or due):
            return before
        frame = self._conversations.frame(chat)
        entries = before.entries if before is not None else ()
        number = before.number if before is not None else 0
        entries = _with_news(entries, self._conversations.ledger_since(chat, number))
        if before is not None and not due and _same(before, frame, entries):
            return before
        text = encoded({name: value for name, value in frame.items() if name != "ledger"})[:-1]
        return View(frame, text, entries, busy, now_s, time.thread_time() - cpu_s)

    def _busy(self, chat: str | None, before: View | None) -> bool:
        """Whether something may change within the next second."""
        if self._conversations.status()["stage"] in _WORKING:
            return True
        if chat is not None and self._conversations.live(chat) is not None:
            return True
        documents = before.frame["documents"] if before is not None else []
        return any(one["done"] < one["pages"] for one in documents)


def _changed(entry: dict[str, Any]) -> int:
    return int(entry.get("changed", entry["number"]))


def _with_news(
    entries: tuple[dict[str, Any], ...], news: list[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """What grew at its place, what is new at the end."""
    if not news:
        return entries
    return tuple({entry["number"]: entry for entry in (*entries, *news)}.values())


def _same(view: View, frame: dict[str, Any], entries: tuple[dict[str, Any], ...]) -> bool:
    """Whether there is nothing new to see; the time at which a frame was made is not shown."""
    return entries == view.entries and {**frame, "at_s": None} == {**view.frame, "at_s": None}
