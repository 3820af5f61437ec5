"""One reply from beginning to end: admit to the pool, prefill by chunks, decode token by token.

`run` is a generator of events and the only thing that computes; it is driven by the worker's
thread, or by a test. Knows the model and the pool, not the conversation: turns are spans of ids
here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvchat.device.memory import Probe
from kvchat.engine.detokenize import Detokenizer
from kvchat.engine.events import (
    Done,
    Event,
    Failed,
    Figures,
    FinishReason,
    Framed,
    Prefilled,
    Request,
    Token,
    Took,
)
from kvchat.engine.guard import Exhausted, Shortage, guarded
from kvchat.engine.limits import Limits
from kvchat.engine.local import LocalModel, Text
from kvchat.engine.sampling import Sampler
from kvchat.errors import KVChatError, OutOfMemory
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.chats import ChatBlocks
from kvchat.kvcache.frame import Measured, held_bytes, make_frame
from kvchat.kvcache.pool import Pool
from kvchat.kvcache.spans import Span
from kvchat.kvcache.tiers import DiskPlace, DiskTier
from kvchat.memory.footprint import BLOCK_TOKENS
from kvchat.planner.costs import Costs
from kvchat.planner.ledger import entry
from kvchat.planner.measures import DropIdle, ShrinkChunk
from kvchat.planner.plan import LEAST_CHUNK, Snapshot, StepNeed, drop_idle, plan_step
from kvchat.units import format_size

if TYPE_CHECKING:
    from kvchat.models.load import LoadedModel

logger = logging.getLogger(__name__)

FRAME_INTERVAL_S = 0.1
CLOSING_S = 20.0  # for what is still to be written to disk


@dataclass(slots=True)
class _Reply:
    """The reply being made."""

    request: Request
    detokenizer: Detokenizer
    started_s: float
    prefill_chunk: int
    ids: list[int] = field(default_factory=list)
    reused_tokens: int = 0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0

    @property
    def chunk_tokens(self) -> int:
        """What is read at a time; for a short prompt, no more room is taken than it needs."""
        return min(self.prefill_chunk, len(self.request.prompt_ids))


class Engine:
    """A loaded model with its pool. `clock` counts seconds (a test may give its own).

    `place`: where KV files lie; None keeps nothing on disk. A model with layers of the library's
    own keeps nothing there either (`disk` is None): those cannot go on from a stored place.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        probe: Probe,
        limits: Limits,
        clock: Callable[[], float] = time.perf_counter,
        place: DiskPlace | None = None,
    ) -> None:
        self.loaded = loaded
        self._probe = probe
        self._clock = clock
        found = geometries(loaded.spec, loaded.dtype)
        root = f"{loaded.name} {loaded.dtype}".encode()
        self.pool = Pool(found, loaded.device, root)
        self.local = LocalModel(loaded.model, loaded.spec, self.pool)
        self.disk: DiskTier | None = None
        if place is not None and not self.local.has_library_layers:
            try:
                self.disk = DiskTier(self.pool, place)
            except OSError as failed:
                logger.warning("nothing is kept on disk: %s", failed)
        self.costs = Costs(
            loaded.spec,
            found,
            loaded.dtype.itemsize,
            loaded.weight_bytes,
            loaded.device.type,
        )
        self.limits = limits
        self._open: Text | None = None
        self._spans: tuple[Span, ...] = ()
        self._chat = ""
        self._chats = ChatBlocks(self.pool)
        self.latest = self.snapshot()
        self._framed_s = -1.0
        self._capacity: tuple[int, int, int] = (-1, 0, 0)

    @property
    def limits(self) -> Limits:
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """From the next text on: what is stored stays as it is."""
        self._limits = limits
        self.pool.storing = limits.storing
        self.pool.host_limit_bytes = limits.host_quota
        self.pool.keep_originals = limits.keep_originals
        self.costs = replace(self.costs, storing=limits.storing)
        if self.disk is not None:
            self.disk.quota_bytes, self.disk.formats = limits.disk_quota, limits.disk_format

    # --- what is measured -------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What is in memory now. Reads the probe."""
        library = self._open.library.nbytes if self._open is not None else self.local.kept_bytes
        self.latest = Snapshot(
            self._probe.read(),
            self.limits.budget,
            self.limits.headroom,
            self.loaded.weight_bytes,
            self.pool.device_bytes,
            self.pool.idle_bytes + self.local.kept_bytes,
            library,
        )
        return self.latest

    @property
    def last_snapshot(self) -> Snapshot:
        """The newest measurement under the limits of this moment; any thread may ask."""
        return replace(self.latest, budget=self.limits.budget, headroom=self.limits.headroom)

    def frame(self, prefill_chunk: int = 512) -> dict[str, Any]:
        """The frame of what is open now; call it from the thread that runs the engine."""
        now = self.snapshot()
        sequence = self._open.sequence if self._open is not None else None
        num_tokens = sequence.num_cached if sequence is not None else 0
        measured = Measured(
            now.device,
            now.budget,
            now.headroom,
            now.weight_bytes,
            now.library_bytes,
            self.costs.activations(prefill_chunk, num_tokens),
            self._capacity_tokens(now.allowed_bytes, prefill_chunk),
            self.disk.num_bytes if self.disk is not None else 0,
        )
        frame = make_frame(self.pool, sequence, self._spans, measured)
        return frame | {"chat": self._chat, "chats": self._chats.num_bytes()}

    def _capacity_tokens(self, allowed_bytes: int, prefill_chunk: int) -> int:
        """Where the ladder reads in smaller steps when memory is short, they count."""
        if "shrink_chunk" in self.limits.ladder:
            prefill_chunk = min(prefill_chunk, LEAST_CHUNK)
        coarse = allowed_bytes >> 20
        if self._capacity[:2] != (coarse, prefill_chunk):
            tokens = self.costs.largest_tokens(allowed_bytes, prefill_chunk)
            self._capacity = (coarse, prefill_chunk, tokens)
        return self._capacity[2]

    # --- one reply --------------------------------------------------------------------------------

    def run(self, request: Request) -> Iterator[Event]:
        """Events of one reply; the last one is Done or Failed. The text stays open for the next
        turn.
        """
        reply = _Reply(
            request,
            Detokenizer(self.loaded.tokenizer, request.stop),
            self._clock(),
            request.prefill_chunk,
        )
        error: KVChatError
        try:
            yield from self._make(reply)
            return
        except Exhausted as spent:
            error = self._out_of_memory(spent.shortage.needed_bytes)
        except KVChatError as found:
            error = found.alone()
        yield self._failed(reply, error)

    def _failed(self, reply: _Reply, error: KVChatError) -> Failed:
        text = reply.detokenizer.text + reply.detokenizer.flush()
        self.close_text()
        return Failed(error, text, tuple(reply.ids))

    def _make(self, reply: _Reply) -> Generator[Event, None, None]:
        self.close_text()
        text = yield from self._opened(reply)
        reply.reused_tokens = text.num_cached
        self._spans, self._chat = reply.request.spans, reply.request.chat
        logits = yield from self._prefill(reply, text)
        reply.prefill_s = self._clock() - reply.started_s
        finish: FinishReason = "cancelled"
        if logits is not None:
            text.sequence.shrink_hot(text.sequence.storing.hot_tokens + BLOCK_TOKENS)
            finish = yield from self._decode(reply, text, logits)
        rest = reply.detokenizer.flush()
        if rest:
            yield Token(reply.ids[-1], rest)
        yield Framed(self.frame(reply.prefill_chunk))
        yield Done(reply.detokenizer.text, tuple(reply.ids), finish, self._figures(reply, text))
        if self.disk is not None:
            self.disk.keep(reply.request.chat, text.sequence)

    def _opened(self, reply: _Reply) -> Generator[Event, None, Text]:
        request = reply.request

        def begin() -> Text:
            return self.local.open(request.prompt_ids, reply.chunk_tokens)

        self._set_limit(reply, reply.chunk_tokens)
        yield from self._restored(request)
        rungs = self._rungs(reply, len(request.prompt_ids))
        text = yield from guarded(begin, rungs, self.loaded.device)
        self._open = text
        whole = len(request.prompt_ids) + request.max_new_tokens
        yield from self._make_room(reply, text, whole, reply.chunk_tokens)
        return text

    def _restored(self, request: Request) -> Iterator[Took]:
        """Loads what the disk has of the prompt, and says so; also what it had to remove."""
        if self.disk is None:
            return
        found = self.disk.restore(request.prompt_ids, request.chat)
        while self.disk.removed:
            arguments: dict[str, Any] = {"file": self.disk.removed.pop(0)}
            yield Took(entry("drop_file", arguments, "damaged_file", 0, None))
        if found is not None:
            arguments = {
                "tokens": found.num_tokens,
                "size": format_size(found.num_bytes),
                "formats": str(found.formats),
                "s": f"{found.s:.2f}",
            }
            yield Took(entry("restore", arguments, "on_disk", 0, None))

    def _prefill(self, reply: _Reply, text: Text) -> Generator[Event, None, Tensor | None]:
        """Feeds the prompt; returns the logits after it, or None where it was cancelled."""
        ids, logits = reply.request.prompt_ids, None
        while text.num_cached < len(ids):
            if reply.request.cancel.is_set():
                return None
            start = text.num_cached
            chunk = reply.chunk_tokens
            stop = min(len(ids), start + chunk)
            yield from self._make_room(reply, text, stop, chunk)

            def step(start: int = start) -> Tensor:
                return self.local.step(text, ids[start : start + reply.chunk_tokens])

            logits = yield from guarded(
                step, self._rungs(reply, len(ids) - start), self.loaded.device
            )
            elapsed = self._clock() - reply.started_s
            yield Prefilled(len(ids), text.num_cached, reply.reused_tokens, elapsed)
            yield from self._framed(reply)
        return logits

    def _decode(
        self, reply: _Reply, text: Text, logits: Tensor
    ) -> Generator[Event, None, FinishReason]:
        request = reply.request
        sampler = Sampler(request.sampling, self.loaded.device)
        began = self._clock()
        while True:
            token = yield from self._drawn(reply, sampler, logits)
            reply.ids.append(token)
            reply.decode_s = self._clock() - began
            if len(reply.ids) == 1:
                reply.first_token_s = self._clock() - reply.started_s
            if token in self.loaded.eos_token_ids:
                return "stop"
            yield Token(token, reply.detokenizer.push(token))
            if reply.detokenizer.stopped:
                return "stop"
            if len(reply.ids) >= request.max_new_tokens:
                return "length"
            if request.cancel.is_set():
                return "cancelled"
            logits = yield from self._next_logits(reply, text, token)
            yield from self._framed(reply)

    def _drawn(
        self, reply: _Reply, sampler: Sampler, logits: Tensor
    ) -> Generator[Event, None, int]:
        """The next id; a draw that ran out of memory is made again with the same random numbers."""
        before: object = None

        def draw() -> int:
            nonlocal before
            if before is None:
                before = sampler.save()
            sampler.restore(before)
            return sampler.draw(logits, self._seen(reply))

        return (yield from guarded(draw, self._rungs(reply, 0), self.loaded.device))

    def _next_logits(self, reply: _Reply, text: Text, token: int) -> Generator[Event, None, Tensor]:
        if text.sequence.num_hot + 1 >= self.pool.storing.hot_tokens + BLOCK_TOKENS:
            yield from self._make_room(reply, text, text.num_cached + 1, 1)

        def step() -> Tensor:
            return self.local.step(text, (token,))

        return (yield from guarded(step, self._rungs(reply, 0), self.loaded.device))

    def _seen(self, reply: _Reply) -> Tensor | None:
        if reply.request.sampling.repetition_penalty == 1.0:
            return None
        return torch.tensor([*reply.request.prompt_ids, *reply.ids])

    # --- memory -----------------------------------------------------------------------------------

    def _make_room(
        self, reply: _Reply, text: Text, num_tokens: int, chunk_tokens: int
    ) -> Generator[Event, None, None]:
        """Before a text grows: drops what is idle if that would not fit."""
        activations = self._set_limit(reply, chunk_tokens)
        # Blocks for which there is no free place, and what is kept for the hot window.
        missing = text.sequence.bytes_to_come(num_tokens, chunk_tokens)
        need = StepNeed(self.pool.hot_reserve_bytes + missing, activations)
        for measure in plan_step(need, self.latest, self.limits.ladder):
            yield self._take(measure, "no_room")

    def _set_limit(self, reply: _Reply, chunk_tokens: int) -> int:
        """Tells the pool what it may hold now beside the activations of such a step; returns
        those.
        """
        now = self.snapshot()
        num_tokens = len(reply.request.prompt_ids) + reply.request.max_new_tokens
        activations = self.costs.activations(chunk_tokens, num_tokens)
        fixed = now.weight_bytes + now.library_bytes + activations
        self.pool.limit_bytes = max(0, now.allowed_bytes - fixed)
        self.pool.hot_floor_bytes = self.costs.hot_bytes(chunk_tokens)
        return activations

    def _take(self, measure: DropIdle, reason: str, *, for_hot: bool = False) -> Took:
        """Drops idle memory and says what it freed; for a hot window only whole slabs count."""
        kept = self.local.drop_kept()
        drop = self.pool.drop_idle_slabs if for_hot else self.pool.drop_idle
        num_blocks, dropped = drop(measure.frees_bytes - kept)
        arguments = {"blocks": num_blocks}
        return Took(entry(measure.code, arguments, reason, measure.frees_bytes, kept + dropped))

    def _rungs(self, reply: _Reply, num_left: int) -> Callable[[int, Shortage], Took | None]:
        """What to give up after a step ran out of memory: nothing at first, then idle memory, then
        speed.

        `num_left`: prompt tokens still to be read, 0 where the chunk cannot shrink.
        """

        def next_rung(tries: int, shortage: Shortage) -> Took | None:
            if shortage.needed_bytes == 0 and tries == 1:
                return Took(entry("retry", {}, "out_of_memory", 0, 0))
            idle = self.pool.idle_bytes + self.local.kept_bytes
            if idle and "drop_idle" in self.limits.ladder:
                measure = drop_idle(shortage.needed_bytes or idle, self.snapshot())
                took = self._take(measure, "out_of_memory", for_hot=shortage.for_hot)
                if took.entry["bytes_measured"] or took.entry["arguments"]["blocks"]:
                    return took
            chunk = min(reply.chunk_tokens, num_left) // 2
            if chunk >= LEAST_CHUNK and "shrink_chunk" in self.limits.ladder:
                return self._shrink_chunk(reply, chunk)
            return None

        return next_rung

    def _shrink_chunk(self, reply: _Reply, chunk: int) -> Took:
        """Reads less at a time from the coming step on."""
        num_tokens = len(reply.request.prompt_ids)
        before = self.costs.activations(reply.chunk_tokens, num_tokens)
        frees = before - self.costs.activations(chunk, num_tokens)
        arguments = ShrinkChunk(frees, chunk, reply.chunk_tokens).arguments
        reply.prefill_chunk = chunk
        self._set_limit(reply, chunk)
        return Took(entry(ShrinkChunk.code, arguments, "out_of_memory", frees, None))

    def _out_of_memory(self, needed_bytes: int) -> OutOfMemory:
        now = self.snapshot()
        return OutOfMemory(
            "out_of_memory",
            needed=needed_bytes,
            used=now.own_bytes,
            allowed=now.allowed_bytes,
            footprint=self.costs.footprint(self._open.num_cached if self._open else 0, LEAST_CHUNK),
            snapshot=now,
        )

    # --- frames and figures -----------------------------------------------------------------------

    def _framed(self, reply: _Reply) -> Iterator[Framed]:
        if self._clock() - self._framed_s >= FRAME_INTERVAL_S:
            self._framed_s = self._clock()
            yield Framed(self.frame(reply.prefill_chunk))

    def _figures(self, reply: _Reply, text: Text) -> Figures:
        last = reply.request.spans[-1] if reply.request.spans else None
        start = last.start if last is not None else 0
        held = held_bytes(text.sequence, start, text.num_cached)
        return Figures(
            prompt_tokens=len(reply.request.prompt_ids),
            reply_tokens=len(reply.ids),
            reused_tokens=reply.reused_tokens,
            prefill_s=reply.prefill_s,
            time_to_first_token_s=reply.first_token_s,
            decode_s=reply.decode_s,
            bytes=sum(held.values()),
            formats=held,
        )

    def close_text(self) -> None:
        """What is open becomes idle: reusable, and the first to go when memory is short."""
        text, chat = self._open, self._chat
        self._open, self._spans, self._chat = None, (), ""
        if text is not None:
            if chat:
                self._chats.remember(chat, tuple(text.sequence.keys))
            self.local.close(text)

    # --- the disk ---------------------------------------------------------------------------------

    def save(self) -> bool:
        """Copies a piece of what was answered for the disk; True while there is more. Call it when
        nothing is asked.
        """
        return self.disk is not None and self.disk.save()

    def close(self) -> None:
        """Writes to disk what was not written yet, as far as a few seconds allow."""
        if self.disk is not None:
            self.disk.close(CLOSING_S)
