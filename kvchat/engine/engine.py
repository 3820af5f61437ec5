"""One reply from beginning to end: its text opened, read, answered, kept.

`run` is a generator of events and the only thing that computes; it is driven by the worker's
thread, or by a test. Knows the model and the pool, not the conversation: turns are spans of ids
here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from kvchat.attention import cpu
from kvchat.attention.choose import describe
from kvchat.device.memory import DeviceMemory, Probe
from kvchat.device.monitor import Monitor
from kvchat.device.peak import peak_of
from kvchat.engine.computing import Computing
from kvchat.engine.detokenize import Detokenizer
from kvchat.engine.events import (
    Done,
    Event,
    Failed,
    FinishReason,
    Framed,
    Request,
    Token,
    Took,
)
from kvchat.engine.figures import figures_of, text_bytes
from kvchat.engine.foretold import Fits
from kvchat.engine.guard import Exhausted, guarded
from kvchat.engine.limits import Limits
from kvchat.engine.local import LocalModel, Text
from kvchat.engine.reply import Reply
from kvchat.engine.room import Room
from kvchat.engine.steps import StepWatch
from kvchat.engine.work import work_of
from kvchat.errors import KVChatError
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.chats import ChatBlocks
from kvchat.kvcache.frame import Measured, make_frame
from kvchat.kvcache.pool import Pool
from kvchat.kvcache.spans import Span
from kvchat.kvcache.tiers import DiskPlace, DiskTier
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from kvchat.planner.costs import Costs
from kvchat.planner.ledger import entry, stored
from kvchat.planner.plan import Snapshot
from kvchat.units import format_size

if TYPE_CHECKING:
    from kvchat.engine.ahead import ReadingAhead
    from kvchat.engine.gauging import Gauging
    from kvchat.engine.proving import Proving
    from kvchat.models.calibrations import KeptCalibration
    from kvchat.models.load import LoadedModel

logger = logging.getLogger(__name__)

FRAME_INTERVAL_S = 0.1
CLOSING_S = 20.0  # for what is still to be written to disk


class Engine:
    """A loaded model with its pool. `clock` counts seconds (a test may give its own).

    `place`: where KV files lie; None keeps nothing on disk. A model with layers of the library's
    own keeps nothing there either (`disk` is None): those cannot go on from a stored place.
    `least`: layers by number, and the lowest pair that each is ever stored in.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        probe: Probe,
        limits: Limits,
        clock: Callable[[], float] = time.perf_counter,
        place: DiskPlace | None = None,
        least: Mapping[int, FormatPair] | None = None,
    ) -> None:
        self.loaded = loaded
        self._clock = clock
        found = geometries(loaded.spec, loaded.dtype, least)
        root = f"{loaded.name} {loaded.dtype}".encode()
        self.pool = Pool(found, loaded.device, root)
        self.local = LocalModel(loaded.model, loaded.spec, self.pool)
        self.disk: DiskTier | None = None
        if place is not None and not self.local.has_library_layers:
            try:
                self.disk = DiskTier(self.pool, place)
            except OSError as failed:
                logger.warning("nothing is kept on disk: %s", failed)
        self.room = Room(loaded, probe, limits, self.pool, self.local)
        peak = peak_of(loaded.device)
        self.local.watch = StepWatch(
            lambda: self.room.costs, self.room.learned, peak, self.local.has_library_layers
        )
        self._computing = Computing(
            loaded, self.local, self.room, lambda: self._clock(), self._framed
        )
        self.work = work_of(loaded.model, loaded.weight_bytes)
        self.known: KeptCalibration | None = None
        self.proving: Proving | None = None
        self.gauging: Gauging | None = None
        self.ahead: ReadingAhead | None = None
        self.limits = limits
        self._spans: tuple[Span, ...] = ()
        self._chat = ""
        self._chats = ChatBlocks(self.pool)
        self._framed_s = -1.0
        self._untold: list[Took] = []

    @property
    def limits(self) -> Limits:
        return self.room.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """From the next text on: what is stored stays as it is."""
        self.room.limits = limits
        if self.disk is not None:
            self.disk.quota_bytes, self.disk.formats = limits.disk_quota, limits.disk_format
        self.prepare(limits.pairs)

    def prepare(self, pairs: Iterable[FormatPair]) -> None:
        """Kernels for blocks of these formats are made now: in the moment they are first needed
        memory may be short, and a compiler that finds none ends the program.
        """
        if self.loaded.device.type == "cpu":
            cpu.prepare(self.pool.geometries, pairs, self.loaded.spec.num_query_heads)

    @property
    def attention(self) -> list[dict[str, Any]]:
        """Which backend runs each kind of layer, over the formats that texts are stored in."""
        loaded, storing = self.loaded, self.limits.storing
        wanted = (storing.seal, storing.floor)
        pairs = {one.served(pair) for one in self.pool.geometries for pair in wanted}
        return describe(loaded.spec, loaded.device, loaded.dtype, pairs)

    # --- what is measured -------------------------------------------------------------------------

    @property
    def costs(self) -> Costs:
        return self.room.costs

    @property
    def last_snapshot(self) -> Snapshot:
        """The newest measurement; any thread may ask."""
        return self.room.last_snapshot

    def fits(self) -> Fits:
        """How long a text fits in all, as everybody is told it; any thread may ask."""
        return self.room.fits()

    @property
    def newest_reading(self) -> DeviceMemory | None:
        """The device as it was last sampled, also while a step computes; any thread may ask. None
        where nobody watches it.
        """
        probe = self.room.probe
        return probe.newest if isinstance(probe, Monitor) else None

    def frame(self, step_tokens: int = 1) -> dict[str, Any]:
        """The frame of what is open now; call it from the thread that runs the engine.
        `step_tokens`: what is computed at a time just now.
        """
        now = self.room.snapshot()
        sequence = self.room.text.sequence if self.room.text is not None else None
        num_tokens = sequence.num_cached if sequence is not None else 0
        fits = self.fits()
        measured = Measured(
            now.device,
            now.budget,
            now.headroom,
            now.weight_bytes,
            now.library_bytes,
            self.costs.activations(step_tokens, num_tokens),
            fits.most_tokens,
            self.disk.num_bytes if self.disk is not None else 0,
            self.costs.calibration.knows(step_tokens, num_tokens),
        )
        frame = make_frame(self.pool, sequence, self._spans, measured)
        chats = {"chat": self._chat, "chats": self._chats.num_bytes()}
        return frame | chats | {"formats": self.formats(), "fits": fits.row()}

    def formats(self) -> dict[str, Any]:
        """Which the planner may step down to, and whether more are being measured."""
        offered = [str(pair) for pair in self.limits.lower]
        if self.proving is None:
            nothing: dict[str, Any] = {"pairs": [], "done": 0, "of": 0, "found": 0}
            return {"offered": offered, "stage": "done"} | nothing
        return {"offered": offered, "stage": self.proving.stage} | self.proving.progress

    # --- one reply --------------------------------------------------------------------------------

    def run(self, request: Request) -> Iterator[Event]:
        """Events of one reply; the last one is Done or Failed. The text stays open for the next
        turn.
        """
        reply = Reply(
            request,
            Detokenizer(self.loaded.tokenizer, request.stop, request.begun),
            self._clock(),
            request.prefill_chunk,
        )
        error: KVChatError
        try:
            yield from self._make(reply)
            return
        except Exhausted as spent:
            error = self.room.ran_out(reply, spent.shortage.needed_bytes)
        except KVChatError as found:
            error = found.alone()
        yield self._failed(reply, error)

    def _failed(self, reply: Reply, error: KVChatError) -> Failed:
        text = reply.detokenizer.text + reply.detokenizer.flush()
        self.close_text()
        return Failed(error, text, tuple(reply.ids))

    def _make(self, reply: Reply) -> Generator[Event, None, None]:
        if self.limits.threads is not None:
            torch.set_num_threads(self.limits.threads)  # of the thread that computes: this one
        self.close_text()
        while self._untold:
            yield self._untold.pop(0)
        text = yield from self._opened(reply)
        reply.reused_tokens = text.num_cached
        self._spans, self._chat = reply.request.spans, reply.request.chat
        logits = yield from self._computing.prefill(reply, text)
        reply.prefill_s = self._clock() - reply.started_s
        finish: FinishReason = "cancelled"
        if logits is not None:
            text.sequence.shrink_hot(text.sequence.storing.hot_tokens + BLOCK_TOKENS)
            reply.kv_bytes = text_bytes(text)
            finish = yield from self._computing.decode(reply, text, logits)
        rest = reply.detokenizer.flush()
        if rest:
            yield Token(reply.ids[-1], rest)
        yield Framed(self.frame())
        figures = figures_of(reply, text, self.loaded.spec, self.work)
        yield Done(reply.detokenizer.text, tuple(reply.ids), finish, figures)
        if self.disk is not None:
            self.disk.keep(reply.request.chat, text.sequence)

    def _opened(self, reply: Reply) -> Generator[Event, None, Text]:
        request = reply.request

        def begin() -> Text:
            return self.local.open(
                request.prompt_ids, reply.chunk_tokens, as_sealed=request.restore
            )

        self.room.set_limit(reply, reply.chunk_tokens)
        yield from self._restored(request)
        rungs = self.room.rungs(reply, len(request.prompt_ids))
        text = yield from guarded(begin, rungs, self.loaded.device)
        self.room.text = text
        yield from self._lost(text)
        whole = len(request.prompt_ids) + request.max_new_tokens
        yield from self.room.make(reply, whole, reply.chunk_tokens, ahead=True)
        yield from self.room.bring_back(reply, whole, reply.chunk_tokens)
        return text

    def _restored(self, request: Request) -> Iterator[Took]:
        """Loads what the disk has of the prompt, and says so; also what it had to remove."""
        if self.disk is None or request.restore:  # files hold texts in less than that
            return
        num_stored = self.disk.num_stored(request.prompt_ids)
        yield from self.room.make_for_stored(request.prompt_ids, num_stored)
        found = self.disk.restore(request.prompt_ids, request.chat)
        while self.disk.removed:
            arguments: dict[str, Any] = {"file": self.disk.removed.pop(0)}
            before = stored((), "disk")
            yield Took(entry("drop_file", arguments, "damaged_file", 0, None, before=before))
        if found is not None:
            formats = [str(pair) for pair in found.formats]
            arguments = {
                "tokens": found.num_tokens,
                "size": format_size(found.num_bytes),
                "formats": " + ".join(formats),
                "s": f"{found.s:.2f}",
            }
            before, after = (stored(formats, tier) for tier in ("disk", "device"))
            yield Took(entry("restore", arguments, "on_disk", 0, None, before=before, after=after))

    def _lost(self, text: Text) -> Iterator[Took]:
        """Says what was read before and is read again, since the model cannot go back to it."""
        if text.sequence.num_lost:
            reason = "cannot_go_back" if self.local.has_library_layers else "window_left"
            arguments = {"tokens": text.sequence.num_lost}
            yield Took(entry("read_again", arguments, reason, 0, None))

    # --- frames and figures -----------------------------------------------------------------------

    def _framed(self, reply: Reply) -> Iterator[Framed]:
        if self._clock() - self._framed_s >= FRAME_INTERVAL_S:
            self._framed_s = self._clock()
            step_tokens = 1 if reply.ids else reply.chunk_tokens
            yield Framed(self.frame(step_tokens))

    def close_text(self) -> None:
        """What is open becomes idle: reusable, and the first to go when memory is short."""
        text, chat = self.room.text, self._chat
        self.room.text, self._spans, self._chat = None, (), ""
        if text is not None:
            if chat:
                self.remember(chat, text)
            self.local.close(text)

    def remember(self, chat: str, text: Text) -> None:
        """Its blocks count as the chat's once it is closed."""
        self._chats.remember(chat, tuple(text.sequence.keys))

    def tell(self, told: dict[str, Any]) -> None:
        """A ledger entry of what was done while nothing was asked: comes with the next reply."""
        self._untold.append(Took(told))

    def trim(self) -> None:
        """While nothing is asked: gives back what is idle beyond what may be had by now, here and
        on the host. What was done is told with the next reply.
        """
        self._untold += self.room.give_way()
        self.pool.trim_host()

    def check(self) -> None:
        """Raises AssertionError where a byte of the cache is not accounted for, or blocks are held
        by no text. Not while an answer is made.
        """
        texts = [one.sequence for one in (self.room.text, self.local.kept) if one is not None]
        held = {id(b): b.nbytes for one in texts for table in one.tables for b in table if b}
        self.pool.check_integrity(sum(held.values()))

    # --- the disk ---------------------------------------------------------------------------------

    def save(self) -> bool:
        """Copies a piece of what was answered for the disk; True while there is more. Call it when
        nothing is asked.
        """
        if self.known is not None:
            self.known.keep(self.costs.calibration)
        return self.disk is not None and self.disk.save()

    def close(self) -> None:
        """Writes to disk what was not written yet, as far as a few seconds allow, and watches the
        device no longer.
        """
        if self.proving is not None:
            self.proving.rest()
        if isinstance(self.room.probe, Monitor):
            self.room.probe.close()
        if self.disk is not None:
            self.disk.close(CLOSING_S)

    def give_back(self) -> None:
        """After `close`: lets go of the weights and of all KV, whoever still holds the engine,
        which cannot be used any more.
        """
        from kvchat.models.load import unload

        self.close_text()
        self.proving = None
        self.local.drop_kept()
        self.pool.drop_idle(self.pool.idle_bytes)
        unload(self.loaded)
