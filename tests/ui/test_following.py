"""Tabs that follow chats: what is shown, when it ends, and who is not mixed up with whom."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvchat.errors import RequestError
from kvchat.ui.asked import Asked, read_asked
from kvchat.ui.following import Following
from tests.ui.standin import StandIn


@pytest.fixture
def talks() -> Iterator[StandIn]:
    found = StandIn(token_s=0.005)
    yield found
    found.close()


def asked(kind: str, **about: Any) -> Asked:
    return read_asked({"kind": kind, "tab": "t1", "chat": None, **about})


def test_a_question_makes_a_chat_and_is_followed_to_its_end(talks: StandIn) -> None:
    shown = list(Following(talks, "en").show(asked("ask", text="count to 60")))
    assert len(shown) > 2
    first, last = shown[0], shown[-1]
    assert first[1]["chat"] == talks.chats()[0].id
    assert last[1]["live"] is None
    assert " 60" in last[0][-1]["content"]


def test_how_far_the_prompt_is_read_is_shown(talks: StandIn) -> None:
    talks.token_s = 0.02
    shown = list(Following(talks, "en").show(asked("ask", text="count to 3")))
    read = [one[1]["live"].get("done_tokens") for one in shown if one[1]["live"]]
    assert {32, 64} & set(read)
    assert read == sorted(read, key=lambda done: done or 0)


def test_updates_come_at_most_eight_times_a_second(talks: StandIn) -> None:
    begun = time.monotonic()
    shown = list(Following(talks, "en").show(asked("ask", text="count to 100")))
    assert len(shown) <= 2 + (time.monotonic() - begun) / 0.125


def test_a_tab_that_falls_behind_gets_fewer(talks: StandIn) -> None:
    following, seen = Following(talks, "en"), 0
    for _ in following.show(asked("ask", text="count to 150")):
        seen += 1
        if seen == 1:
            for _ in range(9):
                following.slower("t1")
    assert seen <= 3


def test_a_new_wish_ends_the_old_one_without_drawing_it_again(talks: StandIn) -> None:
    following = Following(talks, "en")
    old = following.show(asked("ask", text="count to 500"))
    next(old)
    other = talks.new_chat()
    list(following.show(asked("open", chat=other)))
    assert list(old) == []
    live = talks.live(next(row.id for row in talks.chats() if row.id != other))
    assert live is not None  # the answer itself goes on


def test_a_wish_that_was_overtaken_is_done_and_not_shown(talks: StandIn) -> None:
    """A page that was just loaded asks to be drawn; a question typed at once may come before."""
    following = Following(talks, "en")
    question = following.show(asked("ask", text="count to 30", number=2))
    first = next(question)
    assert list(following.show(asked("open", number=1))) == []
    assert list(following.show(asked("open", chat=first[1]["chat"], number=1))) == []
    *_, last = question
    assert " 30" in last[0][-1]["content"]
    following.leave("t1", 3)
    assert list(following.show(asked("open", chat=first[1]["chat"], number=2))) == []
    assert list(following.show(asked("open", chat=first[1]["chat"], number=4)))
    late = list(following.show(asked("ask", chat=first[1]["chat"], text="count to 3", number=3)))
    assert late == []
    assert len(talks.history(first[1]["chat"])) == 2  # what was asked is asked


def test_another_tab_goes_on_following(talks: StandIn) -> None:
    following = Following(talks, "en")
    one = following.show(asked("ask", text="count to 40"))
    next(one)
    chat = talks.chats()[0].id
    list(following.show(asked("open", chat=chat, tab="t2")))
    last = list(one)[-1]
    assert " 40" in last[0][-1]["content"]


def test_stopping_ends_it_with_what_was_written(talks: StandIn) -> None:
    following = Following(talks, "en")
    shown = following.show(asked("ask", text="count to 5000"))
    next(shown)
    chat = talks.chats()[0].id
    threading.Timer(0.2, talks.stop, (chat,)).start()
    last = list(shown)[-1]
    assert last[1]["turns"][0]["finish_reason"] == "cancelled"


def test_an_error_is_a_card_with_the_text_given_back(talks: StandIn) -> None:
    chat = talks.new_chat()
    list(Following(talks, "ko").show(asked("ask", chat=chat, text="count to 2")))
    talks.fail_next = RequestError("ui_upload")
    ((messages, notes),) = Following(talks, "ko").show(asked("ask", chat=chat, text="lost?"))
    assert len(messages) == 2
    assert notes["problem"]["unsent"] == "lost?"
    assert "올린 파일" in notes["problem"]["message"]


def test_a_chat_that_is_gone_leaves_an_empty_screen_that_says_so(talks: StandIn) -> None:
    ((messages, notes),) = Following(talks, "en").show(asked("open", chat="x"))
    assert messages == []
    assert notes["chat"] is None
    assert notes["gone"] == "x"
    assert "no longer there" in notes["problem"]["message"]


def test_a_chat_that_is_deleted_while_it_is_followed_is_gone(talks: StandIn) -> None:
    following = Following(talks, "en")
    shown = following.show(asked("ask", text="count to 5000"))
    next(shown)
    chat = talks.chats()[0].id
    talks.delete(chat)
    messages, last = list(shown)[-1]
    assert (messages, last["gone"], last["chat"]) == ([], chat, None)
    assert "no longer there" in last["problem"]["message"]


def test_a_question_to_a_deleted_chat_comes_back(talks: StandIn) -> None:
    ((_, notes),) = Following(talks, "en").show(asked("ask", chat="x", text="lost?"))
    assert (notes["gone"], notes["problem"]["unsent"]) == ("x", "lost?")


@pytest.mark.parametrize(
    "sent",
    [
        None, [], "open", {}, {"kind": "drop table"}, {"kind": "open", "chat": 7},
        {"kind": "edit", "turn": "1"}, {"kind": "edit", "turn": -1},
        {"kind": "switch", "sibling": True},
        {"kind": "ask", "text": {"a": 1}}, {"kind": ["open"]},
    ],
)  # fmt: skip
def test_what_our_scripts_would_not_send_is_refused(sent: object) -> None:
    with pytest.raises(RequestError):
        read_asked(sent)
