"""Probes that jump, fall to zero, freeze and overstate: no answer ends in a lack of memory that
there is not, none is another one, and nothing goes to and fro more often than what it follows.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Token, Took
from kvchat.engine.limits import Limits
from kvchat.kvcache.blocks import FP
from kvchat.kvcache.pool import Storing
from kvchat.kvcache.spans import Span
from kvchat.memory.formats import FormatPair
from kvchat.models.load import LoadedModel
from kvchat.settings import RUNGS
from kvchat.units import GIB, KIB, MIB
from tests.chaos.refusing import refusing
from tests.engine.test_engine import done, random_ids, request
from tests.planner.test_properties import num_flips, num_swings

LoadAs = Callable[[str], LoadedModel]
IDS = random_ids(400, 81)
OLD = ((0, 320),)
SPANS = (Span("turn", "old", 1, 0, 320), Span("turn", "now", 2, 320, 400))
LOSSLESS = ("drop_idle", "shrink_chunk", "offload")
DOWN = ("offload", "requantize", "requantize_from")
UP = ("bring_back", "raise")


class Device:
    """A device of so many bytes, beside other programs that take what `others` says. Its probe
    tells the truth, unless `lie` makes something else of it.
    """

    def __init__(self, total: int, lie: Callable[[int], int] = lambda free: free) -> None:
        self.total, self.others, self.lie = total, 0, lie
        self.engine: Engine | None = None
        self.num_readings = 0

    @property
    def free(self) -> int:
        own = 0 if self.engine is None else self.engine.pool.device_bytes
        return max(0, self.total - self.others - own)

    def read(self) -> DeviceMemory:
        self.num_readings += 1
        free = self.lie(self.free)
        return DeviceMemory("cpu", 64 * GIB, free, 0, 0, self.others, float(self.num_readings))

    def allocating(self) -> AbstractContextManager[None]:
        """What does not fit is refused when it is allocated, whatever was said."""
        return refusing(lambda num_bytes: num_bytes <= self.free)


def engine_on(
    loaded: LoadedModel, device: Device, ladder: Sequence[str] = LOSSLESS, **limits: Any
) -> Engine:
    known = Limits(None, 0, tuple(ladder), Storing(FP, FP), host_quota=GIB)
    device.engine = Engine(loaded, device, replace(known, **limits))
    return device.engine


def answer(engine: Engine, ids: tuple[int, ...] = IDS, **changes: Any) -> list[Event]:
    asked = request(ids, **({"max_new_tokens": 6, "prefill_chunk": 64} | changes))
    return list(engine.run(replace(asked, spans=SPANS, old=OLD)))


def codes(events: Sequence[Event]) -> list[str]:
    return [event.entry["code"] for event in events if isinstance(event, Took)]


def text_bytes(loaded: LoadedModel) -> int:
    """What the text needs, activations and all."""
    return engine_on(loaded, Device(GIB)).costs.needed_bytes(len(IDS) + 6, 64)


def honest(loaded: LoadedModel, ids: tuple[int, ...] = IDS) -> tuple[int, ...]:
    return done(answer(engine_on(loaded, Device(GIB)), ids)).ids


# --- lies about how much is free ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "sliding"])
@pytest.mark.parametrize("lie", ["overstates", "freezes"])
def test_what_is_not_there_is_found_out_and_made_do_without(
    loaded_as: LoadAs, kind: str, lie: str
) -> None:
    """Texts that fit one by one, not beside the idle ones: the allocator's word counts."""
    loaded = loaded_as(kind)
    alone = engine_on(loaded, Device(GIB))
    asked = request(IDS, max_new_tokens=6, prefill_chunk=64)
    most = max(alone.pool.device_bytes for _ in alone.run(asked))
    device = Device(most * 5 // 4)
    first = device.free
    device.lie = (lambda _: 32 * GIB) if lie == "overstates" else (lambda _: first)
    engine = engine_on(loaded, device)
    taken = []
    for seed in range(5):
        ids = random_ids(400, 90 + seed)
        with device.allocating():
            events = answer(engine, ids)
        assert done(events).ids == honest(loaded, ids), seed
        taken += codes(events)
    assert ("retry" if lie == "overstates" else "into_headroom") in taken
    assert any(code.startswith("drop_idle") for code in taken)
    engine.close_text()
    engine.check()


@pytest.mark.parametrize("kind", ["full", "sliding"])
@pytest.mark.parametrize("seed", range(3))
def test_a_probe_that_jumps_costs_no_answer(loaded_as: LoadAs, kind: str, seed: int) -> None:
    """Anything between nothing and all of it, at each reading."""
    loaded = loaded_as(kind)
    chance = torch.Generator().manual_seed(seed)
    device = Device(4 * MIB, lambda free: int(float(torch.rand((), generator=chance)) ** 3 * free))
    engine = engine_on(loaded, device)
    for number in range(4):
        ids = random_ids(400, 90 + number)
        assert done(answer(engine, ids)).ids == honest(loaded, ids), number
    engine.close_text()
    engine.check()


@pytest.mark.parametrize("kind", ["full", "sliding"])
@pytest.mark.parametrize("at", [1, 40, 120])
def test_a_probe_that_falls_to_zero_in_mid_answer_costs_no_answer(
    loaded_as: LoadAs, monkeypatch: pytest.MonkeyPatch, kind: str, at: int
) -> None:
    """For the rest of the answer, and for the next one."""
    loaded = loaded_as(kind)
    monkeypatch.setattr(loaded, "eos_token_ids", frozenset())
    expected = done(answer(engine_on(loaded, Device(GIB)), max_new_tokens=150))
    device = Device(GIB)
    engine = engine_on(loaded, device)
    made, last = 0, None
    asked = replace(request(IDS, max_new_tokens=150, prefill_chunk=64), spans=SPANS, old=OLD)
    for event in engine.run(asked):
        made += isinstance(event, Token)
        if made == at:
            device.lie = lambda _: 0
        last = event
    assert isinstance(last, Done), last
    assert last.ids == expected.ids
    assert isinstance(answer(engine, random_ids(20, 7))[-1], Done)
    device.lie = lambda free: free
    assert done(answer(engine)).ids == expected.ids[:6]


def test_free_memory_that_falls_in_mid_answer_is_acted_upon(
    loaded_as: LoadAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A game starts: at the next block boundary idle slabs go back and old text goes to the host;
    it comes back when the game has ended.
    """
    loaded = loaded_as("full")
    monkeypatch.setattr(loaded, "eos_token_ids", frozenset())
    expected = done(answer(engine_on(loaded, Device(GIB)), max_new_tokens=150))
    device = Device(GIB)
    engine = engine_on(loaded, device)
    answer(engine, random_ids(300, 82))  # idle beside
    boundary = engine.pool.geometries[0].block_bytes
    made, taken = 0, []
    asked = replace(request(IDS, max_new_tokens=150, prefill_chunk=64), spans=SPANS, old=OLD)
    for event in engine.run(asked):
        made += isinstance(event, Token)
        if made == 1:
            device.others = device.total - engine.pool.device_bytes - boundary // 2
        if isinstance(event, Took):
            taken.append((event.entry["code"], made))
        last = event
    assert done([last]).ids == expected.ids
    assert {code for code, _ in taken} <= {
        "drop_idle",
        "drop_idle_tails",
        "drop_idle_to_host",
        "offload",
    }
    assert taken, "nothing was done about it"
    assert taken[0][1] <= 1 + 64 + 64, "at the next block boundary"
    assert engine.pool.host_bytes > 0
    device.others = 0
    assert done(answer(engine)).ids == expected.ids[:6]
    text = engine.room.text
    assert text is not None
    assert {b.tier for table in text.sequence.tables for b in table if b is not None} == {"device"}


# --- to and fro -----------------------------------------------------------------------------------

# What other programs took of a machine's memory, every half minute while tests ran on it: MiB then,
# tenths of it as KiB for the models here.
RECORDED = (
    109, 0, 91, 107, 0, 99, 103, 0, 14, 91, 116, 0, 132, 153, 145, 125, 131, 163, 90, 94, 71, 18,
    43, 136, 1, 49, 11, 28, 206, 229, 225, 213, 213, 225, 161, 178, 234, 238, 230, 226, 240, 228,
    226, 353,
)  # fmt: skip


def follow(engine: Engine, device: Device, trace: Sequence[int]) -> tuple[list[int], list[int]]:
    """A turn at each point: which way what was done went, and what was allowed then."""
    directions, allowed = [], []
    for others in trace:
        device.others = others
        events = answer(engine, max_new_tokens=2)
        assert isinstance(events[-1], Done), events[-1]
        allowed.append(engine.last_snapshot.allowed_bytes)
        directions += [1 if c in DOWN else -1 for c in codes(events) if c in (*DOWN, *UP)]
    return directions, allowed


def check_trace(loaded: LoadedModel, ladder: Sequence[str], trace: Sequence[int]) -> None:
    device = Device(text_bytes(loaded) + 100 * KIB)
    less = "requantize" in ladder
    engine = engine_on(
        loaded,
        device,
        ladder,
        storing=Storing(FP, FormatPair.parse("int4/int4") if less else FP),
        lower=tuple(map(FormatPair.parse, ("int8", "int4/int4"))) if less else (),
        keep_originals=less,
    )
    directions, allowed = follow(engine, device, trace)
    hysteresis = min(allowed) // 16
    assert num_flips(directions) <= num_swings(allowed, hysteresis)
    engine.close_text()
    engine.check()


@pytest.mark.parametrize("ladder", [LOSSLESS, RUNGS], ids=["offload", "all"])
def test_a_recorded_afternoon_moves_nothing_to_and_fro(
    loaded_as: LoadAs, ladder: Sequence[str]
) -> None:
    check_trace(loaded_as("full"), ladder, [KIB * one for one in RECORDED])


@pytest.mark.parametrize("ladder", [LOSSLESS, RUNGS], ids=["offload", "all"])
def test_whatever_others_take_nothing_goes_to_and_fro(
    loaded_as: LoadAs, ladder: Sequence[str]
) -> None:
    loaded = loaded_as("full")

    @settings(max_examples=8, deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 300 * KIB), min_size=3, max_size=8))
    def check(trace: list[int]) -> None:
        check_trace(loaded, ladder, trace)

    check()
