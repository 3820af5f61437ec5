"""Old text stored in less when memory is short: as much as must be, of nothing else, and said."""

from dataclasses import replace

import pytest

from kvchat.attention import cpu
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Request, Token, Took
from kvchat.kvcache.blocks import FP, Block
from kvchat.kvcache.pool import Storing
from kvchat.kvcache.spans import Span, whole_blocks
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from kvchat.planner.costs import Relief
from tests.engine.test_budgets import used_bytes
from tests.engine.test_engine import MakeEngine, done, random_ids

INT8, INT6, INT4 = LOWER = tuple(map(FormatPair.parse, ("int8", "int6/int4", "int4/int4")))
CHUNK, REPLY, SINKS = 64, 70, 64
IDS = random_ids(1100)
OLD = ((200, 700),)
SPANS = (
    Span("system", "system", None, 0, 100),
    Span("turn", "pinned", 1, 100, 200),
    Span("turn", "old", 2, 200, 700),
    Span("turn", "now", 3, 700, 1100),
)


def asked(**changes: object) -> Request:
    known = {"max_new_tokens": REPLY, "prefill_chunk": CHUNK, "old": OLD, "chat": "one"} | changes
    return Request(IDS, SPANS, **known)  # type: ignore[arg-type]


def lossy(engine: Engine, budget: int | None = None) -> Engine:
    engine.limits = replace(
        engine.limits, lower=LOWER, storing=Storing(FP, INT4, SINKS), budget=budget
    )
    return engine


def budget_for(engine: Engine, pair: FormatPair) -> int:
    """What the text needs with all of its old blocks in that pair."""
    blocks = len(whole_blocks(OLD, SINKS, len(IDS) - pair.hot_tokens))
    total = len(IDS) + REPLY
    return engine.costs.footprint(total, CHUNK, 0, Relief(pair), blocks).total


def measures(events: list[Event]) -> list[dict[str, object]]:
    return [event.entry for event in events if isinstance(event, Took)]


def stored(engine: Engine) -> list[tuple[int, Block]]:
    text = engine.room.text
    assert text is not None
    tables = text.sequence.tables
    return [(i, b) for table in tables for i, b in enumerate(table) if b is not None]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("pair", LOWER, ids=str)
def test_a_text_that_fits_in_less_is_made_within_its_bytes(
    make_engine: MakeEngine, kind: str, pair: FormatPair
) -> None:
    budget = budget_for(lossy(make_engine(kind)), pair)
    assert budget < make_engine(kind).costs.needed_bytes(len(IDS) + REPLY, CHUNK)
    engine = lossy(make_engine(kind), budget)
    events = []
    for event in engine.run(asked()):
        assert used_bytes(engine) <= budget
        events.append(event)
    assert isinstance(events[-1], Done), events[-1]
    entries = measures(events)
    assert entries
    for entry in entries:
        assert str(entry["code"]).startswith("requantize")
        assert entry["turns"] == ["old"]
        assert int(str(entry["bytes_measured"])) > 0
    for i, block in stored(engine):
        if i not in whole_blocks(OLD):
            assert block.pair == FP, "only old text is stored in less"
        assert block.pair.at_least(pair), "no less than was needed"
    assert {block.pair for _, block in stored(engine)} > {FP}
    engine.close_text()
    engine.pool.check_integrity(0)


def test_without_the_rung_nothing_is_stored_in_less(make_engine: MakeEngine) -> None:
    budget = budget_for(lossy(make_engine()), INT4)
    engine = lossy(make_engine(rungs=("drop_idle", "shrink_chunk")), budget)
    events = list(engine.run(asked()))
    assert not isinstance(events[-1], Done)
    assert not [e for e in measures(events) if str(e["code"]).startswith("requantize")]


def test_with_room_nothing_is_touched(make_engine: MakeEngine) -> None:
    engine = lossy(make_engine())
    assert measures(list(engine.run(asked()))) == []
    assert {block.pair for _, block in stored(engine)} == {FP}


def test_it_writes_what_a_run_with_that_measure_at_that_token_writes(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same blocks stored in less by hand, before the same token: the same tokens follow."""
    squeezed = lossy(make_engine())
    monkeypatch.setattr(squeezed.loaded, "eos_token_ids", frozenset())
    squeezed = lossy(squeezed, squeezed.costs.needed_bytes(len(IDS) + 300, 1))
    long = asked(max_new_tokens=600, prefill_chunk=1)
    events = list(squeezed.run(long))
    entries = [e for e in measures(events) if e["code"] == "requantize_from"]
    assert entries, "it was short in mid answer"

    free = lossy(make_engine())
    at = {e["arguments"]["from_token"]: e for e in entries}  # type: ignore[index]
    made = 0
    for event in free.run(long):
        if isinstance(event, Token):
            made += 1
            if made in at:
                by_hand(free, at[made])
        last = event
    assert isinstance(last, Done)
    assert last.ids == done(events).ids


def by_hand(engine: Engine, entry: dict[str, object]) -> None:
    arguments = entry["arguments"]
    assert isinstance(arguments, dict)
    pair = FormatPair.parse(arguments["formats"])
    places = whole_blocks(OLD, SINKS)
    todo = [b for i, b in stored(engine) if i in places and not pair.at_least(b.pair)]
    for block in todo[: arguments["tokens"] // BLOCK_TOKENS]:
        engine.pool.requantize(block, pair)


def offloading(engine: Engine, budget: int, host_quota: int) -> Engine:
    """Nothing is stored in less here: what does not fit moves to the host."""
    engine.limits = replace(
        engine.limits, budget=budget, host_quota=host_quota, storing=Storing(FP, FP, SINKS)
    )
    return engine


def test_what_moves_to_the_host_changes_no_token_and_comes_back(make_engine: MakeEngine) -> None:
    plain = lossy(make_engine())
    expected = done(list(plain.run(asked()))).ids
    need = plain.costs.needed_bytes(len(IDS) + REPLY, CHUNK)
    budget = need - 6 * plain.costs.old_block_bytes()
    engine = offloading(make_engine(), budget, 8 * plain.costs.old_block_bytes())
    events = []
    for event in engine.run(asked()):
        assert used_bytes(engine) <= budget
        events.append(event)
    assert done(events).ids == expected
    assert {e["code"] for e in measures(events)} == {"offload"}
    assert {i for i, block in stored(engine) if block.tier == "host"} <= set(whole_blocks(OLD))
    assert engine.pool.host_bytes > 0

    engine.limits = replace(engine.limits, budget=2 * budget)
    again = list(engine.run(asked()))
    assert done(again).ids == expected
    assert {e["code"] for e in measures(again)} == {"bring_back"}
    assert all(block.tier == "device" for _, block in stored(engine))
    engine.close_text()
    engine.pool.check_integrity(0)


def test_what_was_stored_in_less_is_raised_from_its_original(make_engine: MakeEngine) -> None:
    """With originals kept on the host, and room again, the text is as it was."""
    plain = lossy(make_engine())
    expected = done(list(plain.run(asked()))).ids
    budget = budget_for(plain, INT4)
    engine = lossy(make_engine(), budget)
    room = 20 * plain.costs.old_block_bytes()
    engine.limits = replace(
        engine.limits,
        host_quota=room,
        keep_originals=True,
        ladder=("drop_idle", "shrink_chunk", "requantize"),
    )
    first = measures(list(engine.run(asked())))
    assert {str(e["code"])[:10] for e in first} == {"requantize"}
    engine.limits = replace(engine.limits, budget=3 * budget)
    again = list(engine.run(asked()))
    assert "raise" in {e["code"] for e in measures(again)}
    assert {block.pair for i, block in stored(engine) if i in whole_blocks(OLD)} == {FP}
    engine.limits = replace(engine.limits, storing=Storing(FP, FP, SINKS))
    assert done(list(engine.run(asked()))).ids == expected


@pytest.mark.skipif(not cpu.is_installed(), reason="numba is not installed")
@pytest.mark.parametrize("pair", LOWER, ids=str)
def test_no_kernel_is_compiled_in_the_moment_memory_is_short(
    make_engine: MakeEngine, pair: FormatPair
) -> None:
    """A compiler that finds no memory ends the program: LLVM aborts."""
    from kvchat.attention import cpu_kernel

    compiled = (cpu_kernel.passes, cpu_kernel.runner, cpu_kernel._joiner)
    for one in compiled:
        one.cache_clear()
    engine = lossy(make_engine(), budget_for(lossy(make_engine()), pair))
    before = [one.cache_info().misses for one in compiled]
    assert all(before), "nothing was made beforehand"
    events = list(engine.run(asked()))
    assert isinstance(events[-1], Done), events[-1]
    assert any(str(entry["code"]).startswith("requantize") for entry in measures(events))
    assert [one.cache_info().misses for one in compiled] == before
