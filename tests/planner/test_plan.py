"""The planner's decisions: values in, values out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.device.memory import DeviceMemory
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.pool import Storing
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from kvchat.planner.costs import Costs, Relief
from kvchat.planner.measures import (
    BringBack,
    DropIdle,
    Evict,
    Measure,
    Offload,
    Raise,
    Requantize,
    ShrinkChunk,
    ShrinkReply,
    TruncateTurns,
)
from kvchat.planner.plan import (
    LEAST_REPLY,
    Need,
    Plan,
    Snapshot,
    StepNeed,
    TurnTokens,
    plan_admission,
    plan_step,
    plan_way_back,
)
from kvchat.policy.window import inside
from kvchat.settings import RUNGS
from kvchat.units import GIB, MIB

SMOLLM2 = ModelSpec(
    "smollm2", (LayerSpec("full", 3, 64, 64),) * 30, 576, 1536, 49152, 9, 513 * MIB, 8192
)


def costs(spec: ModelSpec = SMOLLM2) -> Costs:
    import torch

    return Costs(spec, geometries(spec, torch.float32), 4, spec.weight_bytes)


def snapshot(budget: int | None = None, free: int = 64 * GIB, **known: int) -> Snapshot:
    device = DeviceMemory("cpu", 64 * GIB, free, 0, 0, 0, 0.0)
    return Snapshot(
        device,
        budget,
        known.get("headroom", GIB),
        513 * MIB,
        known.get("pool", 0),
        known.get("idle", 0),
    )


def turns(*tokens: int) -> tuple[TurnTokens, ...]:
    return tuple(TurnTokens(f"turn{i}", n) for i, n in enumerate(tokens, 1))


def admitted(need: Need, now: Snapshot, ladder: tuple[str, ...] = RUNGS) -> Plan:
    return plan_admission(need, now, costs(), ladder)


def test_what_fits_is_left_alone() -> None:
    plan = admitted(Need(1000, 1024, 512, turns(300, 300)), snapshot())
    assert plan.fits
    assert plan.measures == ()
    assert (plan.reply_tokens, plan.prefill_chunk) == (1024, 512)


def test_the_reply_shrinks_before_anything_else() -> None:
    """A prompt that needs the room takes it from the reply, not from the turns (or the chunk)."""
    plan = admitted(Need(7800, 1024, 512, turns(3000, 3000)), snapshot())
    assert plan.fits
    assert plan.measures == (ShrinkReply(plan.measures[0].frees_bytes, 392, 1024),)
    assert plan.measures[0].frees_bytes > 0


def test_the_oldest_whole_turns_are_left_out_when_the_model_is_full() -> None:
    plan = admitted(Need(8300, 1024, 512, turns(1000, 1000, 2000, 4000)), snapshot())
    assert plan.fits
    cut = next(m for m in plan.measures if isinstance(m, TruncateTurns))
    assert cut.turns[0] == "turn1"
    assert plan.reply_tokens == 1024  # leaving out turns makes room for the whole reply


def test_a_smaller_chunk_comes_before_turns_when_the_user_says_so() -> None:
    budget = costs().needed_bytes(2000, 256)
    need = Need(2000 - LEAST_REPLY, LEAST_REPLY, 512, turns(800, 800))
    plan = admitted(need, snapshot(budget), ("shrink_chunk", "truncate_turns"))
    assert plan.fits
    assert [type(m) for m in plan.measures] == [ShrinkChunk]
    assert plan.prefill_chunk == 256
    plan = admitted(need, snapshot(budget), ("truncate_turns",))
    assert plan.fits
    assert plan.prefill_chunk == 512
    assert [type(m) for m in plan.measures] == [TruncateTurns]


def test_without_rungs_the_plan_says_what_is_short() -> None:
    budget = costs().needed_bytes(1000, 512)
    plan = admitted(Need(3000, 512, 512, turns(1000)), snapshot(budget), ())
    assert not plan.fits
    expected = costs().needed_bytes(3000 + LEAST_REPLY, 512) - budget
    assert plan.short_by_bytes == expected
    assert plan.left_out == ()


def test_the_models_length_is_a_limit_of_its_own() -> None:
    plan = admitted(Need(9000, 512, 512, ()), snapshot())
    assert not plan.fits
    assert plan.short_by_bytes == 0
    assert plan.short_by_tokens == 9000 + LEAST_REPLY - 8192


def test_other_programs_and_headroom_count() -> None:
    """Free memory that others took is not there, however large the card."""
    roomy = admitted(Need(4000, 1024, 512, turns(2000)), snapshot(free=8 * GIB))
    assert roomy.fits
    tight = admitted(Need(4000, 1024, 512, turns(2000)), snapshot(free=GIB + 100 * MIB))
    assert not tight.fits


def test_the_cut_stays_while_a_full_chat_grows() -> None:
    """Twenty more turns in a full chat: the first kept turn changes rarely, not every time."""
    budget = costs().needed_bytes(2200, 128)
    cuts = []
    for count in range(9, 29):
        history = turns(*[200] * (count - 1))
        need = Need(30 + 200 * count, 300, 128, history)
        plan = admitted(need, snapshot(budget))
        assert plan.fits
        cuts.append(len(plan.left_out))
    assert cuts == sorted(cuts)
    assert len(set(cuts)) <= 11
    kept = [30 + 200 * (c + 9) - 200 * cut for c, cut in enumerate(cuts)]
    assert min(kept) > 0.55 * 2200  # close to the window, not half of it


@given(
    fixed=st.integers(1, 9000),
    sizes=st.lists(st.integers(1, 3000), max_size=12),
    reply=st.integers(1, 4096),
    chunk=st.sampled_from([32, 128, 512]),
    budget=st.integers(1, 2000),
    ladder=st.permutations(RUNGS),
)
def test_every_plan_fits_or_names_what_is_short(
    fixed: int, sizes: list[int], reply: int, chunk: int, budget: int, ladder: list[str]
) -> None:
    need = Need(fixed + sum(sizes), reply, chunk, turns(*sizes))
    now = snapshot(budget * MIB)
    plan = plan_admission(need, now, costs(), ladder)
    left = sum(m.tokens for m in plan.measures if isinstance(m, TruncateTurns))
    total = need.prompt_tokens - left + plan.reply_tokens
    needed = costs().needed_bytes(total, plan.prefill_chunk)
    assert plan.short_by_bytes == max(0, needed - now.allowed_bytes)
    assert plan.short_by_tokens == max(0, total - 8192)
    assert 1 <= plan.reply_tokens <= reply
    assert plan.left_out == tuple(t.name for t in need.turns[: len(plan.left_out)])
    assert fixed <= need.prompt_tokens - left


LOWER = tuple(map(FormatPair.parse, ("int8", "int6/int4", "int4/int4")))


@given(
    system=st.integers(1, 300),
    sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=8),
    question=st.integers(1, 400),
    seal=st.sampled_from(["fp", "int8", "int4"]),
    sinks=st.sampled_from([0, 64, 200]),
    num_lower=st.integers(0, 3),
    budget=st.integers(520, 900),
    host=st.integers(0, 100),
    ladder=st.permutations(RUNGS),
)
def test_old_text_is_relieved_of_no_more_than_there_is(
    system: int,
    sizes: list[int],
    question: int,
    seal: str,
    sinks: int,
    num_lower: int,
    budget: int,
    host: int,
    ladder: list[str],
) -> None:
    storing = Storing(FormatPair.parse(seal), LOWER[-1], sinks)
    known = replace(costs(), storing=storing, lower=LOWER[:num_lower])
    old = ((system, system + sum(sizes)),)
    need = Need(system + sum(sizes) + question, 512, 128, turns(*sizes), old)
    now = replace(snapshot(budget * MIB), host_free_bytes=host * MIB)
    plan = plan_admission(need, now, known, ladder)
    relieved = [m for m in plan.measures if isinstance(m, (Requantize, Offload))]
    left_out = sum(m.tokens for m in plan.measures if isinstance(m, TruncateTurns))
    total = need.prompt_tokens - left_out + plan.reply_tokens
    needed = known.needed_bytes(total, plan.prefill_chunk) - sum(m.frees_bytes for m in relieved)
    assert plan.expected.total - plan.expected.headroom == needed
    assert plan.short_by_bytes == max(0, needed - now.allowed_bytes)
    assert sum(m.frees_bytes for m in relieved if isinstance(m, Offload)) <= host * MIB
    in_less = [m.pair for m in relieved if isinstance(m, Requantize)]
    assert set(in_less) <= set(known.lower)
    blocks = sum(sizes) // BLOCK_TOKENS
    assert sum(m.frees_bytes for m in relieved) <= blocks * known.old_block_bytes()
    first = ladder[0]
    if first == "truncate_turns" and plan.left_out:
        assert relieved == []
    if first == "requantize" and num_lower and plan.fits and not in_less:
        assert left_out == 0 or not known.old_block_bytes() - known.old_block_bytes(LOWER[0])


def test_bits_go_before_turns_and_the_most_exact_pair_that_suffices_is_taken() -> None:
    ladder = ("requantize", "offload", "truncate_turns")
    sizes = [600] * 6
    need = Need(4000, 128, 128, turns(*sizes), ((100, 3700),))
    known = replace(costs(), lower=LOWER, storing=Storing(floor=LOWER[-1]))
    plenty = known.needed_bytes(4128, 128)
    blocks = 55  # whole ones in [100, 3700), none of which is among the newest R tokens
    for pair in LOWER:
        least = plenty - known.freed_bytes(blocks, Relief(pair))
        plan = plan_admission(need, snapshot(least), known, ladder)
        assert plan.fits
        (measure,) = (m for m in plan.measures if isinstance(m, Requantize))
        assert measure.pair == pair
        assert plan.left_out == ()
        tighter = plan_admission(need, snapshot(least - 1), known, ladder)
        assert tighter.measures != plan.measures
    host = replace(snapshot(least - 1), host_free_bytes=GIB)
    assert plan_admission(need, host, known, ladder).left_out == ()


def test_the_middle_of_old_turns_goes_before_whole_turns() -> None:
    """Only of turns, and never their first and newest blocks."""
    ladder = ("evict", "truncate_turns")
    bounds = [(100 + 600 * i, 700 + 600 * i) for i in range(6)]
    document = (10, 90)
    need = Need(4000, 128, 128, turns(*[600] * 6), (document, *bounds), tuple(bounds))
    known = costs()
    middle = len(inside(bounds, 0, 4000))
    assert middle == 38  # of 8 or 9 whole blocks in each turn all but two
    least = known.needed_bytes(4128, 128) - known.freed_bytes(55, Relief(evicted=middle))
    plan = plan_admission(need, snapshot(least), known, ladder)
    assert plan.fits
    assert plan.left_out == ()
    (measure,) = plan.measures
    assert isinstance(measure, Evict)
    assert measure.frees_bytes == middle * known.old_block_bytes()
    assert plan_admission(need, snapshot(least - 1), known, ladder).left_out
    without = replace(need, old_turns=())
    assert plan_admission(without, snapshot(least), known, ladder).left_out


OFFERS = (
    Requantize(100 * MIB, LOWER[0]),
    Requantize(150 * MIB, LOWER[1]),
    Requantize(170 * MIB, LOWER[2]),
    Offload(300 * MIB, 0.1),
)


@pytest.mark.parametrize(
    ("short", "expected"),
    [
        (0, []),
        (50, [OFFERS[0]]),
        (120, [OFFERS[1]]),
        (160, [OFFERS[2]]),
        (250, [OFFERS[2], OFFERS[3]]),
    ],
)
def test_a_step_takes_the_first_offer_that_suffices(short: int, expected: list[Measure]) -> None:
    now = snapshot(700 * MIB, pool=187 * MIB)  # nothing is left
    measures = plan_step(StepNeed(short * MIB, 0), now, RUNGS, OFFERS)
    assert [type(m) for m in measures] == [type(m) for m in expected]
    for found, offer in zip(measures, expected, strict=True):
        assert replace(found, frees_bytes=0) == replace(offer, frees_bytes=0)
        assert found.frees_bytes <= offer.frees_bytes
    assert sum(m.frees_bytes for m in measures) >= short * MIB


@pytest.mark.parametrize(
    ("left", "on_host", "rise", "back", "more"),
    [
        (10, 50, 50, 0, 0),  # what came back would soon have to go again
        (100, 50, 50, 50, 23),
        (100, 0, 10, 0, 10),
        (200, 50, 90, 50, 90),
    ],
)
def test_what_comes_back_leaves_room(
    left: int, on_host: int, rise: int, back: int, more: int
) -> None:
    """Two steps of 187 / 16 MiB stay free, and what the text itself wants."""
    now = snapshot(700 * MIB, pool=(187 - left) * MIB)
    measures = plan_way_back(StepNeed(3 * MIB, 0), now, on_host * MIB, rise * MIB)
    taken = {type(m): -m.frees_bytes // MIB for m in measures}
    assert taken == {k: v for k, v in {BringBack: back, Raise: more}.items() if v}


@pytest.mark.parametrize(
    ("pool", "idle", "dropped"),
    [
        (100, 80, 0),  # 87 MiB left of the budget are enough
        (150, 80, 33),  # 60 wanted, 10 for activations, 37 left
        (150, 0, 0),  # nothing idle: the pool's limit and the guard decide
        (150, 5, 5),
    ],
)
def test_idle_memory_goes_when_the_next_tokens_need_it(pool: int, idle: int, dropped: int) -> None:
    now = snapshot(700 * MIB, pool=pool * MIB, idle=idle * MIB)
    measures = plan_step(StepNeed(60 * MIB, 10 * MIB), now, RUNGS)
    freed = sum(m.frees_bytes for m in measures if isinstance(m, DropIdle))
    assert freed == dropped * MIB


@pytest.mark.parametrize("pair", LOWER, ids=str)
def test_what_is_said_to_fit_with_fewer_bits_is_admitted_so(pair: FormatPair) -> None:
    known = replace(costs(), lower=(pair,), storing=Storing(floor=LOWER[-1], sink_tokens=64))
    budget = known.needed_bytes(2000, 128)
    most = known.largest_tokens(budget, 128, Relief(pair))
    assert most > known.largest_tokens(budget, 128) == 2000
    prompt = most - LEAST_REPLY
    need = Need(prompt, LEAST_REPLY, 128, turns(prompt - 250), ((50, prompt - 200),))
    plan = plan_admission(need, snapshot(budget), known, ("requantize", "truncate_turns"))
    assert plan.fits
    assert plan.left_out == ()
