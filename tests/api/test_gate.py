"""Who may come in (cases C31, C32): by name, by origin, by token; and what every answer wears."""

import re
from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import HTMLResponse
from starlette.websockets import WebSocket

from kvchat.api.app import build_app
from tests.api.running import run
from tests.api.standin import StandIn

Client = Callable[..., httpx.AsyncClient]
TOKEN = "a-token-of-the-test"


def ask(client: httpx.AsyncClient, path: str = "/health", **options) -> httpx.Response:
    async def once() -> httpx.Response:
        async with client:
            return await client.request(options.pop("method", "GET"), path, **options)

    return run(once())


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860", "[::1]"],
)
def test_loopback_names_may_come_in(client: Client, host):
    assert ask(client(), headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7860",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "127.0.0.1:7860:80",
        "127.0.0.1 ",
        "127.0.0.1, evil.example",
        "127.0.0.2",
        "[::1",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/api/live", "/nowhere"])
def test_other_names_are_misdirected(client: Client, host, path):
    answer = ask(client(), path, headers={"host": host})
    assert answer.status_code == 421
    assert answer.json()["error"]["message"].startswith("kvchat does not answer under this host")


def test_two_hosts_in_one_request_are_misdirected(client: Client):
    headers = [("host", "127.0.0.1"), ("host", "evil.example")]
    assert ask(client(), headers=headers).status_code == 421


def test_a_given_host_may_come_in(client: Client):
    options = {"allowed_hosts": ["Gpu.Home"], "token": TOKEN}
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert ask(client(**options), headers=bearer | {"host": "gpu.home:7860"}).status_code == 200
    assert ask(client(**options), headers=bearer).status_code == 421


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://evil.example",
        "null",
        "http://127.0.0.1",  # the same name, another port
        "http://127.0.0.1:8000",
        "http://localhost:7860",
        "file://",
        "chrome-extension://abc",
        "http://127.0.0.1:7860.evil.example",
        "http://127.0.0.1:7860/",
        "http://[",
        "",
    ],
)
def test_foreign_origins_are_forbidden(client: Client, origin):
    headers = {"host": "127.0.0.1:7860", "origin": origin}
    body = {"messages": [{"role": "user", "content": "x"}]}
    answer = ask(client(), "/v1/chat/completions", method="POST", headers=headers, json=body)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin"


def test_the_own_origin_may_come_in(client: Client):
    headers = {"host": "127.0.0.1:7860", "origin": "http://127.0.0.1:7860"}
    assert ask(client(), headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
        ("cross-site", "navigate", 200),  # a link to kvchat
        ("cross-site", "no-cors", 403),  # <img src> on a foreign page
        ("same-site", "no-cors", 403),  # another port of this machine
        ("cross-site", "cors", 403),
    ],
)
def test_what_a_browser_says_about_where_a_request_comes_from(client: Client, site, mode, status):
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
    assert ask(client(), headers=headers).status_code == status


def test_no_cors_header_ever_leaves(client: Client):
    headers = {
        "host": "127.0.0.1:7860",
        "origin": "http://127.0.0.1:7860",
        "access-control-request-method": "POST",
    }
    for method in ("GET", "OPTIONS"):
        answer = ask(client(mount=_mount), "/page", method=method, headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def _mount(app: FastAPI) -> None:
    """A screen as careless as can be."""

    async def page(_request) -> HTMLResponse:
        return HTMLResponse("<p>page</p>", headers={"access-control-allow-origin": "*"})

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    app.add_route("/page", page)
    app.add_api_websocket_route("/socket", socket)


def test_pages_wear_the_content_policy(client: Client):
    page = ask(client(mount=_mount), "/page").headers
    for part in ("default-src 'self'", "img-src 'self' data: blob:", "frame-ancestors 'none'"):
        assert part in page["content-security-policy"]
    assert "http" not in page["content-security-policy"]
    assert page["x-frame-options"] == "DENY"


def test_every_answer_wears_the_safety_headers(client: Client):
    for answer in (
        ask(client()),
        ask(client(), "/nowhere"),
        ask(client(), headers={"host": "evil.example"}),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "content-security-policy" not in answer.headers


@pytest.mark.parametrize(
    ("headers", "lets_in"),
    [
        ([(b"host", b"127.0.0.1:7860")], True),
        ([(b"host", b"127.0.0.1:7860"), (b"origin", b"http://127.0.0.1:7860")], True),
        ([(b"host", b"127.0.0.1:7860"), (b"origin", b"https://evil.example")], False),
        ([(b"host", b"127.0.0.1:7860"), (b"origin", b"null")], False),
        ([(b"host", b"evil.example")], False),
    ],
)
def test_the_gate_stands_before_websockets_too(headers, lets_in):
    app = build_app(StandIn(), mount=_mount)
    scope = {
        "type": "websocket", "path": "/socket", "raw_path": b"/socket", "root_path": "",
        "query_string": b"", "headers": headers, "subprotocols": [], "scheme": "ws",
    }  # fmt: skip
    sent: list[str] = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message) -> None:
        sent.append(message["type"])

    run(app(scope, receive, send))
    assert sent == (["websocket.accept"] if lets_in else []) + ["websocket.close"]


# The token, which is asked for beyond loopback only


def test_without_a_token_there_is_no_entry(client: Client):
    for path in ("/", "/health", "/v1/models", "/api/memory", "/api/live", "/nowhere", "/?t="):
        answer = ask(client(token=TOKEN), path)
        assert answer.status_code == 401, path
        assert answer.json()["error"]["code"] == "token"


@pytest.mark.parametrize(
    "header",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"authorization": "Bearer"},
        {"authorization": "Bearer \xff".encode("latin-1")},
        {"cookie": f"kvchat={TOKEN}"},
        {"cookie": "kvchat-00000000=wrong"},
    ],
)
def test_a_wrong_token_is_none(client: Client, header):
    assert ask(client(token=TOKEN), headers=header).status_code == 401


def test_the_bearer_may_come_in(client: Client):
    for kind in ("Bearer", "bearer"):
        answer = ask(client(token=TOKEN), headers={"authorization": f"{kind} {TOKEN}"})
        assert answer.status_code == 200


def test_the_printed_address_gives_a_cookie_and_loses_the_token(client: Client):
    answer = ask(client(token=TOKEN), f"/?t={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert re.search("samesite=strict", cookie, re.IGNORECASE)
    kept = {"cookie": cookie.partition(";")[0]}
    assert ask(client(token=TOKEN), headers=kept).status_code == 200
    assert ask(client(token=TOKEN), "/", headers=kept).status_code == 307
    assert ask(client(token="another"), headers=kept).status_code == 401


def test_the_printed_address_opens_nothing_else(client: Client):
    for path in ("/?t=wrong", f"/health?t={TOKEN}", f"/v1/models?t={TOKEN}", "/?t=%ff%fe"):
        assert ask(client(token=TOKEN), path).status_code == 401


def test_an_old_address_still_works_with_the_cookie_and_its_token_goes_no_further(client: Client):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    answer = ask(client(token=TOKEN), f"/?t={TOKEN}&c=chat-1", headers=bearer)
    assert answer.headers["location"] == "/en/?c=chat-1"


def test_a_token_does_not_open_for_foreign_pages(client: Client):
    headers = {"authorization": f"Bearer {TOKEN}", "origin": "https://evil.example"}
    assert ask(client(token=TOKEN), headers=headers).status_code == 403


def test_a_person_reads_a_sentence_a_program_reads_json(client: Client):
    headers = {"accept": "text/html,application/xhtml+xml", "accept-language": "ko"}
    answer = ask(client(token=TOKEN), headers=headers)
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("이 kvchat을 쓰려면")
