"""Streams end when the server does: pages that are open must not hold it up, nor fill its log.

Server-sent events go on for as long as somebody reads them, ours and gradio's alike. A server that
is told to end would wait for them, then cancel them with an error each. Plain ASGI; knows no route.
"""

import asyncio
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STREAM = "text/event-stream"


class EndingStreams:
    """`ending` is set once, when the server is told to end: each stream is finished then."""

    def __init__(self, app: ASGIApp, *, ending: asyncio.Event) -> None:
        self._app = app
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = _Sent(send)
        working = asyncio.ensure_future(self._app(scope, receive, sent))
        ending = asyncio.ensure_future(self._ending.wait())
        streams = asyncio.ensure_future(sent.streams.wait())
        try:
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((working, streams), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
            else:
                await _cancelled(working)
                await sent.finish()
        finally:
            await _cancelled(working, ending, streams)


class _Sent:
    """Hands on what is sent, and sees whether it is a stream and where it stands."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._more = False
        self.streams = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._more = True
            kind = Headers(raw=message["headers"]).get("content-type", "")
            if kind.startswith(_STREAM):
                self.streams.set()
        elif message["type"] == "http.response.body":
            self._more = message.get("more_body", False)
        await self._send(message)

    async def finish(self) -> None:
        if self._more:
            await self({"type": "http.response.body", "body": b"", "more_body": False})


async def _cancelled(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
