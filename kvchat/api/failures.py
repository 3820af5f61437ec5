"""What a client gets when something cannot be served: a status and an error as OpenAI shapes it.

A KVChatError becomes `{"error": {"message", "type", "code", "param"}}`; its code tells the status.
The message is the sentence and its remedy, in English unless the client asks for Korean. Codes of
this area begin with `api_`; on the wire they go without it. Knows no route.
"""

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from kvchat.api.languages import preferred
from kvchat.errors import (
    DocumentError,
    KVChatError,
    ModelError,
    OutOfMemory,
    RequestError,
    SettingsError,
    StoreError,
)
from kvchat.wording import Language

# What OpenAI's clients know as "context_length_exceeded", and shorten what they send.
_TOO_LONG = (
    "prompt_over_length",
    "prompt_over_memory",
    "pinned_turns_too_large",
    "pinned_documents_too_large",
)
_STATUS_OF_CODE = {
    **dict.fromkeys(_TOO_LONG, 400),
    "chat_gone": 404,
    "message_gone": 404,
    "document_gone": 404,
    "pins_too_large": 409,
    "undo_asked": 409,
    "undo_no_room": 409,
    "undo_no_room_as_it_was": 409,
    "undo_nothing": 409,
    "step_failed": 500,
    "api_token": 401,
    "api_origin": 403,
    "api_route": 404,
    "api_model": 404,
    "api_method": 405,
    "api_too_large": 413,
    "api_host": 421,
    "api_busy": 429,
    "api_internal": 500,
    "api_stopped": 503,
    "api_loading": 503,
}
_STATUS_OF_CLASS: dict[type[KVChatError], int] = {
    DocumentError: 404,
    ModelError: 503,
    OutOfMemory: 503,
    RequestError: 400,
    SettingsError: 400,
    StoreError: 500,
}
# These pass by themselves, so an OpenAI client may try again; the others would fail again.
_PASSING = ("api_busy", "api_loading")


def language_of(connection: HTTPConnection) -> Language:
    return preferred(connection.headers.get("accept-language")) or "en"


def status_of(error: KVChatError) -> int:
    of_class = next((s for kind, s in _STATUS_OF_CLASS.items() if isinstance(error, kind)), 500)
    return _STATUS_OF_CODE.get(error.code, of_class)


def described(error: KVChatError, lang: Language) -> dict[str, dict[str, str | None]]:
    kind = "invalid_request_error" if status_of(error) < 500 else "server_error"
    too_long = error.code in _TOO_LONG
    parameter = error.facts.get("parameter", "messages" if too_long else None)
    return {
        "error": {
            "message": error.line(lang),
            "type": kind,
            "code": "context_length_exceeded" if too_long else error.code.removeprefix("api_"),
            "param": None if parameter is None else str(parameter),
        }
    }


def refused(error: KVChatError, connection: HTTPConnection) -> Response:
    """The answer to a request that cannot be served: text for a browser's window, else JSON."""
    lang = language_of(connection)
    status = status_of(error)
    if connection.headers.get("accept", "").startswith("text/html"):
        return PlainTextResponse(error.line(lang), status)
    headers = {"retry-after": "5"} if error.code in _PASSING else {"x-should-retry": "false"}
    return JSONResponse(described(error, lang), status, headers if status >= 429 else None)


async def on_kvchat_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, KVChatError)
    return refused(error, request)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Routes and methods that do not exist; everything else of ours is a KVChatError."""
    assert isinstance(error, HTTPException)
    code = "api_method" if error.status_code == 405 else "api_route"
    return refused(RequestError(code, method=request.method, path=request.url.path), request)


async def on_unexpected(request: Request, _error: Exception) -> Response:
    """The server logs the exception with its traceback; the client gets one sentence."""
    return refused(RequestError("api_internal"), request)
