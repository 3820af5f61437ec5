"""A chat whose older text lies on the host, or was stored in less and raised again, goes on as one
that nothing happened to.
"""

from collections.abc import Callable

import pytest

from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Token
from kvchat.kvcache.blocks import FP, Block
from kvchat.kvcache.pool import PoolFull
from kvchat.memory.formats import FormatPair
from kvchat.units import GIB
from tests.engine.conftest import MakeEngine
from tests.engine.test_engine import done, random_ids, request

INT8 = FormatPair.parse("int8")
FIRST, QUESTION = random_ids(300, 31), random_ids(40, 32)


def turn(engine: Engine, ids: tuple[int, ...], at_each: Callable[[], None] | None = None) -> Done:
    """One reply; `at_each` is called after each of its tokens."""
    events: list[Event] = []
    for event in engine.run(request(ids)):
        events.append(event)
        if at_each is not None and isinstance(event, Token):
            at_each()
    return done(events)


def held(engine: Engine, tier: str = "device") -> list[Block]:
    """What the open text holds there, the oldest first."""
    found = [one for one in engine.pool.index.all() if one.ref_count and one.tier == tier]
    return sorted(found, key=lambda one: one.depth)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_a_chat_with_its_old_turns_on_the_host_writes_the_same(
    make_engine: MakeEngine, kind: str
) -> None:
    """They go there one by one while a reply is written, and stay for the next turn."""
    quiet = make_engine(kind)
    first = turn(quiet, FIRST)
    longer = (*FIRST, *first.ids, *QUESTION)
    second = turn(quiet, longer)
    engine = make_engine(kind)
    engine.pool.host_limit_bytes = GIB

    def offload_one() -> None:
        for block in held(engine)[:1]:
            assert engine.pool.offload(block) == block.nbytes

    assert turn(engine, FIRST, offload_one).ids == first.ids
    assert held(engine, "host")
    again = turn(engine, longer, offload_one)
    assert again.ids == second.ids
    assert again.figures.reused_tokens == second.figures.reused_tokens
    frame = engine.frame()
    assert frame["kv"]["host_bytes"] == engine.pool.host_bytes > 0
    assert {row["tier"] for row in frame["spans"]} <= {"host", "mixed"}
    told = sum(row["bytes"] for row in frame["spans"])
    kv = frame["kv"]
    assert told + kv["slack_bytes"] + kv["hot_window_bytes"] == kv["device_bytes"]
    assert sum(row["host_bytes"] for row in frame["spans"]) == sum(
        block.nbytes for block in held(engine, "host")
    )
    engine.close_text()
    engine.pool.check_integrity(0)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_under_a_limit_the_host_carries_what_the_device_cannot(
    make_engine: MakeEngine, kind: str
) -> None:
    """The device has room for two blocks beside the hot window: the others go to the host."""
    quiet = make_engine(kind)
    first = turn(quiet, FIRST)
    engine = make_engine(kind)
    pool, geometries = engine.pool, engine.pool.geometries
    pool.host_limit_bytes = GIB
    text = engine.local.open(FIRST, 64)
    most = sum(one.block_bytes for one in geometries) * 2
    pool.limit_bytes = pool.hot_bytes + most
    offloaded = 0

    def step(ids: tuple[int, ...]) -> int:
        nonlocal offloaded
        try:
            return int(engine.local.step(text, ids).argmax())
        except PoolFull:
            offloaded += sum(pool.offload(block) for block in held(engine))
        return int(engine.local.step(text, ids).argmax())

    while text.num_cached < len(FIRST):
        token = step(FIRST[text.num_cached : text.num_cached + 64])
    written = [token]
    while len(written) < len(first.ids):
        written.append(step((written[-1],)))
    assert offloaded >= most
    assert pool.device_bytes <= pool.limit_bytes
    assert tuple(written) == first.ids
    engine.local.close(text)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_what_was_stored_in_less_and_raised_again_writes_the_same(
    make_engine: MakeEngine, kind: str
) -> None:
    """Between two turns all goes to int8 and back: the same tokens, and all of it is reused, also
    by a text that reuses nothing but what is as computed.
    """
    quiet = make_engine(kind)
    first = turn(quiet, FIRST)
    longer = (*FIRST, *first.ids, *QUESTION)
    second = turn(quiet, longer)
    engine = make_engine(kind)
    pool = engine.pool
    pool.host_limit_bytes, pool.keep_originals = GIB, True
    turn(engine, FIRST)
    blocks = [one for one in pool.index.all() if one.tier == "device"]
    freed = sum(pool.requantize(one, pool.geometries[one.group].served(INT8)) for one in blocks)
    assert freed > 0
    assert sum(pool.raise_block(one, FP) for one in blocks) == freed
    again = turn(engine, longer)
    assert again.ids == second.ids
    assert again.figures.reused_tokens == second.figures.reused_tokens
    engine.close_text()
    pool.check_integrity(0)
