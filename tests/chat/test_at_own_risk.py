"""A question refused for want of memory is sent all the same, under the guard."""

import time
from dataclasses import replace

from kvchat.chat.at_own_risk import without_margin
from kvchat.chat.conversations import Conversations
from kvchat.device.fake import FakeProbe
from kvchat.device.guarded import GuardedProbe
from kvchat.planner.plan import LEAST_CHUNK
from kvchat.units import MIB
from tests.chat.conftest import Start

LONG = "The cat sat on the mat. " * 60


def short_of_room(talks: Conversations, by_bytes: int) -> None:
    """So much is free that the long question fits by so many bytes, were nothing left free."""
    talks.wait_ready(60)
    engine = talks._engine
    assert engine is not None
    room = engine.room
    ids = engine.loaded.tokenizer(LONG, add_special_tokens=False)["input_ids"]
    needed = engine.costs.needed_bytes(len(ids) + 200, LEAST_CHUNK)
    now = room.snapshot()
    free = max(0, needed + by_bytes - now.own_bytes)
    reading = replace(
        now.device, total=64 * now.device.total, free=free, other_processes=0, at_s=1.0
    )
    room.probe = GuardedProbe(FakeProbe([reading]))
    until_s = time.monotonic() + 30
    while talks.frame()["at_s"] != reading.at_s:  # what was measured before is not the newest
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_the_headroom_is_used_when_a_person_says_so(start: Start) -> None:
    talks = start(headroom=64 * MIB, max_new_tokens=4)
    short_of_room(talks, MIB)
    chat = talks.new_chat()
    refused = talks.ask(chat, LONG)
    assert refused.wait_ended(60)
    assert refused.error is not None
    assert refused.error.code == "prompt_over_memory"
    again = talks.regenerate(chat, 1)
    assert again.wait_ended(60)
    assert again.error is not None  # nothing has changed but that it is said
    sent = talks.regenerate(chat, 1, way="at_own_risk")
    assert sent.wait_ended(60)
    assert sent.error is None
    assert sent.figures is not None
    assert sent.figures["reply_tokens"] > 0
    codes = [row["code"] for row in talks.ledger_since(chat, 0)]
    assert "into_headroom" in codes  # and it is told


def test_over_the_budget_it_stays_refused(start: Start) -> None:
    talks = start(headroom=0, max_new_tokens=4)
    engine = talks._engine
    assert engine is not None
    talks.apply({"memory_budget": engine.loaded.weight_bytes + 2 * MIB})
    chat = talks.new_chat()
    sent = talks.ask(chat, LONG * 3)
    assert sent.wait_ended(60)
    assert sent.error is not None
    again = talks.regenerate(chat, 1, way="at_own_risk")
    assert again.wait_ended(60)
    assert again.error is not None
    assert again.error.code in ("prompt_over_memory", "prompt_over_length")


def test_without_the_margin_only_the_margin_differs(start: Start) -> None:
    engine = start(headroom=64 * MIB)._engine
    assert engine is not None
    now = engine.room.snapshot()
    loose = without_margin(now)
    assert loose.allowed_bytes == now.allowed_bytes + 64 * MIB
    assert replace(loose, headroom=now.headroom, found_bytes=now.found_bytes) == now
