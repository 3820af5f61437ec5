"""The events of one answer, brought from their blocking iterator into the event loop.

A thread of its own for each answer, since it may wait long for its turn on the device, and the
threads that others borrow must not run out. Whoever stops reading stops the answer (case C28).
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from kvchat.chat.threads import Threads
from kvchat.errors import RequestError

Event = dict[str, Any]
ENDS = ("done", "failed", "refused")
# A longer silence gets a comment, so that no proxy or client takes the stream for dead.
PATIENCE_S = 10.0
COMMENT = b": still at it\n\n"
_THREADS = Threads("kvchat-api-answer")


class Answering(Protocol):
    """A `LiveAnswer`, or a question that becomes one."""

    def events(self) -> Iterator[Event]: ...

    def stop(self) -> None: ...


_Answer = TypeVar("_Answer", bound=Answering)


class Tail(Generic[_Answer]):
    """Reads an answer up to its end; `leave` before that stops it."""

    def __init__(self, answer: _Answer) -> None:
        self.answer = answer
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Event | None] = asyncio.Queue()
        self._ended = False
        try:
            _THREADS.run(self._pump)
        except RequestError:
            answer.stop()
            raise

    async def next(self) -> Event:
        """The next event; not to be called after the end. Nothing is lost if the wait is cancelled.

        Raises RequestError if the events broke off, which is an error of ours.
        """
        event = await self._arrived.get()
        self._ended = event is None or event["type"] in ENDS
        if event is None:
            raise RequestError("api_internal")
        return event

    async def patiently(self) -> Event | None:
        """The same, but None in a long silence."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.next()
        except TimeoutError:
            return None

    def leave(self) -> None:
        if not self._ended:
            self.answer.stop()

    def _pump(self) -> None:
        try:
            for event in self.answer.events():
                self._hand_over(event)
        finally:  # also where reading the events failed: the reader must not wait for ever
            self._hand_over(None)

    def _hand_over(self, event: Event | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, event)
        except RuntimeError:  # the loop is closed: the program ends
            self.answer.stop()
