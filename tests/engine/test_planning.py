"""What planning costs while an answer is written: nothing of torch, and no reading between the
edges of blocks.
"""

import pytest

from kvchat.device.memory import DeviceMemory
from kvchat.engine.events import Prefilled, Token
from kvchat.engine.reply import Reply
from kvchat.engine.room import Room
from kvchat.memory.formats import BLOCK_TOKENS
from tests.engine.conftest import MakeEngine
from tests.engine.test_engine import random_ids, request
from tests.faults import Failing

NEW = 200


def test_the_device_is_read_at_the_edges_of_blocks_only(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    monkeypatch.setattr(engine.loaded, "eos_token_ids", frozenset())
    engine._clock = lambda: 0.0  # no frames, which are drawn ten times a second
    right, readings, made = engine.room.probe.read, [], 0

    def read() -> DeviceMemory:
        readings.append(made)
        return right()

    monkeypatch.setattr(engine.room.probe, "read", read)
    for event in engine.run(request(random_ids(100), max_new_tokens=NEW)):
        made += isinstance(event, Token)
    assert made == NEW
    while_written = [at for at in readings if 0 < at < NEW]
    assert 0 < len(set(while_written)) <= NEW // BLOCK_TOKENS + 1


def test_planning_a_step_calls_nothing_of_torch(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it cannot wait for a device either. Any call of torch in it would fail here."""
    engine = make_engine(budget=make_engine().costs.needed_bytes(700, 64))
    planned, right = 0, Room.make

    def make(room: Room, reply: Reply, *args: int, **named: bool):
        nonlocal planned
        planned += 1
        with Failing(1, 10**9):
            taken = list(right(room, reply, *args, **named))
        assert taken == []
        return iter(taken)

    monkeypatch.setattr(Room, "make", make)
    events = list(engine.run(request(random_ids(300), max_new_tokens=150, prefill_chunk=64)))
    assert sum(isinstance(event, Prefilled) for event in events) == 5
    assert planned > 5
