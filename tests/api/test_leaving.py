"""Clients that leave, or say too much (case C28): the model must not work for nobody."""

import json
import socket
import time
from collections.abc import Callable

import pytest

from tests.api.conftest import Serve, Served


def post(served: Served, body: bytes, *, length: int | None = None) -> socket.socket:
    connection = served.connect()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def question(text: str, **parameters) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **parameters}).encode()


def until(holds: Callable[[], bool], most_s: float = 10.0) -> None:
    until_s = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_in_mid_answer_stops_it(serve: Serve, stream: bool):
    served = serve(token_s=0.1)
    connection = post(served, question("count to 1000", stream=stream))
    until(
        lambda: bool(served.conversations.answers) and len(served.conversations.answers[0].text) > 4
    )
    (answer,) = served.conversations.answers
    connection.close()
    left_s = time.monotonic()
    until(lambda: answer.status == "stopped")
    assert time.monotonic() - left_s < 1.0
    assert len(answer.text.split()) < 20


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_the_queue_lets_the_next_one_pass(serve: Serve, stream: bool):
    """Three ask: one is computing, the second leaves while it waits, the third gets its answer."""
    served = serve(token_s=0.05)
    first = post(served, question("count to 40"))
    until(lambda: len(served.conversations.answers) == 1)
    second = post(served, question("count to 1000", stream=stream))
    until(lambda: len(served.conversations.answers) == 2)
    second.close()
    until(served.conversations.answers[1].cancel.is_set)
    third = post(served, question("hello"))
    assert b"You said: hello" in received(third)
    assert b"40 " in received(first)
    assert served.conversations.answers[1].text == ""


def test_leaving_while_the_model_loads_asks_for_nothing(serve: Serve):
    served = serve(load_s=0.6)
    connection = post(served, question("count to 1000"))
    time.sleep(0.2)
    connection.close()
    time.sleep(0.8)
    assert served.conversations.answers == []


def test_leaving_within_the_request_is_harmless(serve: Serve):
    served = serve()
    for sent in (b"", b'{"messages"'):
        post(served, sent, length=1000).close()
    assert served.openai().models.list().data[0].id == "stand-in"


def test_a_hundred_who_leave_at_once_leave_nothing_behind(serve: Serve):
    import threading

    served = serve(token_s=0.02)
    before = threading.active_count()
    for _ in range(5):
        connections = [post(served, question("count to 500", stream=True)) for _ in range(20)]
        time.sleep(0.1)
        for connection in connections:
            connection.close()
    until(lambda: all(one.status == "stopped" for one in served.conversations.answers))
    until(lambda: threading.active_count() <= before + 5)
    answer = served.openai().chat.completions.create(
        model="x", messages=[{"role": "user", "content": "still there?"}]
    )
    assert answer.choices[0].message.content == "You said: still there?"


def received(connection: socket.socket) -> bytes:
    """The whole answer of a connection that the server keeps open: up to its declared length."""
    with connection, connection.makefile("rb") as stream:
        head = b""
        length = 0
        while (line := stream.readline()) not in (b"\r\n", b""):
            head += line
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return head + stream.read(length)


# What does not fit


def test_a_body_above_the_limit_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvchat.api.completions.MOST_BODY_BYTES", 1_000_000)
    served = serve()
    answer = received(post(served, question("w" * 2_000_000)))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"larger than 977 KiB" in answer


def test_a_body_far_above_the_limit_is_refused_unread(serve: Serve):
    served = serve()
    answer = received(post(served, b"{", length=10**12))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"larger than 16.0 MiB" in answer or b"larger than 16 MiB" in answer


def test_a_body_of_unknown_length_is_counted(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvchat.api.completions.MOST_BODY_BYTES", 1000)
    served = serve()
    connection = served.connect()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
    connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
    connection.sendall(b"3e8\r\n" + b"w" * 1000 + b"\r\n")
    connection.sendall(b"3e8\r\n" + b"w" * 1000 + b"\r\n0\r\n\r\n")
    assert received(connection).startswith(b"HTTP/1.1 413")


def test_a_large_question_below_the_limit_is_answered(serve: Serve):
    served = serve(context_tokens=10**7)
    sent = question("w" * 8_000_000, max_tokens=1)
    answer = received(post(served, sent))
    assert answer.startswith(b"HTTP/1.1 200")


def test_ten_thousand_messages_are_answered(serve: Serve):
    served = serve(context_tokens=100)
    turn = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    answer = served.openai().chat.completions.create(
        model="x",
        messages=[*turn * 5_000, {"role": "user", "content": "last"}],  # type: ignore[list-item]
    )
    assert answer.choices[0].message.content == "You said: last"
    assert answer.usage.prompt_tokens <= 100
    assert answer.model_extra["kvchat"]["ledger"][0]["code"] == "truncate_turns"


# Raw requests that no client would send


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", b"421"),
        (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"4"),
        (b"GET /doc/../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET //etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"\x00\x01\x02\r\n\r\n", b"400"),
    ],
)
def test_raw_requests(serve: Serve, raw: bytes, status: bytes):
    connection = serve().connect()
    connection.sendall(raw)
    line = connection.makefile("rb").readline()
    assert line.split(b" ")[1].startswith(status)
