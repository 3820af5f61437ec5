"""Room on the device for the text that is open: what the pool may hold, and doing what the planner
proposes when that is too little.

Decides nothing (that is planner/) and computes nothing of the model. Belongs to the thread that
runs the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvchat.device.memory import Probe
from kvchat.engine.events import Took
from kvchat.engine.guard import Shortage
from kvchat.engine.limits import Limits
from kvchat.engine.local import LocalModel
from kvchat.engine.measuring import Measuring
from kvchat.engine.old_text import OldText, Relieved, pinned_spans
from kvchat.engine.reply import Reply
from kvchat.errors import OutOfMemory
from kvchat.kvcache.pool import Pool
from kvchat.kvcache.spans import Span
from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.planner.ledger import Undo, entry, stored
from kvchat.planner.measures import (
    DropIdle,
    Evict,
    Measure,
    Offload,
    Requantize,
    ShrinkChunk,
    WayBack,
)
from kvchat.planner.plan import (
    LEAST_CHUNK,
    RELIEVING,
    Offer,
    StepNeed,
    drop_idle,
    plan_step,
    plan_way_back,
    relieve,
    spare_bytes,
)
from kvchat.units import format_size

if TYPE_CHECKING:
    from kvchat.models.load import LoadedModel


# Blocks of a reply during which memory must suffice before anything comes back: where it comes and
# goes from one to the next, nothing is moved to and fro.
CALM_BLOCKS = 4


class Room(Measuring):
    def __init__(
        self, loaded: LoadedModel, probe: Probe, limits: Limits, pool: Pool, local: LocalModel
    ) -> None:
        super().__init__(loaded, probe, limits, pool, local)
        self._fixed_bytes = 0
        self._calm = 0

    def set_limit(self, reply: Reply, chunk_tokens: int) -> int:
        """Tells the pool what it may hold now beside the activations of such a step; returns
        those.
        """
        now = self.glance()
        num_tokens = len(reply.request.prompt_ids) + reply.request.max_new_tokens
        activations = self.activations(chunk_tokens, num_tokens)
        self._fixed_bytes = now.weight_bytes + now.library_bytes + activations
        self._pool.limit_bytes = max(0, now.allowed_bytes - self._fixed_bytes)
        self._pool.trim_host()
        self._pool.hot_floor_bytes = self.costs.hot_bytes(num_tokens, chunk_tokens)
        return activations

    def make(
        self, reply: Reply, num_tokens: int, chunk_tokens: int, *, ahead: bool = False
    ) -> Iterator[Took]:
        """Before a text grows to so many tokens: gives up what the planner says. `ahead`: it may
        turn out shorter, so that nothing is done yet that loses anything.
        """
        need = self._need(reply, num_tokens, chunk_tokens)
        if spare_bytes(need, self.latest) >= 0:
            return  # as nearly always: what old text could give need not be counted
        self._calm = 0
        self.count_idle()
        offers = () if ahead else self._offers(reply)
        reason = self._why_short("no_room")
        self._allows_less = False
        for measure in plan_step(need, self.latest, self.limits.ladder, offers):
            yield from self._take(reply, measure, reason)

    def make_for_stored(self, token_ids: Sequence[int], num_stored: int) -> Iterator[Took]:
        """Before what the disk has of a prompt is loaded: what other texts keep goes for it, as it
        would where all of it were read again.
        """
        pool, left = self._pool, self._pool.device_left_bytes()
        if left is None or "drop_idle" not in self.limits.ladder:
            return
        token_bytes = self.costs.token_bytes(self.limits.disk_format)
        left += pool.free_block_bytes
        if num_stored * token_bytes <= left:
            return  # as nearly always: what is held of them need not be looked for
        with pool.keeping(token_ids) as num_held:
            short = round((num_stored - num_held) * token_bytes) - left
            if short > 0:
                yield from self._drop_idle(DropIdle(short), "no_room", for_hot=False)

    def begins_block(self) -> bool:
        """Whether the coming token of a reply does, so that there is something to plan for it."""
        assert self.text is not None
        sequence = self.text.sequence
        return sequence.num_hot + 1 >= sequence.storing.hot_tokens + BLOCK_TOKENS

    def at_block(self, reply: Reply) -> Iterator[Took]:
        """Before a token of the reply that begins a block: makes room where other programs took
        some, or lets come back what left, once there was room for a while.
        """
        assert self.text is not None
        num_tokens = self.text.num_cached
        self._calm += 1
        yield from self.make(reply, num_tokens + 1, 1)
        if self._calm >= CALM_BLOCKS and self._pool.host_bytes:
            left = reply.request.max_new_tokens - len(reply.ids)
            yield from self.bring_back(reply, num_tokens + left, 1)

    def give_way(self) -> Iterator[Took]:
        """While no text is open: where others need the memory, what is idle goes back to the
        device.
        """
        now = self.snapshot()
        short = now.own_bytes - now.allowed_bytes
        wanted = short > 0 and now.idle_bytes > 0 and "drop_idle" in self.limits.ladder
        if not wanted or now.device.age_s:
            self._allows_less &= short > 0
            return
        reason = self._why_short("settings_less")
        self._allows_less = False
        yield from self._drop_idle(drop_idle(short, now), reason, for_hot=True)

    def _why_short(self, else_why: str) -> str:
        """Other programs took memory where less is left free than should be, unless it is the
        person who wants more left free since then.
        """
        if self._allows_less:
            return "settings_less"
        return "others_grew" if self.latest.is_pressed else else_why

    def _need(self, reply: Reply, num_tokens: int, chunk_tokens: int) -> StepNeed:
        """Of the open text until it has so many tokens: blocks for which there is no free place,
        and what is kept for the hot window. Sets the pool's limit.
        """
        assert self.text is not None
        activations = self.set_limit(reply, chunk_tokens)
        missing = self.text.sequence.bytes_to_come(num_tokens, chunk_tokens)
        return StepNeed(self._pool.hot_reserve_bytes + missing, activations)

    def _offers(self, reply: Reply) -> tuple[Offer, ...]:
        return self._old_text(reply).offers(self.limits.lower, self.latest)

    def _old_text(self, reply: Reply) -> OldText:
        assert self.text is not None
        mass = self.text.mass if self.limits.weighs else None
        return OldText(self._pool, self.text.sequence, reply.request, mass)

    def bring_back(self, reply: Reply, num_tokens: int, chunk_tokens: int) -> Iterator[Took]:
        """What left the device, or lost bits, comes back if there is room for it beside the whole
        text to be.
        """
        old = self._old_text(reply)
        on_host, rise = old.on_host_bytes(), old.raise_bytes()
        if not on_host and not rise:
            return
        need = self._need(reply, num_tokens, chunk_tokens)
        for measure in plan_way_back(need, self.latest, on_host, rise):
            done = old.apply(measure)
            if done.num_tokens:
                yield _told(reply, measure, "fits", done)

    def _take(
        self, reply: Reply, measure: Measure, reason: str, *, for_hot: bool = False
    ) -> Iterator[Took]:
        """Does it, and says what it freed, if there was anything to be done."""
        if isinstance(measure, (Requantize, Offload, Evict)):
            kept = isinstance(measure, Requantize) and self._pool.keep_originals
            undo: Undo = "raise" if kept else measure.undo
            done = self._old_text(reply).apply(measure)
            if done.num_tokens:
                yield _told(reply, measure, reason, done, undo)
            return
        assert isinstance(measure, DropIdle)
        yield from self._drop_idle(measure, reason, for_hot=for_hot)

    def _drop_idle(self, measure: DropIdle, reason: str, *, for_hot: bool) -> Iterator[Took]:
        """For a hot window only whole slabs count. Where there is a host tier, blocks go there as
        far as it has room. Where there were no blocks, what texts had kept to go on from went.
        """
        pool, kept = self._pool, self._local.drop_kept()
        to_host = pool.host_limit_bytes > 0
        drop = pool.drop_idle_slabs if for_hot else pool.drop_idle
        num_blocks, dropped = drop(measure.frees_bytes - kept, to_host=to_host)
        freed = kept + dropped
        if not num_blocks and not freed:
            return
        code, after = measure.code if num_blocks else "drop_idle_tails", None
        if num_blocks and to_host:
            code, after = f"{measure.code}_to_host", stored((), "host")
        about = {"blocks": num_blocks} if num_blocks else {}
        before = stored((), "device")
        yield Took(
            entry(code, about, reason, measure.frees_bytes, freed, before=before, after=after)
        )

    def ran_out(self, reply: Reply, needed_bytes: int) -> OutOfMemory:
        """Every rung is spent. In mid answer pins are named where without them there was something
        left to give up; before it the next prompt is planned with less, and says it then.
        """
        pinned = self._pinned_freeing(reply, max(1, needed_bytes)) if reply.ids else ()
        error = self.out_of_memory(needed_bytes)
        if not pinned:
            return error
        turns = [str(one.turn) for one in pinned if one.turn is not None]
        code = "out_of_memory_pinned" if turns else "out_of_memory_pinned_documents"
        return OutOfMemory(code, **error.facts, turns=", ".join(turns))

    def _pinned_freeing(self, reply: Reply, needed_bytes: int) -> tuple[Span, ...]:
        """What is pinned of the open text, if so much of it could be given up otherwise."""
        request, ladder = reply.request, self.limits.ladder
        pinned = pinned_spans(request)
        if self.text is None or not pinned:
            return ()
        old = (*request.old, *((one.start, one.stop) for one in pinned))
        offers = self._offers(replace(reply, request=replace(request, old=old)))
        most = max((one.frees_bytes for one in offers if one.code in ladder), default=0)
        return pinned if most >= needed_bytes else ()

    def rungs(self, reply: Reply, num_left: int) -> Callable[[int, Shortage], Took | None]:
        """What to give up after a step ran out of memory: nothing at first, then the ladder's
        rungs in the user's order.

        `num_left`: prompt tokens still to be read, 0 where the chunk cannot shrink.
        """

        def next_rung(tries: int, shortage: Shortage) -> Took | None:
            if shortage.needed_bytes == 0 and tries == 1:
                return Took(entry("retry", {}, "out_of_memory", 0, 0))
            for rung in self.limits.ladder:
                took = self._after_failure(rung, reply, num_left, shortage)
                if took is not None:
                    return took
            # Whatever the ladder is: this loses nothing but time, and else the answer is lost.
            shrunk = self._after_failure("shrink_chunk", reply, num_left, shortage)
            return shrunk or self._into_headroom(shortage)

        return next_rung

    def _into_headroom(self, shortage: Shortage) -> Took | None:
        """The last of all: what the device says is free may be wrong, or was for a moment only, and
        the allocator's word counts. The budget is passed never.
        """
        pool, now = self._pool, self.latest
        limit = pool.limit_bytes or 0
        wanted = max(limit, pool.device_bytes + pool.hot_reserve_bytes) + shortage.needed_bytes
        if now.budget is not None:
            wanted = min(wanted, now.budget - self._fixed_bytes)
        if not shortage.needed_bytes or wanted <= limit:
            return None
        pool.limit_bytes = wanted
        size = {"size": format_size(wanted - limit)}
        return Took(entry("into_headroom", size, "out_of_memory", 0, None))

    def _after_failure(
        self, rung: str, reply: Reply, num_left: int, shortage: Shortage
    ) -> Took | None:
        """What this rung can still do, done; None where that is nothing."""
        idle = self._pool.idle_bytes + self._local.kept_bytes
        if rung == "drop_idle" and idle:
            dropping = drop_idle(shortage.needed_bytes or idle, self.snapshot())
            return next(
                self._take(reply, dropping, "out_of_memory", for_hot=shortage.for_hot), None
            )
        chunk = min(reply.chunk_tokens, num_left) // 2
        if rung == "shrink_chunk" and chunk >= LEAST_CHUNK:
            return self._shrink_chunk(reply, chunk)
        if rung in RELIEVING and self.text is not None:
            mine = [one for one in self._offers(reply) if one.code == rung]
            measure = relieve(max(1, shortage.needed_bytes), self.snapshot(), mine)
            if measure is not None:
                took = next(self._take(reply, measure, "out_of_memory"), None)
                return took if took is not None and took.entry["bytes_measured"] else None
        return None

    def _shrink_chunk(self, reply: Reply, chunk: int) -> Took:
        """Reads less at a time from the coming step on."""
        num_tokens = len(reply.request.prompt_ids)
        before = self.costs.activations(reply.chunk_tokens, num_tokens)
        frees = before - self.costs.activations(chunk, num_tokens)
        arguments: dict[str, Any] = ShrinkChunk(frees, chunk, reply.chunk_tokens).arguments
        reply.prefill_chunk = chunk
        self.set_limit(reply, chunk)
        if self.text is not None:
            sequence = self.text.sequence
            sequence.shrink_hot(sequence.storing.hot_tokens + BLOCK_TOKENS + chunk)
        return Took(entry(ShrinkChunk.code, arguments, "out_of_memory", frees, None))


def _told(
    reply: Reply,
    measure: Offer | WayBack,
    reason: str,
    done: Relieved,
    undo: Undo | None = None,
) -> Took:
    """What was lost in mid answer is told with the token of the reply from which on it holds."""
    code, arguments = measure.code, measure.arguments | {"tokens": done.num_tokens}
    if reply.ids and isinstance(measure, (Requantize, Evict)):
        code, arguments["from_token"] = f"{code}_from", len(reply.ids)
    return Took(
        entry(
            code,
            arguments,
            reason,
            measure.frees_bytes,
            done.num_bytes,
            done.turns,
            documents=done.documents,
            before=done.before,
            after=done.after,
            lost_tokens=done.lost_tokens,
            undo=undo,
        )
    )
