"""Decides, before anything is computed, whether a text fits and what is done when it does not.

Values in, values out: no device, no clock, no tensor. Two questions are asked:
    plan_admission   does this prompt with its reply fit at all, and what is given up if not?
    plan_step        is there room in the pool for the next tokens, and what must go?
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kvchat.device.copying import host_seconds_per_step
from kvchat.device.memory import DeviceMemory
from kvchat.kvcache.spans import whole_blocks
from kvchat.memory.footprint import BLOCK_TOKENS, Footprint, last_that_fits
from kvchat.planner.costs import AS_SEALED, Costs, Relief
from kvchat.planner.costs import LEAST_CHUNK as LEAST_CHUNK
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
    WayBack,
)
from kvchat.policy.window import inside
from kvchat.units import MIB

LEAST_REPLY = 128
# Turns are left out in steps of up to this part of what fits, so that a full chat does not
# read everything again at every turn.
CUT_SHARE = 0.375
# Memory is freed in steps of at least this part of what is allowed beside the weights.
DROP_PARTS = 16


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was measured. `device.free` is what the system says; own bytes are what torch holds for
    us. `host_free_bytes`: what may still be moved to the host, read from there at
    `host_bytes_per_s` (None: as fast as on the device). `found_bytes`: what turned out to be all
    that there is, whatever the device says; None where nothing ran out lately.
    """

    device: DeviceMemory
    budget: int | None
    headroom: int
    weight_bytes: int
    pool_bytes: int
    idle_bytes: int
    library_bytes: int = 0
    host_free_bytes: int = 0
    host_bytes_per_s: float | None = None
    found_bytes: int | None = None

    @property
    def own_bytes(self) -> int:
        return self.weight_bytes + self.pool_bytes + self.library_bytes

    @property
    def allowed_bytes(self) -> int:
        """What kvchat may hold in all: min(budget, own + free + unused by torch - headroom, what
        turned out to be there).
        """
        by_device = self.own_bytes + self.device.free + self.device.cached - self.headroom
        known = (one for one in (self.budget, self.found_bytes) if one is not None)
        return min((by_device, *known))

    @property
    def told_bytes(self) -> int:
        """The same as figures are made of it that people compare: what others use moves all the
        time and counts in whole MiB, a budget stays and counts to the byte.
        """
        allowed = self.allowed_bytes
        return allowed if allowed == self.budget else allowed // MIB * MIB

    @property
    def is_pressed(self) -> bool:
        """Whether less is left free than should be: other programs took it."""
        return self.device.free + self.device.cached < self.headroom


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """A turn that may be left out, by its name (the hash of its user message)."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Need:
    """What a prompt wants: its tokens, room for the reply, and the turns that could be left out.

    `turns`: oldest first, without the turn in flight; all other tokens of the prompt are kept.
    `old`: ranges [start, stop) of the prompt's tokens that may be stored in less, or moved;
    `old_turns`: those of them that are turns, of which blocks may be evicted.
    """

    prompt_tokens: int
    reply_tokens: int
    prefill_chunk: int
    turns: tuple[TurnTokens, ...] = ()
    old: tuple[tuple[int, int], ...] = ()
    old_turns: tuple[tuple[int, int], ...] = ()

    @property
    def least_reply(self) -> int:
        return min(LEAST_REPLY, self.reply_tokens)


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
    trial = _Trial(need, snapshot, costs, need.prefill_chunk)
    cut: tuple[TurnTokens, ...] = ()
    for rung in ladder:
        if trial.fits:
            break
        if rung == "shrink_chunk":
            trial = trial.with_smaller_chunk()
        elif rung == "requantize":
            trial = trial.with_less_bits()
        elif rung == "offload":
            trial = trial.with_host()
        elif rung == "evict":
            trial = trial.with_holes()
        elif rung == "truncate_turns":
            cut = cut_turns(need, trial.capacity, trial.usual_capacity)
            break
    return trial.plan(cut)


@dataclass(frozen=True)
class _Trial:
    """One way to make a prompt fit, by arithmetic: a chunk, and what is done about old text."""

    need: Need
    snapshot: Snapshot
    costs: Costs
    chunk: int
    relief: Relief = AS_SEALED

    def old_blocks(self, num_tokens: int) -> int:
        """Of a text of n tokens: blocks that it has less than the prompt with its least reply are
        taken to be missing there.
        """
        need, storing = self.need, self.costs.storing
        whole, sealed = (
            (n - storing.hot_tokens) // BLOCK_TOKENS
            for n in (need.prompt_tokens + need.least_reply, num_tokens)
        )
        return max(0, self._most_old_blocks - max(0, whole - sealed))

    @cached_property
    def _most_old_blocks(self) -> int:
        """Of the prompt with its least reply. A long chat has many ranges of old text."""
        return len(whole_blocks(self.need.old, self.costs.storing.sink_tokens, self._old_stop))

    @property
    def _old_stop(self) -> int:
        """Where old text ends about which something can be done when room is wanted most: before
        the last chunk is read. That chunk is there then, and the reply, which counts, is not.
        """
        need, pair = self.need, self.relief.pair
        recent = self.costs.storing.recent_tokens(pair) if pair is not None else 0
        return need.prompt_tokens - recent - max(0, self.chunk - need.least_reply)

    def footprint(self, num_tokens: int) -> Footprint:
        return self.costs.footprint(
            num_tokens,
            self.chunk,
            self.snapshot.headroom,
            self.relief,
            self.old_blocks(num_tokens),
        )

    def short_bytes(self, num_tokens: int) -> int:
        expected = self.footprint(num_tokens)
        return max(0, expected.total - expected.headroom - self.snapshot.allowed_bytes)

    @property
    def capacity(self) -> int:
        """The most tokens that fit so, at most what the model can take; 0 where none does."""
        return last_that_fits(lambda n: not self.short_bytes(n), self.costs.spec.max_positions)

    @property
    def usual_capacity(self) -> int:
        """The same whatever is done about old text."""
        return self.costs.largest_tokens(self.snapshot.allowed_bytes, self.chunk)

    @property
    def fits(self) -> bool:
        whole = self.need.prompt_tokens + self.need.least_reply
        return whole <= self.costs.spec.max_positions and not self.short_bytes(whole)

    def with_smaller_chunk(self) -> "_Trial":
        """Halves the chunk until the text fits or it is small; for the model's own length it is no
        help.
        """
        trial = self
        if self.capacity < self.costs.spec.max_positions:
            while trial.chunk // 2 >= LEAST_CHUNK and not trial.fits:
                trial = replace(trial, chunk=trial.chunk // 2)
        return trial

    def with_less_bits(self) -> "_Trial":
        """The most exact of the lower pairs with which the text fits, or the lowest."""
        trial = self
        for pair in self.costs.lower:
            if not trial.fits:
                trial = replace(trial, relief=replace(trial.relief, pair=pair))
        return trial

    def with_host(self) -> "_Trial":
        host = replace(self.relief, host_bytes=self.snapshot.host_free_bytes)
        whole = self.need.prompt_tokens + self.need.least_reply
        return replace(self, relief=host) if self.old_blocks(whole) else self

    def with_holes(self) -> "_Trial":
        need, storing = self.need, self.costs.storing
        middle = inside(need.old_turns, storing.sink_tokens, self._old_stop)
        return replace(self, relief=replace(self.relief, evicted=len(middle)))

    def plan(self, cut: tuple[TurnTokens, ...]) -> Plan:
        """`cut`: the turns that are left out beside."""
        need, capacity = self.need, self.capacity
        left_out = sum(turn.tokens for turn in cut)
        kept = need.prompt_tokens - left_out
        reply = min(need.reply_tokens, max(need.least_reply, capacity - kept))
        total = kept + reply
        measures = [*self._smaller(kept, reply), *self._relieved(total)]
        if cut:
            frees = self.costs.blocks_bytes(left_out, self.chunk)
            measures.append(TruncateTurns(frees, tuple(turn.name for turn in cut), left_out))
        over = max(0, total - self.costs.spec.max_positions)
        expected, short = self.footprint(total), self.short_bytes(total)
        return Plan(reply, self.chunk, tuple(measures), expected, capacity, short, over)

    def _smaller(self, kept: int, reply: int) -> list[Measure]:
        need, costs, chunk = self.need, self.costs, self.chunk
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

    def _relieved(self, total: int) -> list[Measure]:
        """What the plan counts on; done step by step, as room is wanted."""
        pair, blocks, freed = self.relief.pair, self.old_blocks(total), self.costs.freed_bytes
        kept = replace(self.relief, evicted=0)
        in_less = freed(blocks, Relief(pair))
        moved = freed(blocks, kept) - in_less
        evicted = freed(blocks, self.relief) - freed(blocks, kept)
        found: list[Measure] = []
        if pair is not None and in_less:
            found.append(Requantize(in_less, pair))
        if moved:
            found.append(
                Offload(moved, host_seconds_per_step(moved, self.snapshot.host_bytes_per_s))
            )
        if evicted:
            found.append(Evict(evicted))
        return found


def cut_turns(need: Need, capacity: int, usual_capacity: int) -> tuple[TurnTokens, ...]:
    """The oldest turns to leave out so that the rest and the whole reply fit, if that can be.

    Cuts fall on multiples of a fixed number of tokens (the power of two below CUT_SHARE of what
    usually fits), counted from the first turn. So the same cut serves many turns, without anything
    remembered: as a chat grows, the cut moves on by one large step and stays there.
    """
    excess = need.prompt_tokens + need.reply_tokens - capacity
    droppable = sum(turn.tokens for turn in need.turns)
    if excess > droppable:
        excess = need.prompt_tokens + need.least_reply - capacity
    step = 1 << max(5, int(usual_capacity * CUT_SHARE).bit_length() - 1)
    goal = -(-max(0, excess) // step) * step
    cut: list[TurnTokens] = []
    total = 0
    for turn in need.turns:
        if total >= goal:
            break
        cut.append(turn)
        total += turn.tokens
    return tuple(cut)


@dataclass(frozen=True, slots=True)
class StepNeed:
    """What the coming tokens want: bytes that the pool must still allocate, free places apart, and
    activations.
    """

    pool_bytes: int
    activation_bytes: int


def spare_bytes(need: StepNeed, snapshot: Snapshot) -> int:
    """What is left beside the coming tokens; below 0 what is short."""
    growth = snapshot.allowed_bytes - snapshot.own_bytes - need.activation_bytes
    return growth - need.pool_bytes


Offer = Requantize | Offload | Evict
RELIEVING = ("requantize", "offload", "evict")


def plan_step(
    need: StepNeed, snapshot: Snapshot, ladder: Sequence[str], offers: Sequence[Offer] = ()
) -> tuple[Measure, ...]:
    """What must go so that the next tokens have room, in the ladder's order; empty where there is.

    Frees a little more than needed, so that a growing text does not ask at each block. `offers`:
    the most that could be done about the old text that is open.
    """
    short = -spare_bytes(need, snapshot)
    found: list[Measure] = []
    for rung in ladder:
        if short <= 0:
            break
        measure: Measure | None = None
        if rung == "drop_idle" and snapshot.idle_bytes:
            measure = drop_idle(short, snapshot)
        elif rung in RELIEVING:
            measure = relieve(short, snapshot, [one for one in offers if one.code == rung])
        if measure is not None:
            found.append(measure)
            short -= measure.frees_bytes
    return tuple(found)


def plan_way_back(
    need: StepNeed, snapshot: Snapshot, on_host_bytes: int, raise_bytes: int
) -> tuple[WayBack, ...]:
    """What may come back before a text grows: never so much that it would soon have to go again.

    on_host_bytes: of the open text on the host. raise_bytes: what its blocks would take more in the
    better copies that are held.
    """
    spare = spare_bytes(need, snapshot) - 2 * _least_step(snapshot)
    back = max(0, min(on_host_bytes, spare))
    more = max(0, min(raise_bytes, spare - back))
    found: list[WayBack] = [BringBack(-back)] if back else []
    return (*found, Raise(-more)) if more else tuple(found)


def drop_idle(short: int, snapshot: Snapshot) -> DropIdle:
    return DropIdle(min(snapshot.idle_bytes, max(short, _least_step(snapshot))))


def relieve(short: int, snapshot: Snapshot, offers: Sequence[Offer]) -> Offer | None:
    """The first offer that frees what is short, or else the one that frees most; as much of it."""
    enough = [one for one in offers if one.frees_bytes >= short]
    best = enough[0] if enough else max(offers, key=lambda one: one.frees_bytes, default=None)
    if best is None or not best.frees_bytes:
        return None
    return replace(best, frees_bytes=min(best.frees_bytes, max(short, _least_step(snapshot))))


def _least_step(snapshot: Snapshot) -> int:
    """So much at least, so that it need not be asked for again soon."""
    return (snapshot.allowed_bytes - snapshot.weight_bytes) // DROP_PARTS
