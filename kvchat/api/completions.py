"""`/v1/chat/completions` and `/v1/models`, as the OpenAI client expects them.

A request waits for the model while it loads. A stream begins only when the answer has begun, so
that a refusal has its own status; what fails later comes as an error event. A client that leaves,
at any point of it, stops the answer. Knows the conversations only through `complete` and `status`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvchat.api.answered import Json, Shape, ledger_part
from kvchat.api.asked import read_asked
from kvchat.api.failures import described, language_of
from kvchat.api.tail import COMMENT, PATIENCE_S, Event, Tail
from kvchat.api.wire import EventStream, Waiting, encoded, read_body, sse, unless_gone
from kvchat.errors import KVChatError, RequestError
from kvchat.units import MIB
from kvchat.wording import Language

if TYPE_CHECKING:  # at run time they bring torch along, and the page must answer before it
    from kvchat.chat.answer import LiveAnswer
    from kvchat.chat.conversations import Conversations

# A million tokens of context are about 4 MiB of English text, 8 MiB with JSON's escapes.
MOST_BODY_BYTES = 16 * MIB
_LOOK_S = 0.1


class Completions:
    """`load_wait_s`: how long a request waits for a model that is still loading."""

    def __init__(
        self, conversations: "Conversations", load_wait_s: float, waiting: Waiting
    ) -> None:
        self._conversations = conversations
        self._load_wait_s = load_wait_s
        self._begun_s = int(time.time())
        self._waiting = waiting

    async def models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        model = self._model()
        if request.path_params["model"] != model["id"]:
            raise RequestError("api_model", parameter="model", model=model["id"])
        return JSONResponse(model)

    async def complete(self, request: Request) -> Response:
        asked = read_asked(await read_body(request, MOST_BODY_BYTES))
        with ExitStack() as leaving:
            leaving.enter_context(self._waiting.place())
            await unless_gone(request.receive, self._ready())
            tail = Tail(self._conversations.complete(asked.messages, asked.overrides, asked.stop))
            leaving.callback(tail.leave)
            shape = Shape(self._conversations.status()["model"])
            if not asked.stream:
                return JSONResponse(await unless_gone(request.receive, _whole(tail, shape)))
            first = await unless_gone(request.receive, _first(tail))
            pieces = _pieces(tail, shape, first, asked.include_usage)
            events = _events(pieces, language_of(request))
            return EventStream(events, at_end=leaving.pop_all().close)

    def _model(self) -> Json:
        name = self._conversations.status()["model"]
        return {"id": name, "object": "model", "created": self._begun_s, "owned_by": "kvchat"}

    async def _ready(self) -> None:
        """Returns when the model can answer. Raises ModelError if it failed to load."""
        until_s = time.monotonic() + self._load_wait_s
        while (stage := self._conversations.status()["stage"]) == "loading":
            if time.monotonic() > until_s:
                raise RequestError("api_loading", seconds=round(self._load_wait_s))
            await asyncio.sleep(_LOOK_S)
        if stage == "error":
            self._conversations.wait_ready(0)


async def _whole(tail: "Tail[LiveAnswer]", shape: Shape) -> Json:
    while (event := await tail.next())["type"] != "done":
        _raise_failure(tail, event)
    _raise_failure(tail, event)
    whole = shape.whole(event["text"], event["finish_reason"], event["figures"])
    return whole | ledger_part(tail.answer.ledger)


async def _first(tail: "Tail[LiveAnswer]") -> Event | None:
    """What the answer begins with, or None if that takes long. Raises what it failed with."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (event := await tail.next())["type"] not in ("token", "done"):
                _raise_failure(tail, event)
    except TimeoutError:
        return None
    return event


async def _pieces(
    tail: "Tail[LiveAnswer]", shape: Shape, first: Event | None, include_usage: bool
) -> AsyncGenerator[Json | None, None]:
    """The pieces of a stream, None in a long silence. Raises what the answer failed with."""
    no_usage: Json = {"usage": None} if include_usage else {}
    yield shape.piece({"role": "assistant", "content": ""}) | no_usage
    event = first
    while event is None or event["type"] != "done":
        if event is None:
            yield None
        elif event["type"] == "token" and event["text"]:
            yield shape.piece({"content": event["text"]}) | no_usage
        else:
            _raise_failure(tail, event)
        event = await tail.patiently()
    _raise_failure(tail, event)
    ledger = ledger_part(tail.answer.ledger)
    last = shape.piece({}, event["finish_reason"]) | no_usage
    yield last if include_usage else last | ledger
    if include_usage:
        yield shape.usage_piece(event["figures"]) | ledger


async def _events(
    pieces: AsyncGenerator[Json | None, None], lang: Language
) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in pieces:
            yield COMMENT if piece is None else sse(encoded(piece))
    except KVChatError as error:
        yield sse(encoded(described(error, lang)))
    else:
        yield sse("[DONE]")


def _raise_failure(tail: "Tail[LiveAnswer]", event: Event) -> None:
    """An answer that somebody else stopped is a failure here: half an answer is none."""
    if event["type"] == "failed":
        raise tail.answer.error or RequestError("api_internal")
    if event["type"] == "done" and event["finish_reason"] not in ("stop", "length"):
        raise RequestError("api_stopped")
