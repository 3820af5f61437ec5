"""Answers under way at their worst: stopped in a hurry, two tabs, deleted, a store that fails."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.engine import open as opening
from kvchat.errors import KVChatError, RequestError, StoreError
from tests.chat.test_conversations import answered, ended, texts
from tests.starts import resolve

Start = Callable[..., Conversations]


def begun(live: LiveAnswer) -> LiveAnswer:
    """The answer once its first words are there."""
    seen = 0
    while not live.text:
        seen = live.wait_change(seen, 10)
    return live


def test_fifty_times_asked_and_stopped_at_once(start: Start) -> None:
    """C28: at whatever moment it is stopped, the next question is answered, and nothing is left."""
    conversations = start(max_new_tokens=300)
    chat = conversations.new_chat()
    ends = []
    for number in range(50):
        live = conversations.ask(chat, f"Tell me a long story, number {number}.")
        time.sleep((number % 10) / 100)
        live.stop()
        ends.append(ended(live).status)
        assert conversations.live(chat) is None
    assert set(ends) <= {"stopped", "done"}  # a few may have come to their own end
    assert ends.count("stopped") > 25
    history = conversations.history(chat)
    assert [one.turn for one in history] == list(range(1, 51))
    assert any(one.reply for one in history)
    conversations.apply({"max_new_tokens": 5})
    last = answered(conversations.ask(chat, "And now?"))
    assert last.turn == 51
    assert conversations._store.verify() == []
    engine = conversations._worker.engine
    assert engine is not None
    engine.close_text()
    engine.pool.check_integrity(0)


def test_a_stop_while_the_model_loads_is_heard(
    start: Start, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the question is in the chat, where it can be asked again."""
    start().close()  # imports are done
    go_on = threading.Event()
    load = opening.load_model

    def slow_load(*args: Any, **named: Any) -> Any:
        assert go_on.wait(60)
        return load(*args, **named)

    monkeypatch.setattr(opening, "load_model", slow_load)
    conversations = Conversations(resolve(flags={"model": str(tiny_path)}), tmp_path / "other")
    try:
        chat = conversations.new_chat()
        live = conversations.ask(chat, "Are you there?")
        live.stop()
        assert ended(live).status == "stopped"
        assert [one.text for one in conversations.history(chat)] == ["Are you there?"]
        begun_s = time.monotonic()
        waiting = conversations.ask(chat, "And now?")
        conversations.delete(chat)
        assert ended(waiting).status == "stopped"
        assert time.monotonic() - begun_s < 5
    finally:
        go_on.set()
        conversations.close()


def test_a_question_behind_another_chats_answer_stops_at_once(start: Start) -> None:
    conversations = start(max_new_tokens=1900)
    first, second = conversations.new_chat(), conversations.new_chat()
    answering = begun(conversations.ask(first, "Go on and on."))
    waiting = conversations.ask(second, "And me?")
    time.sleep(0.1)
    assert waiting.status == "queued"
    waiting.stop()
    assert ended(waiting).status == "stopped"
    assert answering.status == "decode"
    conversations.delete(first)
    assert ended(answering).status == "stopped"
    assert [row.id for row in conversations.chats()] == [second]
    assert conversations.history(second)[0].reply is None
    assert conversations._store.verify() == []


def test_two_tabs_ask_at_the_same_moment(start: Start) -> None:
    """One is answered, the other is told; no question is lost in between or asked twice."""
    conversations = start()
    chat = conversations.new_chat()
    for round_number in range(10):
        told: list[LiveAnswer | KVChatError] = []
        together = threading.Barrier(4)

        def one_tab(number: int, told: list[Any] = told, together: Any = together) -> None:
            together.wait(10)
            try:
                told.append(conversations.ask(chat, f"From tab {number}"))
            except RequestError as error:
                told.append(error)

        tabs = [threading.Thread(target=one_tab, args=(i,)) for i in range(4)]
        for tab in tabs:
            tab.start()
        for tab in tabs:
            tab.join(30)
        lives = [one for one in told if isinstance(one, LiveAnswer)]
        assert len(told) == 4
        assert len(lives) == 1
        answered(lives[0])
        assert len(conversations.history(chat)) == round_number + 1


def test_two_tabs_edit_at_the_same_moment(start: Start) -> None:
    """The edit that comes second leaves the branch that the first one made."""
    conversations = start(max_new_tokens=200)
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "one"))
    live = begun(conversations.edit(chat, 1, "uno"))
    for change in (
        lambda: conversations.edit(chat, 1, "eins"),
        lambda: conversations.regenerate(chat, 1),
        lambda: conversations.ask(chat, "two"),
        lambda: conversations.delete_turn(chat, 1),
        lambda: conversations.switch(chat, 1, 1),
    ):
        with pytest.raises(RequestError):
            change()
    live.stop()
    ended(live)
    assert [one.text for one in conversations.history(chat)] == ["uno"]
    assert conversations.history(chat)[0].num_siblings == 2


@pytest.mark.parametrize("failing", ["append", "rename", "fork"])
def test_a_store_that_fails_leaves_the_chat_free(
    start: Start, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A full disk at the wrong moment: the error is told once, and the next question works."""
    conversations = start()
    chat = conversations.new_chat()
    if failing == "fork":
        answered(conversations.ask(chat, "hello"))
    before = texts(conversations, chat)

    def full(*_: object, **__: object) -> None:
        raise StoreError("store_full", folder="here")

    asks = (
        (lambda: conversations.edit(chat, 1, "other"))
        if failing == "fork"
        else (lambda: conversations.ask(chat, "hello"))
    )
    with monkeypatch.context() as broken:
        broken.setattr(conversations._store, failing, full)
        with pytest.raises(StoreError):
            asks()
    assert conversations.live(chat) is None
    assert texts(conversations, chat) == before
    answered(conversations.ask(chat, "hello again"))


def test_a_disk_that_fills_in_mid_answer_ends_it_with_a_sentence(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = start(max_new_tokens=1900)
    chat = conversations.new_chat()
    live = begun(conversations.ask(chat, "Go on."))

    def full(*_: object, **__: object) -> None:
        raise StoreError("store_full", folder="here")

    with monkeypatch.context() as broken:
        broken.setattr(conversations._store, "write_draft", full)
        assert ended(live).status == "failed"
    assert live.error is not None
    assert live.error.code == "store_full"
    assert conversations.history(chat)[0].reply
    conversations.apply({"max_new_tokens": 5})
    begun_s = time.monotonic()
    answered(conversations.ask(chat, "Still there?"))
    assert time.monotonic() - begun_s < 50  # the failed answer no longer computes


def test_the_frames_of_an_answer_are_those_of_the_screen(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    live = answered(conversations.ask(chat, "hello"))
    frames = [one for one in live.events() if one["type"] == "frame"]
    assert frames
    for frame in frames:
        assert set(frame) == set(conversations.frame(chat))
        assert frame["runtime"]["stage"] in ("prefill", "decode", "ready")
