"""Other programs take memory while a text is written, or while nothing is asked, and give it
back.
"""

from dataclasses import replace

import pytest

from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Request, Token, Took
from kvchat.engine.room import CALM_BLOCKS
from kvchat.kvcache.blocks import FP
from kvchat.kvcache.pool import Storing
from kvchat.kvcache.spans import Span
from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.units import GIB, KIB
from tests.engine.test_engine import MakeEngine, random_ids

IDS = random_ids(500, 21)
SPANS = (Span("turn", "old", 1, 0, 400), Span("turn", "now", 2, 400, 500))
HEADROOM = 256 * KIB
ASKED = Request(IDS, SPANS, 900, 64, old=((0, 400),))


class Shared:
    """A device of which others use what `others` says; the truth about the rest."""

    def __init__(self, total: int) -> None:
        self.total, self.others, self.num_reads = total, 0, 0
        self.engine: Engine | None = None

    def read(self) -> DeviceMemory:
        self.num_reads += 1
        own = self.engine.pool.device_bytes if self.engine is not None else 0
        free = max(0, self.total - self.others - own)
        return DeviceMemory("cpu", self.total, free, 0, 0, self.others, float(self.num_reads))


@pytest.fixture
def shared() -> Shared:
    return Shared(64 * GIB)


def moving(make_engine: MakeEngine, shared: Shared, **limits: object) -> Engine:
    known = make_engine()
    changes = {"storing": Storing(FP, FP), "host_quota": GIB, "headroom": HEADROOM} | limits
    engine = Engine(known.loaded, shared, replace(known.limits, **changes))  # type: ignore[arg-type]
    shared.engine = engine
    needed = engine.costs.needed_bytes(1400, 64) - engine.loaded.weight_bytes
    shared.total = needed + HEADROOM + 300 * KIB
    return engine


def codes(events: list[Event]) -> list[str]:
    return [one.entry["code"] for one in events if isinstance(one, Took)]


def test_in_mid_answer_it_makes_room_at_the_next_block_and_takes_it_back_later(
    make_engine: MakeEngine, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = moving(make_engine, shared)
    monkeypatch.setattr(engine.loaded, "eos_token_ids", frozenset())
    events, made, taken, at = list[Event](), 0, 0, dict[str, int]()
    for event in engine.run(ASKED):
        events.append(event)
        made += isinstance(event, Token)
        if isinstance(event, Took):
            at.setdefault(event.entry["code"], made)
            reasons = {"offload": "others_grew", "bring_back": "fits"}
            code = event.entry["code"]
            assert event.entry["reason"] == reasons.get(code, "out_of_memory")
        if isinstance(event, Token) and made == 100:
            shared.others = taken = shared.read().free
        if isinstance(event, Token) and made == 100 + BLOCK_TOKENS + 1:
            assert shared.read().free >= HEADROOM, "what was moved went back to the device"
            assert shared.others == taken
        if isinstance(event, Token) and made == 250:
            shared.others = 0
    assert isinstance(events[-1], Done)
    assert 100 < at["offload"] <= 100 + BLOCK_TOKENS
    assert at["bring_back"] >= at["offload"] + (CALM_BLOCKS - 1) * BLOCK_TOKENS
    assert codes(events).count("offload") <= 2
    assert engine.room.text is not None
    tiers = {one.tier for table in engine.room.text.sequence.tables for one in table if one}
    assert tiers == {"device"}
    engine.close_text()
    engine.check()


def test_what_is_written_is_the_same_as_beside_nobody(
    make_engine: MakeEngine, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = moving(make_engine, shared)
    monkeypatch.setattr(engine.loaded, "eos_token_ids", frozenset())
    alone = [one.id for one in make_engine().run(ASKED) if isinstance(one, Token)]
    written, taken = list[int](), list[str]()
    for event in engine.run(ASKED):
        if isinstance(event, Took):
            taken.append(event.entry["code"])
        if isinstance(event, Token):
            written.append(event.id)
            if len(written) % 300 == 20:
                shared.others = shared.read().free
            elif len(written) % 300 == 150:
                shared.others = 0
    assert "offload" in taken
    assert written == alone


def test_while_nothing_is_asked_what_is_idle_goes_back_to_the_device(
    make_engine: MakeEngine, shared: Shared
) -> None:
    engine = moving(make_engine, shared, host_quota=0)
    short = replace(ASKED, max_new_tokens=5)
    list(engine.run(short))
    engine.close_text()
    before = engine.pool.device_bytes
    engine.trim()
    assert engine.pool.device_bytes == before, "nobody needs it"
    shared.others = shared.read().free
    engine.trim()
    assert before - engine.pool.device_bytes >= HEADROOM
    engine.check()
    shared.others = 0
    events = list(engine.run(short))
    assert isinstance(events[0], Took)
    assert (events[0].entry["code"], events[0].entry["reason"]) == ("drop_idle", "others_grew")
    assert isinstance(events[-1], Done)
    assert codes(list(engine.run(short))).count("drop_idle") == 0, "told once"


@pytest.mark.parametrize("name", ["budget", "headroom"])
def test_what_the_settings_take_is_not_said_of_other_programs(
    make_engine: MakeEngine, shared: Shared, name: str
) -> None:
    engine = moving(make_engine, shared, host_quota=0)
    short = replace(ASKED, max_new_tokens=5)
    list(engine.run(short))
    engine.close_text()
    engine.trim()
    held = engine.room.snapshot()
    wanted = {"budget": held.own_bytes - HEADROOM, "headroom": held.device.free + HEADROOM}
    engine.limits = replace(engine.limits, **{name: wanted[name]})
    engine.trim()
    assert held.own_bytes - engine.room.snapshot().own_bytes >= HEADROOM
    engine.limits = replace(engine.limits, budget=None, headroom=HEADROOM)
    events = list(engine.run(short))
    assert isinstance(events[0], Took)
    assert (events[0].entry["code"], events[0].entry["reason"]) == ("drop_idle", "settings_less")
    engine.close_text()
    shared.others = shared.read().free
    engine.trim()
    shared.others = 0
    took = next(one for one in engine.run(short) if isinstance(one, Took))
    assert took.entry["reason"] == "others_grew"


def test_without_that_rung_what_is_idle_stays(make_engine: MakeEngine, shared: Shared) -> None:
    engine = moving(make_engine, shared, host_quota=0, ladder=("truncate_turns",))
    list(engine.run(replace(ASKED, max_new_tokens=5)))
    engine.close_text()
    before = engine.pool.device_bytes
    shared.others = shared.total
    engine.trim()
    assert engine.pool.device_bytes == before
