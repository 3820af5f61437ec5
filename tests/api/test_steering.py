"""Pins and taking back over HTTP: what is passed on, and what is refused by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from kvchat.errors import OutOfMemory, RequestError
from tests.api.standin import StandIn
from tests.api.test_app import SHA, ask

Client = Callable[..., httpx.AsyncClient]
Calls = list[tuple[Any, ...]]


@dataclass
class Cost:
    tokens: int
    s: float | None


@pytest.fixture
def called(conversations: StandIn) -> Calls:
    """What the conversations are asked to do."""
    calls: Calls = []

    def pin_turn(chat: str, turn: int, *, pinned: bool) -> None:
        calls.append(("turn", chat, turn, pinned))

    def pin_document(chat: str, document: str, page: int | None, *, pinned: bool) -> None:
        calls.append(("document", chat, document, page, pinned))

    def cost(chat: str, entry: int) -> Cost:
        calls.append(("cost", chat, entry))
        return Cost(700, 3.5)

    def undo(chat: str, entry: int) -> Cost:
        calls.append(("undo", chat, entry))
        return Cost(700, None)

    for name, call in (
        ("pin_turn", pin_turn), ("pin_document", pin_document), ("undo_cost", cost), ("undo", undo),
    ):  # fmt: skip
        setattr(conversations, name, call)
    return calls


def test_turns_documents_and_pages_are_pinned(client: Client, called: Calls) -> None:
    for method, query in (
        ("POST", "chat=a&turn=3"),
        ("DELETE", "chat=a&turn=3"),
        ("POST", f"chat=a&document={SHA}"),
        ("DELETE", f"chat=a&document={SHA}&page=12"),
    ):
        assert ask(client(), f"/api/pins?{query}", method).status_code == 204
    assert called == [
        ("turn", "a", 3, True),
        ("turn", "a", 3, False),
        ("document", "a", SHA, None, True),
        ("document", "a", SHA, 12, False),
    ]


def test_taking_back_tells_its_cost_first(client: Client, called: Calls) -> None:
    assert ask(client(), "/api/undo?chat=a&entry=7").json() == {"tokens": 700, "s": 3.5}
    assert ask(client(), "/api/undo?chat=a&entry=7", "POST").json() == {"tokens": 700, "s": None}
    assert called == [("cost", "a", 7), ("undo", "a", 7)]


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/api/pins?turn=3", "chat"),
        ("/api/pins?chat=a", "document"),
        ("/api/pins?chat=a&turn=-1", "turn"),
        ("/api/pins?chat=a&turn=\u0663", "turn"),
        ("/api/pins?chat=a&document=x&page=1.5", "page"),
        ("/api/undo?chat=a", "entry"),
        ("/api/undo?chat=a&entry=" + "9" * 30, "entry"),
    ],
)
def test_what_is_wrong_is_named(client: Client, called: Calls, path: str, parameter: str) -> None:
    answer = ask(client(), path, "POST")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, parameter)
    assert called == []


def test_refusals_have_a_status_of_their_own(client: Client, conversations: StandIn) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OutOfMemory("pins_too_large", pinned=9, capacity=5)

    def nothing(*_: object) -> None:
        raise RequestError("undo_nothing")

    conversations.pin_turn = refuse  # type: ignore[attr-defined]
    conversations.undo = nothing  # type: ignore[attr-defined]
    answer = ask(client(), "/api/pins?chat=a&turn=1", "POST")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "pins_too_large")
    assert ask(client(), "/api/undo?chat=a&entry=1", "POST").status_code == 409
    assert ask(client(), "/api/pins?chat=a&turn=1").status_code == 405
