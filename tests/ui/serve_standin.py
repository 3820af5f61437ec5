"""The screen over the stand-in, to look at: `python tests/ui/serve_standin.py [--port 7861]`."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from kvchat.ui import mount_ui
from tests.ui.standin import StandIn

CSP = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' data: blob:; worker-src 'self' blob:; media-src 'self' blob:; "
    "frame-src 'none'; form-action 'self'; object-src 'none'; base-uri 'self'; "
    "frame-ancestors 'none'"
)


def app_over(conversations: Any, *, policy: bool = True) -> FastAPI:
    """The routes that the screen needs, as small as they can be."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    def first() -> RedirectResponse:
        return RedirectResponse("/en/")

    @app.get("/api/live")
    async def live(request: Request, chat: str | None = None) -> StreamingResponse:
        return StreamingResponse(
            _frames(conversations, request, chat), media_type="text/event-stream"
        )

    @app.get("/doc/{document}/{page}.png")
    def page(document: str, page: int) -> Response:
        return Response(conversations.page_image(document, page), media_type="image/png")

    if policy:

        @app.middleware("http")
        async def dressed(request: Request, go: Any) -> Response:
            response = await go(request)
            response.headers["content-security-policy"] = CSP
            return response

    mount_ui(app, conversations)
    return app


async def _frames(conversations: Any, request: Request, chat: str | None) -> AsyncIterator[str]:
    number = 0
    while not await request.is_disconnected():
        frame = conversations.frame(chat)
        fresh = conversations.ledger_since(chat, number)
        number = fresh[-1]["number"] if fresh else number
        yield f"data: {json.dumps({**frame, 'ledger': fresh})}\n\n"
        busy = frame["runtime"]["stage"] != "ready" or any(
            one["done"] < one["pages"] for one in frame["documents"]
        )
        await asyncio.sleep(0.1 if busy else 0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=7861)
    parser.add_argument("--token-s", type=float, default=0.03)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--budget", type=int)
    given = parser.parse_args()
    talks = StandIn(
        token_s=given.token_s, load_s=given.load_s, budget=given.budget, squeeze=True,
        notices=("notice.english_only",),
    )  # fmt: skip
    uvicorn.run(app_over(talks), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
