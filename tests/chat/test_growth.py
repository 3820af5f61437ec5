"""What a long run leaves behind: chats in the store, blocks within the budget, and nothing else."""

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.errors import StoreError
from kvchat.units import MIB
from tests.chat.test_conversations import AS_COMPUTED, answered, ended
from tests.starts import resolve

Start = Callable[..., Conversations]


def a_day(conversations: Conversations, turns: range) -> None:
    """Chats of ten turns: answered, stopped, watched, regenerated, edited, beside requests."""
    chat = conversations.new_chat()
    for turn in turns:
        if turn % 10 == 0:
            chat = conversations.new_chat()
        live = conversations.ask(chat, f"What does the memory hold, number {turn}?")
        match turn % 5:
            case 1:
                live.stop()
            case 2:
                list(live.events())
            case 3:
                ended(live)
                live = conversations.regenerate(chat, 1)
            case 4:
                ended(live)
                live = conversations.complete([{"role": "user", "content": f"{turn}"}], {})
        ended(live)
        conversations.frame(chat)
        conversations.history(chat)


@pytest.mark.slow
def test_eighty_turns_leave_no_object_behind(start: Start) -> None:
    engine = start()._worker.engine
    assert engine is not None
    budget = engine.costs.needed_bytes(1900, 64)
    del engine
    conversations = start(
        memory_budget=budget,
        prefill_chunk=64,
        max_new_tokens=6,
        disk_quota=MIB,
        ladder=AS_COMPUTED,  # so that a full pool holds no more blocks, each with a list
    )
    a_day(conversations, range(40))
    objects, resident = counted()
    a_day(conversations, range(40, 120))
    more_objects, more_resident = counted()
    grown = {name: n - objects[name] for name, n in more_objects.items() if n - objects[name] > 60}
    assert not grown.keys() - {"ReferenceType", "builtin_function_or_method"}  # others' own caches
    assert more_objects.total() - objects.total() < 500
    assert more_resident - resident < 48 * MIB  # allocators keep some, the more after others
    assert conversations._answers._live == {}
    assert conversations._answers._one_shot == []


def counted() -> tuple[Counter[str], int]:
    gc.collect()
    kinds = Counter(type(one).__name__ for one in gc.get_objects())
    return kinds, psutil.Process().memory_info().rss


def test_an_answer_keeps_one_frame_however_long_it_takes() -> None:
    """Ten frames a second for minutes would be more than the cache of a small model."""
    live = LiveAnswer("chat", 1, "why?")
    prompt_listener = live.events()
    made = []

    class Frame(dict[str, Any]):
        pass

    for number in range(100):
        frame = Frame(type="frame", number=number)
        made.append(weakref.ref(frame))
        live.add(frame)
        assert next(prompt_listener)["number"] == number
        del frame
        live.add({"type": "token", "text": "x"})
        assert next(prompt_listener)["type"] == "token"
    live.add({"type": "done"}, "done")
    assert [one() is not None for one in made] == [False] * 99 + [True]
    late = list(live.events())
    assert len(late) == live.wait_change(-1, 0) == 201
    assert {one["number"] for one in late if one["type"] == "frame"} == {99}


def test_who_watches_an_answer_keeps_it_and_nobody_else(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    kept = []
    for live in (
        conversations.ask(chat, "hello"),
        conversations.complete([{"role": "user", "content": "hi"}], {}),
    ):
        answered(live)
        kept.append(weakref.ref(live))
    del live
    until = time.monotonic() + 10
    while any(one() for one in kept) and time.monotonic() < until:  # their threads end with them
        time.sleep(0.01)
        gc.collect()
    assert [one() for one in kept] == [None, None]


def test_settings_changed_while_the_model_loads_hold_for_it(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvchat.engine import open as opening

    half_way, go_on = threading.Event(), threading.Event()
    load = opening.load_model

    def slow_load(*args: Any, **named: Any) -> Any:
        half_way.set()
        assert go_on.wait(60)
        return load(*args, **named)

    monkeypatch.setattr(opening, "load_model", slow_load)
    conversations = Conversations(resolve(flags={"model": str(tiny_path)}), tmp_path / "other")
    try:
        assert half_way.wait(60)
        conversations.apply({"memory_budget": 300 * MIB, "ladder": ("drop_idle",)})
        go_on.set()
        conversations.wait_ready(60)
        engine = conversations._worker.engine
        assert engine is not None
        assert (engine.limits.budget, engine.limits.ladder) == (300 * MIB, ("drop_idle",))
    finally:
        go_on.set()
        conversations.close()


def test_settings_from_two_tabs_at_once_are_all_kept(start: Start) -> None:
    conversations = start()
    changes: list[dict[str, object]] = [
        {"top_k": 7}, {"top_p": 0.5}, {"min_p": 0.25}, {"max_new_tokens": 99}, {"seed": 3},
    ]  # fmt: skip
    together = threading.Barrier(len(changes))

    def one_tab(change: dict[str, object]) -> None:
        together.wait(10)
        conversations.apply(change)

    with ThreadPoolExecutor(len(changes)) as tabs:
        for one in [tabs.submit(one_tab, change) for change in changes]:
            one.result(20)
    for change in changes:
        for name, value in change.items():
            assert getattr(conversations.settings, name) == value
            assert name in conversations._saved._path.read_text()


def test_settings_that_cannot_be_kept_do_not_hold(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = start()

    def full(*_: object, **__: object) -> None:
        raise StoreError("settings_not_kept", why="no space")

    with monkeypatch.context() as broken:
        broken.setattr("kvchat.chat.saved.SavedSettings.keep", full)
        with pytest.raises(StoreError):
            conversations.apply({"top_k": 7})
    assert conversations.settings.top_k == 0


def test_frames_are_drawn_while_chats_change(start: Start) -> None:
    """Screens ask for frames all the time; what they show of a chat may change at any moment."""
    conversations = start()
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "hello"))
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for pinned in (True, False):
                conversations.pin_turn(chat, 1, pinned=pinned)
                (turn,) = conversations.frame(chat)["turns"]
                assert turn["pinned"] is pinned
                assert conversations.history(chat)[0].pinned is pinned

    def look() -> None:
        for _ in range(100):
            (turn,) = conversations.frame(chat)["turns"]
            assert turn["prefill_s"] is not None

    with ThreadPoolExecutor(4) as threads:
        changing = threads.submit(change)
        looking = [threads.submit(look) for _ in range(3)]
        wait(looking, 60)
        over.set()
    for one in (changing, *looking):
        one.result(0)
