"""`/api/ask`: who may send files, and what is refused before a chat is begun for it."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.standin import StandIn
from tests.api.test_app import ask

Client = Callable[..., httpx.AsyncClient]
FILE = ("notes.txt", b"The pump runs at night.")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example"}, 421),
        ({"authorization": "Bearer other"}, 401),
    ],
)
def test_strangers_send_no_files(
    client: Client, conversations: StandIn, headers: dict[str, str], status: int
) -> None:
    sent = {"data": {"question": "hello"}, "files": {"pdf": FILE}}
    answer = ask(client(token="t"), "/api/ask", method="POST", headers=headers, **sent)
    assert answer.status_code == status
    assert conversations._chats == {}


@pytest.mark.parametrize(
    ("sent", "status", "told"),
    [
        ({"data": {"chat": "notes"}}, 400, "question is missing"),
        ({"data": {"question": " "}, "files": {"pdf": FILE}}, 400, "empty message"),
        ({"data": {"question": "hi", "model": "x"}}, 400, "model"),
        ({"data": {"question": "hi", "temperature": "hot"}}, 400, "hot"),
        ({"data": {"question": "hi"}, "files": {"pdf": ("a.pdf", b"")}}, 404, "'a.pdf'"),
        ({"data": {"question": "hi"}, "files": {"pdf": ("../a.pdf", b"GIF")}}, 404, "'a.pdf'"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data"}}, 400, "form"),
        ({"json": {"question": "hi"}}, 400, "question is missing"),
    ],
)
def test_bad_forms_are_refused_in_one_sentence(
    client: Client, conversations: StandIn, sent: dict[str, Any], status: int, told: str
) -> None:
    answer = ask(client(), "/api/ask", method="POST", **sent)
    assert answer.status_code == status, answer.text
    assert told in answer.json()["error"]["message"]
    assert conversations._chats == {}


def test_more_than_a_few_files_are_refused_while_they_come(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvchat.api.ask.MOST_BODY_BYTES", 1000)

    async def unmeasured() -> Any:
        yield b'--x\r\nContent-Disposition: form-data; name="pdf"; filename="a.txt"\r\n\r\n'
        for _ in range(5):
            yield b"w" * 400

    form = {"content-type": "multipart/form-data; boundary=x"}
    for content in (b"w" * 2000, unmeasured()):
        answer = ask(client(), "/api/ask", method="POST", content=content, headers=form)
        assert answer.status_code == 413
        assert "larger than 1000 B" in answer.json()["error"]["message"]
