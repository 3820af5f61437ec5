"""The HTTP side, put together: own routes first, then the screen, behind one gate.

The screen is brought along by the caller as `mount`, so this floor does not know it.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from kvchat import __version__
from kvchat.api.ask import Ask
from kvchat.api.completions import Completions
from kvchat.api.ending import EndingStreams
from kvchat.api.exports import Exports
from kvchat.api.failures import on_http_exception, on_kvchat_error, on_unexpected
from kvchat.api.gate import LOOPBACK_HOSTS, Gate, SafeHeaders
from kvchat.api.languages import preferred
from kvchat.api.live import Live
from kvchat.api.marks import Marks
from kvchat.api.steering import Steering
from kvchat.api.wire import Waiting
from kvchat.errors import KVChatError
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

_DOCUMENT = re.compile(r"[0-9a-f]{64}")
_PAGE = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
# A page never changes, its document is named by content; yet a deleted one should not stay long.
_PICTURE_HEADERS = {"cache-control": "private, max-age=3600, immutable"}

_MOST_ENTRIES = 20  # all of them are told by /api/live and /api/ledger
_SAVED_HEADERS = {
    "cache-control": "no-store",
    "content-disposition": 'attachment; filename="kvchat-ledger.jsonl"',
}


def build_app(
    conversations: "Conversations",
    *,
    token: str | None = None,
    allowed_hosts: Sequence[str] = LOOPBACK_HOSTS,
    language: Language | None = None,
    mount: Callable[[FastAPI], None] | None = None,
    load_wait_s: float = 300.0,
) -> FastAPI:
    """`language`: the saved one, which goes before the browser's. `token`: for use beyond loopback.

    `load_wait_s`: how long a request to `/v1` waits for a model that is still loading.
    """
    # No pages about the API: FastAPI's load their scripts from the internet.
    app = FastAPI(title="kvchat", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(KVChatError, on_kvchat_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, on_unexpected)
    app.add_middleware(Gate, allowed_hosts=allowed_hosts, token=token)
    app.add_middleware(SafeHeaders)  # outside the gate: refusals wear them too
    app.state.ending = asyncio.Event()  # to be set by the server when it is told to end
    app.add_middleware(EndingStreams, ending=app.state.ending)
    _add_routes(app, _Routes(conversations, language), conversations, load_wait_s)
    if mount is not None:
        mount(app)
    return app


def _add_routes(
    app: FastAPI, routes: "_Routes", conversations: "Conversations", load_wait_s: float
) -> None:
    waiting = Waiting()
    completions = Completions(conversations, load_wait_s, waiting)
    app.add_route("/", routes.root, ["GET"])
    app.add_route("/favicon.ico", routes.no_icon, ["GET"])
    app.add_route("/health", routes.health, ["GET"])
    app.add_route("/v1/models", completions.models, ["GET"])
    app.add_route("/v1/models/{model:path}", completions.model, ["GET"])
    app.add_route("/v1/chat/completions", completions.complete, ["POST"])
    app.add_route("/api/ask", Ask(conversations, waiting).ask, ["POST"])
    app.add_route("/api/memory", routes.memory, ["GET"])
    steering = Steering(conversations)
    app.add_route("/api/pins", steering.pin, ["POST", "DELETE"])
    app.add_route("/api/undo", steering.undo, ["GET", "POST"])
    app.add_route("/api/ledger", routes.ledger, ["GET"])
    app.add_route("/api/export", Exports(conversations).save, ["GET"])
    app.add_route("/api/live", Live(conversations).stream, ["GET"])
    app.add_route("/doc/{document}/{page}.png", routes.picture, ["GET"])
    app.add_route("/doc/{document}/{page}.json", routes.picture, ["GET"])


class _Routes:
    """The short ones."""

    def __init__(self, conversations: "Conversations", language: Language | None) -> None:
        self._conversations = conversations
        self._language = language
        self._marks = Marks(conversations)

    async def root(self, request: Request) -> Response:
        lang = self._language or preferred(request.headers.get("accept-language")) or "en"
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "t"]
        query = f"?{urlencode(kept)}" if kept else ""
        headers = {"cache-control": "no-store", "vary": "accept-language"}
        return RedirectResponse(f"/{lang}/{query}", 307, headers)

    async def no_icon(self, _request: Request) -> Response:
        """Browsers ask for it beside every page; a 404 would stand in their console as an error."""
        return Response(status_code=204, headers={"cache-control": "private, max-age=86400"})

    async def health(self, _request: Request) -> Response:
        stage = self._conversations.status()["stage"]
        model = stage if stage in ("loading", "error", "unloaded") else "ready"
        return JSONResponse({"status": "ok", "model": model, "version": __version__})

    async def memory(self, request: Request) -> Response:
        """The frame, with the newest of what was done to the chat."""
        chat = request.query_params.get("chat") or None
        frame = await run_in_threadpool(self._conversations.frame, chat)
        if chat is not None:
            entries = await run_in_threadpool(self._conversations.ledger_since, chat, 0)
            frame = frame | {"ledger": entries[-_MOST_ENTRIES:]}
        return JSONResponse(frame)

    async def ledger(self, request: Request) -> Response:
        """What was done, one JSON object a line, without anybody's texts: to be saved as a file."""
        chat = request.query_params.get("chat") or None
        lines = await run_in_threadpool(self._conversations.ledger_report, chat)
        text = "".join(f"{line}\n" for line in lines)
        return Response(text, media_type="application/x-ndjson", headers=_SAVED_HEADERS)

    async def picture(self, request: Request) -> Response:
        """A page of a document as PNG, by the hash of its content, or as JSON where passages stand
        on it. Never a path (case C31).
        """
        document, page = request.path_params["document"], request.path_params["page"]
        if not _DOCUMENT.fullmatch(document) or not _PAGE.fullmatch(page):
            raise HTTPException(404)
        if request.url.path.endswith(".json"):
            return await self._marks.of_page(request)
        png = await run_in_threadpool(self._conversations.page_image, document, int(page))
        return Response(png, media_type="image/png", headers=_PICTURE_HEADERS)


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    """Nobody reads this; without it the server would log a traceback for a closed tab."""
    return Response(status_code=499)
