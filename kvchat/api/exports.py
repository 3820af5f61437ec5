"""`/api/export`: a chat as a file to keep, JSON that can be brought back or Markdown to be read."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kvchat.wording import LANGUAGES

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

_KINDS = {"json": "application/json", "md": "text/markdown"}


class Exports:
    def __init__(self, conversations: "Conversations") -> None:
        self._conversations = conversations

    async def save(self, request: Request) -> Response:
        """`?chat=ID&as=json|md&lang=ko|en`."""
        given = request.query_params
        chat, kind, lang = given.get("chat", ""), given.get("as", ""), given.get("lang", "en")
        if not chat or kind not in _KINDS or lang not in LANGUAGES:
            raise HTTPException(404)
        name, text = await run_in_threadpool(self._written, chat, kind, lang)
        headers = {
            "cache-control": "no-store",
            "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}",
        }
        return Response(text, media_type=f"{_KINDS[kind]}; charset=utf-8", headers=headers)

    def _written(self, chat: str, kind: str, lang: str) -> tuple[str, str]:
        carrying = self._conversations.carrying
        if kind == "json":
            return carrying.as_json(chat)
        history = self._conversations.history(chat)
        return carrying.as_markdown(chat, history, "ko" if lang == "ko" else "en")
