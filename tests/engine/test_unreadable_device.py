"""A device that stops telling of its memory in mid chat: answers go on, and are the same ones."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kvchat.device.guarded import GuardedProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Event, Token
from kvchat.engine.limits import Limits
from kvchat.models.load import LoadedModel
from kvchat.settings import RUNGS
from kvchat.units import GIB, MIB
from tests.device.liars import LIES, Liar
from tests.engine.test_engine import done, random_ids, request

ROOMY = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
FIRST, SECOND, THIRD = random_ids(140, 1), random_ids(200, 2), random_ids(90, 3)


@pytest.fixture
def liar() -> Iterator[Liar]:
    made = Liar(ROOMY)
    yield made
    made.thaw()


@pytest.fixture
def engine(load_tiny: Callable[[str], LoadedModel], liar: Liar) -> Engine:
    probe = GuardedProbe(liar, time_limit_s=0.05)
    return Engine(load_tiny("llama"), probe, Limits(None, GIB, RUNGS))


def ask(
    engine: Engine, ids: tuple[int, ...], then: Callable[[], None] | None = None
) -> list[Event]:
    """`then`: what happens after the third word."""
    events = []
    for event in engine.run(request(ids, prefill_chunk=64)):
        events.append(event)
        if then is not None and sum(isinstance(one, Token) for one in events) == 3:
            then()
    return events


@pytest.mark.parametrize("lie", [*LIES, "freezes"])
def test_no_answer_is_lost_and_none_is_another(engine: Engine, liar: Liar, lie: str) -> None:
    expected = [done(ask(engine, ids)).ids for ids in (FIRST, SECOND, THIRD)]

    def begin() -> None:
        if lie == "freezes":
            liar.freeze()
        else:
            liar.lie = LIES[lie]

    assert done(ask(engine, FIRST, begin)).ids == expected[0]
    assert done(ask(engine, SECOND)).ids == expected[1]
    frame = engine.frame()
    assert frame["device"]["age_s"] > 0
    assert "free" in frame["estimated"]
    assert frame["device"]["total"] == ROOMY.total
    liar.lie = lambda true: true
    liar.thaw()
    assert done(ask(engine, THIRD)).ids == expected[2]
    engine.close_text()
    engine.check()


def test_what_was_taken_since_the_last_reading_is_not_free_any_more(
    engine: Engine, liar: Liar
) -> None:
    """The last reading stands, less what the cache has grown by since."""
    liar.true = replace(ROOMY, free=2 * GIB)
    allowed = engine.room.snapshot().allowed_bytes
    liar.lie = LIES["raises"]
    ask(engine, FIRST)
    now = engine.room.snapshot()
    assert now.pool_bytes > 0
    assert now.allowed_bytes == allowed
    assert now.device.free == 2 * GIB - now.pool_bytes


def test_memory_that_another_program_takes_between_loading_and_reading_is_counted(
    engine: Engine, liar: Liar
) -> None:
    """C25: the plan follows what is free at that moment."""
    before = engine.room.snapshot().allowed_bytes
    liar.true = replace(ROOMY, free=ROOMY.free - 4 * GIB, other_processes=4 * GIB)
    assert engine.room.snapshot().allowed_bytes == before - 4 * GIB
    liar.true = replace(ROOMY, free=GIB + 3 * MIB)
    now = engine.room.snapshot()
    assert now.allowed_bytes == now.own_bytes + 3 * MIB
    done(ask(engine, THIRD))
    assert engine.pool.device_bytes <= 3 * MIB


def test_what_torch_keeps_unused_can_be_had(engine: Engine, liar: Liar) -> None:
    """After a step its activations are free in the allocator, not in the driver's figure."""
    before = engine.room.snapshot().allowed_bytes
    liar.true = replace(ROOMY, free=ROOMY.free - GIB, reserved=2 * GIB, allocated=GIB)
    assert engine.room.snapshot().allowed_bytes == before
