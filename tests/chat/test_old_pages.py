"""A page that was not told of a change, be it another tab's or over a restart, changes nothing that
it does not show.
"""

from collections.abc import Callable

import pytest

from kvchat.chat.conversations import Conversations
from kvchat.errors import RequestError
from kvchat.ui.asked import read_asked
from kvchat.ui.following import Following
from tests.chat.test_conversations import answered

Start = Callable[..., Conversations]
Press = Callable[[Conversations, str, int, str], object]

PRESSED: dict[str, Press] = {
    "remove": lambda talks, chat, turn, name: talks.delete_turn(chat, turn, name),
    "regenerate": lambda talks, chat, turn, name: talks.regenerate(chat, turn, name),
    "edit": lambda talks, chat, turn, name: talks.edit(chat, turn, "other words", name),
    "switch": lambda talks, chat, turn, name: talks.switch(chat, turn, 1, name),
    "pin": lambda talks, chat, turn, name: talks.pin_turn(chat, turn, name),
}


def talked(start: Start) -> tuple[Conversations, str]:
    talks = start(max_new_tokens=4)
    chat = talks.new_chat()
    for question in ("first", "second", "third"):
        answered(talks.ask(chat, question))
    return talks, chat


def test_turns_that_are_others_by_now_are_left_alone(start: Start) -> None:
    talks, chat = talked(start)
    shown = talks.history(chat)  # by the old page
    talks.delete_turn(chat, 1)
    talks = start(max_new_tokens=4)  # and kvchat was started anew
    there = talks.history(chat)
    assert [one.text for one in there] == ["second", "third"]
    for press in PRESSED.values():
        with pytest.raises(RequestError) as caught:
            press(talks, chat, 2, shown[1].user_hash)
        assert caught.value.code == "turn_changed"
        with pytest.raises(RequestError):
            press(talks, chat, 3, shown[2].user_hash)
    assert talks.history(chat) == there
    assert talks.live(chat) is None
    assert talks._store.verify() == []


@pytest.mark.parametrize("kind", ["remove", "regenerate", "edit", "switch"])
def test_the_old_page_is_told_and_drawn_as_the_chat_is(start: Start, kind: str) -> None:
    talks, chat = talked(start)
    old = talks.history(chat)[1].user_hash
    answered(talks.edit(chat, 1, "another first"))  # what followed is on the other version's branch
    answered(talks.ask(chat, "another second"))
    before = talks.history(chat)
    sent = {"kind": kind, "tab": "old", "chat": chat, "turn": 2, "name": old, "text": "mine"}
    ((drawn, notes),) = Following(talks, "ko").show(read_asked({**sent, "sibling": 1}))
    assert talks.history(chat) == before
    assert any("another second" in one["content"] for one in drawn)
    assert "다릅니다" in notes["problem"]["message"]
    assert notes["problem"]["unsent"] == ("mine" if kind == "edit" else "")
    assert [one["name"] for one in notes["turns"]] == [one.user_hash for one in before]


def test_a_page_over_a_restart_shows_and_keeps_what_was_saved(start: Start) -> None:
    """What it asks goes after what is there; the chat it shows is nowhere taken from it."""
    talks, chat = talked(start)
    saved = talks.history(chat)
    talks = start(max_new_tokens=4)
    following = Following(talks, "en")
    sent = {"tab": "old", "chat": chat, "shown": 1}
    list(following.show(read_asked({**sent, "kind": "open"})))
    list(following.show(read_asked({**sent, "kind": "ask", "text": "fourth"})))
    there = talks.history(chat)
    assert there[:3] == saved
    assert [one.text for one in there] == ["first", "second", "third", "fourth"]
