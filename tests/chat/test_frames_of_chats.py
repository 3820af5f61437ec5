"""What a frame says of a chat whose text is not open, and of versions that are not shown."""

from typing import Any

from kvchat.chat.answer import LiveAnswer
from tests.chat.conftest import Start

LONG = "the pump runs at night and the lamp is green " * 8


def answered(live: LiveAnswer) -> LiveAnswer:
    assert live.wait_ended(60)
    assert live.error is None, live.error
    return live


def unaccounted(frame: dict[str, Any]) -> int:
    """Slack that is neither kept for reuse nor another chat's."""
    kv: dict[str, int] = frame["kv"]
    return kv["slack_bytes"] - kv["idle_bytes"] - kv["other_chats_bytes"]


def test_a_chat_that_is_kept_for_reuse_is_told_with_its_bytes(start: Start) -> None:
    talks = start()
    kept, open_now = talks.new_chat(), talks.new_chat()
    answered(talks.ask(kept, LONG))
    before = talks.frame(kept)["kv"]
    assert before["chat_bytes"] == sum(row["bytes"] for row in talks.frame(kept)["spans"]) > 0
    answered(talks.ask(open_now, f"Not that: {LONG}"))
    frame, own = talks.frame(kept), talks.frame(open_now)
    assert frame["spans"] == []
    listed = {row.id: row.kv_bytes for row in talks.chats()}
    assert (frame["kv"]["chat_bytes"], own["kv"]["chat_bytes"]) == (listed[kept], listed[open_now])
    assert listed[kept] > 0
    assert own["kv"]["other_chats_bytes"] == 0


def test_what_another_chat_holds_is_not_reserved(start: Start) -> None:
    talks = start()
    chat, other = talks.new_chat(), talks.new_chat()
    answered(talks.ask(chat, LONG))
    own, seen = talks.frame(chat), talks.frame(other)
    held = own["kv"]["chat_bytes"] + own["kv"]["hot_window_bytes"]
    assert seen["kv"]["other_chats_bytes"] == held > 0
    assert unaccounted(seen) == unaccounted(own) >= 0
    assert seen["kv"]["chat_bytes"] == 0


def test_figures_are_those_of_the_version_that_is_shown(start: Start) -> None:
    talks = start(temperature=2, seed=1)
    chat = talks.new_chat()
    answered(talks.ask(chat, "one"))
    talks.apply({"seed": 2})
    answered(talks.regenerate(chat, 1))

    def shown() -> list[bool]:
        frame = talks.frame(chat)
        hidden = sum(row["bytes"] for row in frame["turns"] if not row["shown"])
        assert frame["kv"]["other_versions_bytes"] == hidden
        return [row["shown"] for row in frame["turns"]]

    assert talks.history(chat)[0].num_siblings == 2
    assert shown() == [True]
    talks.switch(chat, 1, 1)
    assert shown() == [False]
    talks.switch(chat, 1, 2)
    assert shown() == [True]
    answered(talks.ask(chat, "two"))
    talks.switch(chat, 1, 1)
    assert shown() == [False, False]
    answered(talks.regenerate(chat, 1))
    assert shown() == [True]
    assert talks.frame(chat)["kv"]["other_versions_bytes"] == 0
    answered(talks.ask(chat, "three"))
    assert all(shown())
    talks.delete_turn(chat, len(talks.history(chat)))
    assert shown() == [True] * len(talks.history(chat)) + [False]
    assert talks.frame(chat)["kv"]["other_versions_bytes"] > 0
