"""Decides, before anything is computed, whether a text fits and what is done when it does not.

Values in, values out: no device, no clock, no tensor. Two questions are asked:
    plan_admission   does this prompt with its reply fit at all, and which turns are left out if
    not? plan_step        is there room in the pool for the next tokens, and what idle memory must
    go?
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.device.memory import DeviceMemory
from kvchat.memory.footprint import Footprint
from kvchat.planner.costs import Costs
from kvchat.planner.measures import DropIdle, Measure, ShrinkChunk, ShrinkReply, TruncateTurns

LEAST_CHUNK = 32
LEAST_REPLY = 128
# Turns are left out in steps of up to this part of what fits, so that a full chat does not
# read everything again at every turn.
CUT_SHARE = 0.375
# Idle memory is dropped in steps of at least this part of what is allowed beside the weights.
DROP_PARTS = 16


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was measured. `device.free` is what the system says; own bytes are what torch holds for
    us.
    """

    device: DeviceMemory
    budget: int | None
    headroom: int
    weight_bytes: int
    pool_bytes: int
    idle_bytes: int
    library_bytes: int = 0

    @property
    def own_bytes(self) -> int:
        return self.weight_bytes + self.pool_bytes + self.library_bytes

    @property
    def allowed_bytes(self) -> int:
        """What kvchat may hold in all: min(budget, own + free - headroom)."""
        by_device = self.own_bytes + self.device.free - self.headroom
        return by_device if self.budget is None else min(self.budget, by_device)


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """A turn that may be left out, by its name (the hash of its user message)."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Need:
    """What a prompt wants: its tokens, room for the reply, and the turns that could be left out.

    `turns`: oldest first, without the turn in flight; all other tokens of the prompt are kept.
    """

    prompt_tokens: int
    reply_tokens: int
    prefill_chunk: int
    turns: tuple[TurnTokens, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done. Fits where `short_by_bytes` and `short_by_tokens` are 0."""

    reply_tokens: int
    prefill_chunk: int
    measures: tuple[Measure, ...]
    expected: Footprint
    capacity_tokens: int
    short_by_bytes: int = 0
    short_by_tokens: int = 0

    @property
    def fits(self) -> bool:
        return not self.short_by_bytes and not self.short_by_tokens

    @property
    def left_out(self) -> tuple[str, ...]:
        return next((m.turns for m in self.measures if isinstance(m, TruncateTurns)), ())


def plan_admission(need: Need, snapshot: Snapshot, costs: Costs, ladder: Sequence[str]) -> Plan:
    """Fits the prompt and its reply: less reply first, then the ladder's rungs in the user's order.

    Idle memory counts as free here: it can always be dropped.
    """
    allowed = snapshot.allowed_bytes
    chunk, measures = need.prefill_chunk, list[Measure]()
    capacity = costs.largest_tokens(allowed, chunk)
    reply = _reply_that_fits(need, capacity)
    for rung in ladder:
        if need.prompt_tokens + reply <= capacity:
            break
        if rung == "shrink_chunk" and capacity < costs.spec.max_positions:
            chunk, capacity = _smaller_chunk(need, reply, allowed, costs)
        elif rung == "truncate_turns":
            cut = cut_turns(need, capacity)
            measures.extend([_truncation(cut, costs, chunk)] if cut else [])
            break
    kept = need.prompt_tokens - sum(m.tokens for m in measures if isinstance(m, TruncateTurns))
    reply = min(need.reply_tokens, max(min(LEAST_REPLY, need.reply_tokens), capacity - kept))
    measures = [*_smaller(need, reply, chunk, costs, kept), *measures]
    total = kept + reply
    expected = costs.footprint(total, chunk, snapshot.headroom)
    short = max(0, expected.total - expected.headroom - allowed)
    over = max(0, total - costs.spec.max_positions)
    return Plan(reply, chunk, tuple(measures), expected, capacity, short, over)


def _reply_that_fits(need: Need, capacity: int) -> int:
    """The reply's room, down to a minimum, so that the prompt fits if it can."""
    least = min(LEAST_REPLY, need.reply_tokens)
    return min(need.reply_tokens, max(least, capacity - need.prompt_tokens))


def _smaller_chunk(need: Need, reply: int, allowed: int, costs: Costs) -> tuple[int, int]:
    """Halves the chunk until the text fits or it is small; returns it with what then fits."""
    chunk = need.prefill_chunk
    capacity = costs.largest_tokens(allowed, chunk)
    while chunk // 2 >= LEAST_CHUNK and need.prompt_tokens + reply > capacity:
        chunk //= 2
        capacity = costs.largest_tokens(allowed, chunk)
    return chunk, capacity


def cut_turns(need: Need, capacity: int) -> tuple[TurnTokens, ...]:
    """The oldest turns to leave out so that the rest and the whole reply fit, if that can be.

    Cuts fall on multiples of a fixed number of tokens (the power of two below CUT_SHARE of what
    fits), counted from the first turn. So the same cut serves many turns, without anything
    remembered: as a chat grows, the cut moves on by one large step and stays there.
    """
    excess = need.prompt_tokens + need.reply_tokens - capacity
    droppable = sum(turn.tokens for turn in need.turns)
    if excess > droppable:
        excess = need.prompt_tokens + min(LEAST_REPLY, need.reply_tokens) - capacity
    step = 1 << max(5, int(capacity * CUT_SHARE).bit_length() - 1)
    goal = -(-max(0, excess) // step) * step
    cut: list[TurnTokens] = []
    total = 0
    for turn in need.turns:
        if total >= goal:
            break
        cut.append(turn)
        total += turn.tokens
    return tuple(cut)


def _truncation(cut: tuple[TurnTokens, ...], costs: Costs, chunk: int) -> TruncateTurns:
    tokens = sum(turn.tokens for turn in cut)
    frees = costs.blocks_bytes(tokens, chunk)
    return TruncateTurns(frees, tuple(turn.name for turn in cut), tokens)


def _smaller(need: Need, reply: int, chunk: int, costs: Costs, kept: int) -> list[Measure]:
    found: list[Measure] = []
    if reply < need.reply_tokens:
        frees = costs.blocks_bytes(kept + need.reply_tokens, chunk)
        frees -= costs.blocks_bytes(kept + reply, chunk)
        found.append(ShrinkReply(frees, reply, need.reply_tokens))
    if chunk < need.prefill_chunk:
        total = kept + reply
        frees = costs.needed_bytes(total, need.prefill_chunk) - costs.needed_bytes(total, chunk)
        found.append(ShrinkChunk(frees, chunk, need.prefill_chunk))
    return found


@dataclass(frozen=True, slots=True)
class StepNeed:
    """What the coming tokens want: bytes that the pool must still allocate, free places apart, and
    activations.
    """

    pool_bytes: int
    activation_bytes: int


def plan_step(need: StepNeed, snapshot: Snapshot, ladder: Sequence[str]) -> tuple[DropIdle, ...]:
    """Idle memory that must go so that the next tokens have room; empty where there is room.

    Drops a little more than needed, so that a growing text does not ask at each block.
    """
    growth = snapshot.allowed_bytes - snapshot.own_bytes - need.activation_bytes
    short = need.pool_bytes - growth
    if short <= 0 or not snapshot.idle_bytes or "drop_idle" not in ladder:
        return ()
    return (drop_idle(short, snapshot),)


def drop_idle(short: int, snapshot: Snapshot) -> DropIdle:
    """Drops what is short, or a larger step, so that it need not be asked for again soon."""
    step = (snapshot.allowed_bytes - snapshot.weight_bytes) // DROP_PARTS
    return DropIdle(min(snapshot.idle_bytes, max(short, step)))
