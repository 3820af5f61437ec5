"""What holds for every snapshot, need and ladder: exact shortage, what is never touched, few and
large steps, and no swinging to and fro.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.kvcache.pool import Storing
from kvchat.memory.formats import FormatPair
from kvchat.planner.measures import DropIdle, Offload, Requantize, TruncateTurns
from kvchat.planner.plan import (
    CUT_SHARE,
    DROP_PARTS,
    Need,
    Snapshot,
    StepNeed,
    plan_admission,
    plan_step,
    plan_way_back,
    spare_bytes,
)
from kvchat.settings import RUNGS
from kvchat.units import GIB, MIB
from tests.planner.test_plan import costs, snapshot, turns

LOWER = tuple(map(FormatPair.parse, ("int8", "int6/int4", "int4/int4")))
LADDERS = st.permutations(RUNGS).flatmap(
    lambda rungs: st.integers(0, len(rungs)).map(lambda n: tuple(rungs[:n]))
)


@st.composite
def needs(draw: st.DrawFn) -> Need:
    """A prompt of a system text, turns, and a question; what of it is old text."""
    system = draw(st.integers(1, 400))
    sizes = draw(st.lists(st.integers(1, 1500), max_size=8))
    question = draw(st.integers(1, 600))
    old = ((system, system + sum(sizes)),) if sizes and draw(st.booleans()) else ()
    reply, chunk = draw(st.integers(1, 2048)), draw(st.sampled_from([32, 128, 512]))
    return Need(system + sum(sizes) + question, reply, chunk, turns(*sizes), old)


@settings(deadline=None)
@given(
    need=needs(),
    budget=st.integers(513 * MIB, 900 * MIB),
    host=st.integers(0, 60),
    num_lower=st.integers(0, 3),
    sinks=st.sampled_from([0, 64, 200]),
    ladder=LADDERS,
)
def test_what_is_short_is_exact(
    need: Need, budget: int, host: int, num_lower: int, sinks: int, ladder: Sequence[str]
) -> None:
    """With so many bytes more it fits, with one less it does not."""
    known = replace(costs(), storing=Storing(sink_tokens=sinks), lower=LOWER[:num_lower])

    def planned(allowed: int):
        now = replace(snapshot(allowed), host_free_bytes=host * MIB)
        return plan_admission(need, now, known, ladder)

    plan = planned(budget)
    assert plan.fits == (not plan.short_by_bytes and not plan.short_by_tokens)
    if plan.short_by_bytes:
        assert not planned(budget + plan.short_by_bytes).short_by_bytes
        assert planned(budget + plan.short_by_bytes - 1).short_by_bytes == 1


@settings(deadline=None)
@given(need=needs(), budget=st.integers(513, 900), ladder=st.permutations(RUNGS))
def test_only_whole_old_turns_are_left_out_oldest_first(
    need: Need, budget: int, ladder: Sequence[str]
) -> None:
    """What is pinned, the system text and the turn in flight are no turns of a need."""
    plan = plan_admission(need, snapshot(budget * MIB), costs(), ladder)
    assert plan.left_out == tuple(turn.name for turn in need.turns[: len(plan.left_out)])
    left = sum(m.tokens for m in plan.measures if isinstance(m, TruncateTurns))
    kept = need.prompt_tokens - sum(turn.tokens for turn in need.turns)
    assert need.prompt_tokens - left >= kept
    assert plan.reply_tokens >= min(need.reply_tokens, need.least_reply)


@settings(max_examples=6, deadline=None)
@given(
    turn_tokens=st.integers(40, 400),
    room_tokens=st.integers(1000, 3000),
    reply=st.integers(1, 128),
)
def test_a_full_chat_of_equal_turns_reads_again_rarely(
    turn_tokens: int, room_tokens: int, reply: int
) -> None:
    """Turns left out come in steps of a fifth of what fits and more: a cut lasts for many turns."""
    budget = costs().needed_bytes(room_tokens, 128)
    first, num_turns = room_tokens // turn_tokens // 2, 3 * room_tokens // turn_tokens
    cuts = []
    for count in range(first, num_turns + 1):
        need = Need(30 + turn_tokens * count, reply, 128, turns(*[turn_tokens] * (count - 1)))
        plan = plan_admission(need, snapshot(budget), costs(), ("truncate_turns",))
        assert plan.fits
        cuts.append(len(plan.left_out))
    read_again = [later - earlier for earlier, later in pairwise(cuts) if later != earlier]
    step = room_tokens * CUT_SHARE / 2  # the power of two below that share
    lasts = max(1, int(step // turn_tokens) - 1)
    assert all(more > 0 for more in read_again), "what was left out does not come back by itself"
    assert all(more >= lasts for more in read_again)
    assert len(read_again) <= -(-num_turns // lasts)


# --- a text that grows or waits while others take memory and give it back -------------------------


class Text:
    """Old text on the device and on the host, in bytes, as measures move it."""

    def __init__(self, old_bytes: int) -> None:
        self.on_device, self.on_host = old_bytes, 0
        self.directions: list[int] = []

    def snapshot(self, allowed: int) -> Snapshot:
        held = snapshot(None, free=allowed - 513 * MIB - self.on_device + GIB, pool=self.on_device)
        return replace(held, host_free_bytes=GIB)

    def turn(self, allowed: int, wanted: int) -> None:
        """What is done before a step, and then what may come back."""
        need = StepNeed(wanted, 0)
        offers = (Offload(self.on_device, 0.0),)
        for measure in plan_step(need, self.snapshot(allowed), ("offload",), offers):
            assert isinstance(measure, Offload)
            self._move(measure.frees_bytes)
        for back in plan_way_back(need, self.snapshot(allowed), self.on_host, 0):
            self._move(back.frees_bytes)

    def _move(self, num_bytes: int) -> None:
        self.on_device -= num_bytes
        self.on_host += num_bytes
        self.directions.append(1 if num_bytes > 0 else -1)


def num_flips(directions: Sequence[int]) -> int:
    return sum(one != other for one, other in pairwise(directions))


def num_swings(trace: Sequence[int], least: int) -> int:
    """How often a trace turned round by more than `least`: its zigzag."""
    low = high = trace[0]
    found, direction = 0, 0
    for value in trace:
        low, high = min(low, value), max(high, value)
        if direction >= 0 and high - value > least:
            found, direction, low = found + 1, -1, value
            high = value
        elif direction <= 0 and value - low > least:
            found, direction, high = found + 1, 1, value
            low = value
    return found


WANTED = 4 * MIB
TRACES = st.lists(st.integers(520 * MIB, 900 * MIB), min_size=2, max_size=40)


LEVELS = st.lists(st.integers(560 * MIB, 760 * MIB), min_size=1, max_size=6)
NOISE = st.lists(st.floats(-1, 1), min_size=1, max_size=8)


@settings(deadline=None)
@given(levels=LEVELS, noise=NOISE, old=st.integers(200 * MIB, 300 * MIB))
def test_no_more_flips_than_real_swings(levels: list[int], noise: list[float], old: int) -> None:
    """What may be used is now this, now that, and trembles all the while."""
    tremble = MIB
    trace = [level + int(part * tremble) for level in levels for part in noise]
    text = Text(old)
    for allowed in trace:
        text.turn(allowed, WANTED)
    hysteresis = (min(trace) - 513 * MIB) // DROP_PARTS
    assert num_flips(text.directions) <= num_swings(trace, hysteresis)


@settings(deadline=None)
@given(
    middle=st.integers(600 * MIB, 900 * MIB),
    noise=st.lists(st.floats(-0.4, 0.4), min_size=2, max_size=60),
    old=st.integers(0, 300 * MIB),
)
def test_noise_below_the_hysteresis_moves_nothing_to_and_fro(
    middle: int, noise: list[float], old: int
) -> None:
    step = (middle - 513 * MIB) // DROP_PARTS
    text = Text(old)
    for part in noise:
        text.turn(middle + int(part * step), WANTED)
    assert num_flips(text.directions) <= 1


@settings(deadline=None)
@given(trace=TRACES, old=st.integers(0, 300 * MIB))
def test_a_step_fits_after_what_was_planned_or_there_was_no_more_to_give(
    trace: list[int], old: int
) -> None:
    text = Text(old)
    for allowed in trace:
        text.turn(allowed, WANTED)
        spare = spare_bytes(StepNeed(WANTED, 0), text.snapshot(allowed))
        assert spare >= 0 or text.on_device == 0


@settings(deadline=None)
@given(
    short=st.integers(1, 300),
    idle=st.integers(0, 200),
    in_less=st.integers(0, 200),
    moved=st.integers(0, 200),
    ladder=LADDERS,
)
def test_what_a_step_gives_up_is_in_order_enough_and_no_more_than_there_is(
    short: int, idle: int, in_less: int, moved: int, ladder: Sequence[str]
) -> None:
    held = 187 * MIB
    now = snapshot(700 * MIB, pool=held, idle=idle * MIB)
    offers = (Requantize(in_less * MIB, LOWER[0]), Offload(moved * MIB, 0.0))
    measures = plan_step(StepNeed(short * MIB, 0), now, ladder, offers)
    order = [ladder.index(m.code) for m in measures]
    assert order == sorted(set(order))
    there = {DropIdle: idle * MIB, Requantize: in_less * MIB, Offload: moved * MIB}
    for measure in measures:
        assert 0 < measure.frees_bytes <= there[type(measure)]
    useful = sum(there[kind] for kind in there if kind.code in ladder)
    freed = sum(m.frees_bytes for m in measures)
    assert freed >= min(short * MIB, useful)
    for earlier, later in pairwise(measures):
        assert earlier.frees_bytes < short * MIB
        assert later.frees_bytes > 0
