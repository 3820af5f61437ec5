"""`bench ui`: what showing memory live costs the server while an answer is written.

The loaded model writes an answer at the end of a chat of many turns; the worker, the store, the
frames and the live channel are those of the program, and somebody looks at that chat as a page
does.
Counted is the processor's time of each part, so that the model's own computing does not count:

    worker     the frame that is measured between steps, in the thread that computes
    frames     what is made of it for the chat, and its text (`api/live.py`), once for all who look
    channel    the loop that hands each look its bytes; without the socket's own

Nothing is asserted; the aim is less than 5 % of one core.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from kvchat.api.live import Live, View
from kvchat.bench.room import refuse_too_large
from kvchat.chat.frames import Frames
from kvchat.chat.gauges import Gauges
from kvchat.chat.known import KnownChats
from kvchat.engine.engine import Engine
from kvchat.engine.events import Request, Token
from kvchat.engine.worker import Worker
from kvchat.kvcache.spans import Span
from kvchat.store.records import Generation
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

TURNS = (1, 40)
TURN_TOKENS = 24
NEW_TOKENS = 80
_CHUNK = 512


@dataclass(slots=True)
class Spent:
    """Calls of one part and the processor's seconds they took."""

    num: int = 0
    cpu_s: float = 0.0

    def counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, counted; each runs in one thread from begin to end."""

        def counted(*args: Any, **options: Any) -> Any:
            before_s = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self.num += 1
                self.cpu_s += time.thread_time() - before_s

        return counted


class Watched:
    """As much of the conversations as the live channel asks for, over one chat of a store."""

    def __init__(self, store: Store, worker: Worker) -> None:
        known = KnownChats(store)
        gauges = Gauges(known, lambda: worker)
        gauges.use_tokenizer(worker.wait_ready().loaded.tokenizer)
        self._worker = worker
        self._frames = Frames(store, worker, known, gauges, lambda _: ())

    def frame(self, chat: str | None) -> dict[str, Any]:
        return self._frames.frame(chat)

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        return self._frames.ledger_since(chat, number)

    def status(self) -> dict[str, Any]:
        return {"stage": self._worker.stage}

    def live(self, chat: str) -> object | None:
        return self._worker if self._worker.stage in ("prefill", "decode") else None


class CountedLive(Live):
    """The live channel, whose frames are counted."""

    def __init__(self, watched: Watched, spent: Spent) -> None:
        super().__init__(cast("Conversations", watched))
        self._counted = spent.counting(super()._seen)

    def _seen(self, chat: str | None, before: View | None) -> View:
        view: View = self._counted(chat, before)
        return view


@dataclass(slots=True)
class Look:
    """Somebody who looks, from `begin` on until `end`: how many frames of what size."""

    live: Live
    chat: str
    sizes: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    async def _watch(self) -> None:
        before_s = time.thread_time()
        async for event in self.live._events(self.chat, 0):
            self.sizes.append(len(event))
            self.cpu_s = time.thread_time() - before_s
            if self._ended.is_set():
                return


def measured(engine: Engine, counts: tuple[int, ...] = TURNS) -> Iterator[dict[str, Any]]:
    """A row a number of turns. Raises OutOfMemory, and StoreError."""
    engine.loaded.eos_token_ids = frozenset()
    most = (engine.loaded.spec.max_positions - NEW_TOKENS) // TURN_TOKENS
    needed = engine.costs.needed_bytes(min(max(counts), most) * TURN_TOKENS + NEW_TOKENS, _CHUNK)
    refuse_too_large(engine, needed)
    worker = Worker(lambda *_: engine)
    worker.wait_ready(60.0)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        for count in dict.fromkeys(min(one, most) for one in counts):
            yield _row(engine, worker, store, count)


def _row(engine: Engine, worker: Worker, store: Store, count: int) -> dict[str, Any]:
    chat = store.new_chat("", "").id
    request = _asked(engine, store, chat, count)
    by_worker, by_frames = Spent(), Spent()
    own, engine.frame = engine.frame, by_worker.counting(engine.frame)  # type: ignore[method-assign]
    look = Look(CountedLive(Watched(store, worker), by_frames), chat)
    begun_s = 0.0
    try:
        for event in worker.submit(request):
            if isinstance(event, Token) and not begun_s:
                begun_s = time.monotonic()  # reading the prompt shows less often
                by_worker.num, by_worker.cpu_s = 0, 0.0
                look.begin()
        wall_s = time.monotonic() - begun_s
        look.end()
    finally:
        engine.frame = own  # type: ignore[method-assign]
    return {
        "name": "ui",
        "turns": count,
        "updates_per_s": round(len(look.sizes) / wall_s, 1),
        "frame_bytes": max(look.sizes, default=0),
        "worker_ms": round(_each_ms(by_worker), 2),
        "frame_ms": round(_each_ms(by_frames), 2),
        "core_percent": round(100 * (by_worker.cpu_s + by_frames.cpu_s + look.cpu_s) / wall_s, 2),
        "s": round(wall_s, 1),
    }


def _each_ms(spent: Spent) -> float:
    return spent.cpu_s / spent.num * 1000 if spent.num else 0.0


def _asked(engine: Engine, store: Store, chat: str, count: int) -> Request:
    """The last of so many turns is asked; those before it are in the store, with their figures."""
    generator = torch.Generator().manual_seed(count)
    num_tokens = count * TURN_TOKENS
    vocabulary = engine.loaded.spec.vocab_size
    ids = torch.randint(10, vocabulary, (num_tokens,), generator=generator).tolist()
    spans = []
    for turn in range(1, count + 1):
        question = store.append(chat, "user", f"Question {turn}")
        start = (turn - 1) * TURN_TOKENS
        spans.append(Span("turn", question.hash, turn, start, start + TURN_TOKENS))
        if turn < count:
            reply = store.append(chat, "assistant", f"Reply {turn}")
            figures = {"reused_tokens": start, "prefill_s": 0.1, "decode_tokens_per_s": 10.0}
            made = Generation(reply.hash, (), "stop", figures, [], engine.loaded.name, time.time())
            store.add_generation(chat, made)
    return Request(tuple(ids), tuple(spans), NEW_TOKENS, _CHUNK, chat=chat)
