"""The planner's decisions: values in, values out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.device.memory import DeviceMemory
from kvchat.kvcache.blocks import geometries
from kvchat.planner.costs import Costs
from kvchat.planner.measures import DropIdle, ShrinkChunk, ShrinkReply, TruncateTurns
from kvchat.planner.plan import (
    LEAST_REPLY,
    Need,
    Plan,
    Snapshot,
    StepNeed,
    TurnTokens,
    plan_admission,
    plan_step,
)
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
