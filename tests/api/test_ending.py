"""A server that is told to end finishes its streams at once, and leaves all else to its end."""

import asyncio
from typing import Any

import pytest

from kvchat.api.ending import EndingStreams
from tests.api.running import run

SCOPE = {"type": "http", "method": "GET", "path": "/"}


async def answered(app: Any, ending: asyncio.Event, after_s: float | None) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    async def end() -> None:
        if after_s is not None:
            await asyncio.sleep(after_s)
            ending.set()

    await asyncio.gather(EndingStreams(app, ending=ending)(SCOPE, receive, send), end())
    return sent


def app_of(
    kind: str, *, pieces: int, pause_s: float = 0.01, closed: list[str] | None = None
) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            for _ in range(pieces):
                await asyncio.sleep(pause_s)
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if closed is not None:
                closed.append("closed")

    return app


def test_a_stream_is_finished_whole_and_what_makes_it_is_closed() -> None:
    async def story() -> None:
        closed: list[str] = []
        app = app_of("text/event-stream; charset=utf-8", pieces=10_000, closed=closed)
        sent = await asyncio.wait_for(answered(app, asyncio.Event(), 0.1), 5)
        assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        assert 1 < len(sent) < 100
        assert closed == ["closed"]

    run(story())


def test_another_answer_is_given_to_its_end() -> None:
    async def story() -> None:
        sent = await answered(app_of("text/html", pieces=20), asyncio.Event(), 0.02)
        assert sum(one.get("body") == b"x" for one in sent) == 20

    run(story())


def test_a_stream_that_begins_afterwards_is_finished_too() -> None:
    async def story() -> None:
        ending = asyncio.Event()
        ending.set()

        async def late(scope: Any, receive: Any, send: Any) -> None:
            await app_of("text/event-stream", pieces=10_000)(scope, receive, send)

        sent = await asyncio.wait_for(answered(late, ending, None), 5)
        assert not sent or sent[-1].get("more_body") is False

    run(story())


def test_a_stream_that_ends_by_itself_is_left_alone_and_errors_come_through() -> None:
    async def story() -> None:
        sent = await answered(app_of("text/event-stream", pieces=3), asyncio.Event(), None)
        assert [one.get("body") for one in sent] == [None, b"x", b"x", b"x", b""]

        async def broken(scope: Any, receive: Any, send: Any) -> None:
            raise ValueError("ours")

        with pytest.raises(ValueError, match="ours"):
            await answered(broken, asyncio.Event(), None)

    run(story())
