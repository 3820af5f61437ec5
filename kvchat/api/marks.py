"""Where passages stand on a page's picture, for scripts that draw over it."""

from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

MOST_TEXTS, MOST_CHARACTERS = 8, 6000


class Marks:
    """`GET /doc/{document}/{page}.json?q=TEXT&q=TEXT`: for each text its boxes, one a line, as
    parts of the picture's width and height; none where the page does not have it.
    """

    def __init__(self, conversations: "Conversations") -> None:
        self._conversations = conversations

    async def of_page(self, request: Request) -> Response:
        """The route admits only a document's hash and a page's number."""
        texts = request.query_params.getlist("q")
        if len(texts) > MOST_TEXTS or any(len(one) > MOST_CHARACTERS for one in texts):
            raise HTTPException(400)
        document, page = request.path_params["document"], int(request.path_params["page"])
        found = await run_in_threadpool(self._conversations.page_marks, document, page, texts)
        return JSONResponse({"marks": found}, headers={"cache-control": "private, max-age=600"})
