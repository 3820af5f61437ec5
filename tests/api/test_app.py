"""The short routes, and errors of every kind: one sentence, the right status, no traceback."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from kvchat import __version__
from kvchat.errors import ModelError
from tests.api.running import run
from tests.api.standin import PNG, StandIn

Client = Callable[..., httpx.AsyncClient]
SHA = "0" * 63 + "2"


def ask(client: httpx.AsyncClient, path: str, method: str = "GET", **options) -> httpx.Response:
    async def once() -> httpx.Response:
        async with client:
            return await client.request(method, path, **options)

    return run(once())


@pytest.mark.parametrize(
    ("language", "accepted", "location"),
    [
        (None, None, "/en/"),
        (None, "ko-KR,ko;q=0.9,en;q=0.8", "/ko/"),
        (None, "en,ko;q=0.9", "/en/"),
        (None, "fr", "/en/"),
        ("ko", "en", "/ko/"),
        ("en", "ko", "/en/"),
    ],
)
def test_the_root_leads_to_a_language(client: Client, language, accepted, location):
    headers = {"accept-language": accepted} if accepted else {}
    answer = ask(client(language=language), "/", headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (307, location)
    assert answer.headers["cache-control"] == "no-store"


def test_the_root_keeps_the_chat_and_stays_on_this_server(client: Client):
    answer = ask(client(), "/?c=a%2Fb&next=//evil.example%0d%0ax:y")
    location = answer.headers["location"]
    assert location == "/en/?c=a%2Fb&next=%2F%2Fevil.example%0D%0Ax%3Ay"


def test_browsers_find_no_icon_and_no_error(client: Client):
    assert ask(client(), "/favicon.ico").status_code == 204


def test_health_answers_while_the_model_loads(client: Client, conversations: StandIn):
    assert ask(client(), "/health").json() == {
        "status": "ok",
        "model": "ready",
        "version": __version__,
    }
    loading = StandIn(load_s=30)
    conversations.status = loading.status  # type: ignore[method-assign]
    answer = ask(client(), "/health")
    assert (answer.status_code, answer.json()["model"]) == (200, "loading")


def test_health_answers_after_a_failed_load(client: Client, conversations: StandIn):
    conversations.error = ModelError("api_internal")
    answer = ask(client(), "/health")
    assert (answer.status_code, answer.json()["model"]) == (200, "error")


def test_memory_is_the_frame(client: Client, conversations: StandIn):
    whole = ask(client(), "/api/memory").json()
    assert whole["type"] == "frame"
    assert whole["kv"].keys() == conversations.frame()["kv"].keys()
    chat = conversations.new_chat()
    answer = conversations.ask(chat, "one two")
    list(answer.events())
    for number in range(30):
        conversations.note(chat, "retry", number=number)
    here = ask(client(), f"/api/memory?chat={chat}").json()
    assert len(here["turns"]) == 1
    assert [entry["arguments"]["number"] for entry in here["ledger"]] == list(range(10, 30))


def test_memory_of_a_chat_that_is_not_there(client: Client):
    answer = ask(client(), "/api/memory?chat=nowhere")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "chat_gone"


def test_the_ledger_is_a_file_of_lines(client: Client, conversations: StandIn):
    chat = conversations.new_chat()
    for code in ("retry", "drop_idle"):
        conversations.note(chat, code)
    answer = ask(client(), f"/api/ledger?chat={chat}")
    assert answer.text == '"retry"\n"drop_idle"\n'
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert "attachment" in answer.headers["content-disposition"]
    assert ask(client(), "/api/ledger").text == ""
    assert ask(client(), "/api/ledger?chat=nowhere").status_code == 404


# Pictures of pages


def test_a_page_is_a_picture(client: Client, conversations: StandIn):
    chat = conversations.new_chat()
    assert conversations.add_document(chat, Path("a.pdf"), "a.pdf") == SHA
    answer = ask(client(), f"/doc/{SHA}/3.png")
    assert (answer.status_code, answer.content) == (200, PNG)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["cache-control"].startswith("private")


@pytest.mark.parametrize(
    "path",
    [
        f"/doc/{SHA}/4.png",  # has three pages
        f"/doc/{SHA}/0.png",
        f"/doc/{SHA}/-1.png",
        f"/doc/{SHA}/1.5.png",
        f"/doc/{SHA}/٣.png",
        f"/doc/{SHA}/99999999999999999999.png",
        f"/doc/{SHA}/1",
        f"/doc/{SHA}/1.jpg",
        f"/doc/{'1' * 64}/1.png",
        f"/doc/{SHA[:-1]}/1.png",
        f"/doc/{SHA.replace('0', 'G')}/1.png",
        "/doc/../../etc/passwd",
        "/doc/..%2f..%2fetc%2fpasswd/1.png",
        "/doc/%2e%2e/%2e%2e/etc/passwd/1.png",
        "/doc//etc/hostname/1.png",
        f"/doc/{SHA}/..%2f1.png",
        f"/doc/{SHA}/1.png%00",
    ],
)
def test_anything_else_is_not_there(client: Client, conversations: StandIn, path):
    conversations.add_document(conversations.new_chat(), Path("a.pdf"), "a.pdf")
    answer = ask(client(), path)
    assert answer.status_code == 404
    assert "root:" not in answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


# Errors


def test_unknown_routes_and_methods(client: Client):
    for path in ("/nowhere", "/v1/embeddings", "/v1/completions", "/docs", "/openapi.json"):
        answer = ask(client(), path)
        assert answer.status_code == 404
        assert path in answer.json()["error"]["message"]
    answer = ask(client(), "/v1/chat/completions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method")


def test_an_unexpected_error_is_one_sentence_and_no_traceback(
    client: Client, conversations: StandIn
):
    def broken(chat: str | None = None) -> dict:
        raise ZeroDivisionError("a secret of the inside")

    conversations.frame = broken  # type: ignore[method-assign]
    answer = ask(client(), "/api/memory")
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "message": "Something went wrong inside kvchat. "
        "Try again; what happened stands in kvchat's log.",
        "type": "server_error",
        "code": "internal",
        "param": None,
    }


def test_errors_in_korean_for_who_asks_for_it(client: Client):
    answer = ask(client(), "/nowhere", headers={"accept-language": "ko-KR,ko;q=0.9"})
    assert "아무것도 없습니다" in answer.json()["error"]["message"]
    assert answer.headers["content-type"] == "application/json"


def test_the_screen_comes_after_the_own_routes(client: Client):
    def mount(app: FastAPI) -> None:
        app.add_api_route("/{path:path}", lambda path: {"screen": path})

    assert ask(client(mount=mount), "/health").json()["status"] == "ok"
    assert ask(client(mount=mount), "/ko/").json() == {"screen": "ko/"}
