"""`/api/pins` and `/api/undo`: what may be steered of what is done to a chat, as on the screen.

    POST, DELETE  /api/pins?chat=ID&turn=N   or  &document=SHA[&page=N]
    GET, POST     /api/undo?chat=ID&entry=NUMBER   what it takes to take the entry back; doing it

What is wrong is told as everywhere, by name. Knows the conversations only by their calls.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvchat.api.values import missing
from kvchat.errors import RequestError

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

_MOST_DIGITS = 18


class Steering:
    def __init__(self, conversations: "Conversations") -> None:
        self._conversations = conversations

    async def pin(self, request: Request) -> Response:
        await run_in_threadpool(self._pin, request, request.method == "POST")
        return Response(status_code=204)

    def _pin(self, request: Request, pinned: bool) -> None:
        chat = _text(request, "chat")
        if "turn" in request.query_params:
            self._conversations.pin_turn(chat, _number(request, "turn"), pinned=pinned)
            return
        document = _text(request, "document")
        page = _number(request, "page") if "page" in request.query_params else None
        self._conversations.pin_document(chat, document, page, pinned=pinned)

    async def undo(self, request: Request) -> Response:
        chat, entry = _text(request, "chat"), _number(request, "entry")
        asks = request.method == "POST"
        call = self._conversations.undo if asks else self._conversations.undo_cost
        return JSONResponse(asdict(await run_in_threadpool(call, chat, entry)))


def _text(request: Request, name: str) -> str:
    found = request.query_params.get(name)
    if not found:
        raise missing(name)
    return found


def _number(request: Request, name: str) -> int:
    text = _text(request, name)
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise RequestError("api_no_integer", parameter=name)
    return int(text)
