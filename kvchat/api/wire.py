"""How bytes come in and go out: bodies up to a limit, server-sent events, clients that leave early.

A client may leave at any moment. Whoever works for it is cancelled then, at once, and stops what it
began; without this a model goes on computing for nobody. Knows no route and no model.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from kvchat.errors import RequestError
from kvchat.units import format_size

# A body that is too large is still read up to this many times the limit before it is refused, since
# a connection that is closed with unread bytes loses the refusal on its way to the client.
_DRAINED = 4
# Each waiting answer holds a thread, and they are made one at a time anyway.
MOST_WAITING = 64

_Found = TypeVar("_Found")


def encoded(value: object) -> str:
    """JSON in one line, non-ASCII letters as they are."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def sse(text: str, number: int | None = None) -> bytes:
    """One server-sent event. `text` has no line breaks, as JSON has none."""
    named = "" if number is None else f"id: {number}\n"
    return f"{named}data: {text}\n\n".encode()


async def read_body(request: Request, most_bytes: int) -> bytes:
    """The whole body. Raises RequestError if it has more than `most_bytes`."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most_bytes * _DRAINED:
        raise too_large(most_bytes)
    pieces: list[bytes] = []
    num_bytes = 0
    async for piece in request.stream():
        num_bytes += len(piece)
        if num_bytes <= most_bytes:
            pieces.append(piece)
        elif num_bytes > most_bytes * _DRAINED:
            break
    if num_bytes > most_bytes:
        raise too_large(most_bytes)
    return b"".join(pieces)


def too_large(most_bytes: int) -> RequestError:
    return RequestError("api_too_large", most=format_size(most_bytes))


class Waiting:
    """How many clients wait for answers; a further one is refused."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        if self.count >= MOST_WAITING:
            raise RequestError("api_busy", most=MOST_WAITING)
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _Found]) -> _Found:
    """What `work` finds. If the client leaves first, cancels it and raises ClientDisconnect."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events while the client stays. `at_end` is called in any case, even unstarted."""

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], at_end: Callable[[], None] = lambda: None
    ) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(pieces, media_type="text/event-stream", headers=headers)
        self._pieces = pieces
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._pieces):
                await unless_gone(receive, self.stream_response(send))
        except ClientDisconnect:
            pass  # nobody is left to tell
        finally:
            self._at_end()
