"""Who may come in, and what every answer wears: plain ASGI, so that streams and WebSockets pass.

"Local" is not a boundary by itself: any page in the browser can reach 127.0.0.1, by name (DNS
rebinding, so the Host header is checked) or by address (so the Origin header is). Beyond loopback a
token is asked for. No CORS header ever leaves. The content policy keeps what a model or a document
wrote from loading anything. Cases: C31, C32. Knows no route apart from `/`, where a token comes in.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvchat.api.failures import refused
from kvchat.errors import KVChatError, RequestError

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z_.-]+)(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
# 'unsafe-eval': gradio's html_template and js_on_load are compiled in the browser.
CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "media-src 'self' blob:",
        "frame-src 'none'",
        "form-action 'self'",
        "object-src 'none'",
        "base-uri 'self'",
        "frame-ancestors 'none'",
    )
)
_ALWAYS = {
    "x-content-type-options": "nosniff",
    # not no-referrer: with it browsers send `Origin: null` even for the page's own forms
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_ON_PAGES = {
    "content-security-policy": CONTENT_POLICY,
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


class Gate:
    """Refuses foreign hosts (421), foreign origins (403) and, with a token, strangers (401)."""

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str], token: str | None) -> None:
        self._app = app
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._token = token
        # Cookies are shared between the ports of a host; two servers must not share theirs.
        self._cookie = f"kvchat-{hashlib.sha256((token or '').encode()).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        came = HTTPConnection(scope)
        error = self._foreign(came) or self._stranger(came)
        if error is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # becomes a 403 before acceptance
        elif error.code == "api_token" and self._brings_token(came):
            await self._let_in(scope, receive, send)
        else:
            await refused(error, came)(scope, receive, send)

    def _foreign(self, came: HTTPConnection) -> KVChatError | None:
        hosts = came.headers.getlist("host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or match[1].lower() not in self._allowed_hosts:
            return RequestError("api_host")
        if any(not _same_origin(one, hosts[0]) for one in came.headers.getlist("origin")):
            return RequestError("api_origin")
        # Pictures and scripts asked for by a foreign page carry no Origin; browsers say it here.
        site = came.headers.get("sec-fetch-site", "none")
        navigates = came.headers.get("sec-fetch-mode") == "navigate"
        if site not in ("none", "same-origin") and not navigates:
            return RequestError("api_origin")
        return None

    def _stranger(self, came: HTTPConnection) -> KVChatError | None:
        scheme, _, bearer = came.headers.get("authorization", "").partition(" ")
        shown = [came.cookies.get(self._cookie, ""), bearer if scheme.lower() == "bearer" else ""]
        if self._token is None or any(self._is_token(one.strip()) for one in shown):
            return None
        return RequestError("api_token")

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), (self._token or "").encode())

    def _brings_token(self, came: HTTPConnection) -> bool:
        """`/?t=TOKEN`, the address that the program prints and opens."""
        query = parse_qs(came.scope["query_string"].decode("latin-1"))
        return came.scope["path"] == "/" and self._is_token(query.get("t", [""])[0])

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = RedirectResponse("/", 303, {"cache-control": "no-store"})
        response.set_cookie(self._cookie, self._token or "", httponly=True, samesite="strict")
        await response(scope, receive, send)


def _same_origin(origin: str, host: str) -> bool:
    """Whether a page of `origin` was served under the Host that it now asks; `null` never is."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


class SafeHeaders:
    """Puts the safety headers on every answer, the content policy on pages; takes CORS ones off."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                _dress(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, dressed if scope["type"] == "http" else send)


def _dress(headers: MutableHeaders) -> None:
    for name in {name for name in headers if name.startswith("access-control-")}:
        del headers[name]
    headers.update(_ALWAYS)
    if headers.get("content-type", "").startswith("text/html"):
        headers.update(_ON_PAGES)
