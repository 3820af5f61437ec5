"""The middle of old turns let go when memory is short: only that, said, and as if done by hand."""

from dataclasses import replace

import pytest

from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Request, Token
from kvchat.kvcache.blocks import FP
from kvchat.kvcache.pool import Storing
from kvchat.kvcache.spans import Span
from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.planner.costs import Relief
from kvchat.planner.measures import Evict
from kvchat.planner.plan import Need, plan_admission
from kvchat.policy.window import inside
from tests.engine.test_budgets import used_bytes
from tests.engine.test_engine import MakeEngine, done, random_ids
from tests.engine.test_old_text import measures

CHUNK, REPLY, SINKS = 64, 70, 64
IDS = random_ids(1100)
TURNS = ((100, 200), (200, 640), (640, 700))
DOCUMENT = (20, 100)
SPANS = (
    Span("system", "system", None, 0, 20),
    Span("document", "paper", None, *DOCUMENT),
    Span("turn", "short", 1, *TURNS[0]),
    Span("turn", "long", 2, *TURNS[1]),
    Span("turn", "pinned", 3, *TURNS[2]),
    Span("turn", "now", 4, 700, 1100),
)
OLD = (DOCUMENT, *TURNS[:2])
MIDDLE = inside(TURNS[:2], SINKS, len(IDS))


def asked(**changes: object) -> Request:
    known = {"max_new_tokens": REPLY, "prefill_chunk": CHUNK, "old": OLD, "chat": "one"} | changes
    return Request(IDS, SPANS, **known)  # type: ignore[arg-type]


def tight(make_engine: MakeEngine, kind: str = "llama", extra: int = 0) -> Engine:
    """Just as much as the text needs without the middle of its old turns."""
    engine = make_engine(kind, rungs=("drop_idle", "evict"))
    relief = Relief(evicted=len(MIDDLE))
    total = len(IDS) + REPLY
    needed = engine.costs.footprint(total, CHUNK, 0, relief, len(MIDDLE)).total
    engine.limits = replace(engine.limits, budget=needed + extra, storing=Storing(FP, FP, SINKS))
    return engine


def holes(engine: Engine) -> set[int]:
    assert engine.room.text is not None
    sequence = engine.room.text.sequence
    full = [
        table
        for table, one in zip(sequence.tables, engine.pool.geometries, strict=True)
        if one.window is None
    ]
    found = {i for table in full for i, block in enumerate(table) if block is None}
    assert found == sequence.evicted
    return found


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_a_text_that_fits_without_the_middle_is_made_within_its_bytes(
    make_engine: MakeEngine, kind: str
) -> None:
    assert MIDDLE == [5, 6, 7, 8]
    engine = tight(make_engine, kind)
    events = []
    for event in engine.run(asked()):
        assert used_bytes(engine) <= (engine.limits.budget or 0)
        events.append(event)
    assert isinstance(events[-1], Done), events[-1]
    entries = [entry for entry in measures(events) if not entry["code"].startswith("drop_idle")]
    assert {entry["code"] for entry in entries} <= {"evict", "evict_from"}
    assert sum(int(str(e["lost_tokens"])) for e in entries) == BLOCK_TOKENS * len(holes(engine))
    assert all(entry["turns"] == ["long"] and entry["undo"] == "read_again" for entry in entries)
    assert all(int(str(entry["bytes_measured"])) > 0 for entry in entries)
    assert holes(engine) <= set(MIDDLE)
    engine.close_text()
    engine.check()


def test_without_the_rung_the_text_does_not_fit(make_engine: MakeEngine) -> None:
    engine = tight(make_engine)
    engine.limits = replace(engine.limits, ladder=("drop_idle",))
    assert not isinstance(list(engine.run(asked()))[-1], Done)


def test_it_writes_what_a_run_writes_that_lets_go_at_that_token(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeezed = tight(make_engine)
    monkeypatch.setattr(squeezed.loaded, "eos_token_ids", frozenset())
    long = asked(max_new_tokens=300, prefill_chunk=1)
    budget = squeezed.costs.needed_bytes(len(IDS) + 150, 1)
    squeezed.limits = replace(squeezed.limits, budget=budget)
    events = list(squeezed.run(long))
    entries = [entry for entry in measures(events) if entry["code"] == "evict_from"]
    assert entries, "it was short in mid answer"

    free = make_engine()
    at = {entry["arguments"]["from_token"]: entry for entry in entries}  # type: ignore[index]
    made = 0
    for event in free.run(long):
        made += isinstance(event, Token)
        if isinstance(event, Token) and made in at:
            assert free.room.text is not None
            left = [i for i in MIDDLE if i not in holes(free)]
            for place in left[: int(str(at[made]["lost_tokens"])) // BLOCK_TOKENS]:
                free.room.text.sequence.evict(place)
        last = event
    assert isinstance(last, Done)
    assert last.ids == done(events).ids


def test_the_next_turn_reads_only_what_is_new(make_engine: MakeEngine) -> None:
    engine = tight(make_engine)
    reply = done(list(engine.run(asked())))
    gone = holes(engine)
    assert gone
    longer = (*IDS, *reply.ids, *random_ids(60, 3))
    room = engine.costs.needed_bytes(len(longer) + REPLY, CHUNK)
    engine.limits = replace(engine.limits, budget=room)
    spans = (*SPANS[:-1], Span("turn", "now", 4, 700, len(longer) - 60))
    following = Request(longer, spans, REPLY, CHUNK, old=OLD, chat="one")
    events = list(engine.run(following))
    figures = done(events).figures
    assert figures.reused_tokens >= len(IDS) + len(reply.ids) - 1
    assert holes(engine) == gone, "what was let go does not come back by itself"
    again = replace(following, restore=True)
    assert done(list(engine.run(again))).figures.reused_tokens <= BLOCK_TOKENS * min(gone)
    assert not holes(engine), "read again, all of it"
    engine.close_text()
    engine.check()


@pytest.mark.parametrize("chunk", [64, 512])
def test_what_a_plan_counts_on_can_be_done_while_the_prompt_is_read(
    make_engine: MakeEngine, chunk: int
) -> None:
    """The newest chunk is no old text yet when room is wanted most: no plan fits by it."""
    ladder = ("drop_idle", "evict")
    known = make_engine(rungs=ladder)
    need = Need(len(IDS), REPLY, chunk, (), OLD, TURNS[:2])
    most = known.costs.needed_bytes(len(IDS) + REPLY, chunk)
    step, relieved = known.costs.old_block_bytes(), 0
    for budget in range(most - 6 * step, most + step, step // 2):
        engine = make_engine(rungs=ladder)
        engine.limits = replace(engine.limits, budget=budget, storing=Storing(FP, FP, SINKS))
        plan = plan_admission(need, engine.room.last_snapshot, engine.costs, ladder)
        if plan.fits:
            relieved += any(isinstance(one, Evict) for one in plan.measures)
            events = list(engine.run(asked(prefill_chunk=chunk)))
            assert isinstance(events[-1], Done), (budget, events[-1])
            codes = {str(entry["code"]) for entry in measures(events)}
            assert codes <= {"drop_idle", "drop_idle_tails", "evict", "evict_from"}, codes
    assert relieved


def test_what_failed_though_it_was_said_to_fit_is_planned_with_less(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(rungs=("drop_idle",))
    least = engine.costs.needed_bytes(300, CHUNK)
    engine.limits = replace(engine.limits, budget=least)
    before = engine.room.snapshot().allowed_bytes
    assert not isinstance(list(engine.run(asked()))[-1], Done)
    assert engine.last_snapshot.allowed_bytes < before


def test_reading_goes_on_in_smaller_steps_before_an_answer_is_lost(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(rungs=("drop_idle",))
    budget = engine.costs.needed_bytes(len(IDS) + REPLY, 64)
    engine.limits = replace(engine.limits, budget=budget)
    events = list(engine.run(asked(prefill_chunk=512)))
    assert isinstance(events[-1], Done), events[-1]
    assert "shrink_chunk" in {entry["code"] for entry in measures(events)}
