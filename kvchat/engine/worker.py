"""The one thread that owns the device: loads a model, then makes one reply at a time, until it is
told to let that model go and to load another.

Requests wait in order of priority; events come back through a queue of each request's own. When
nothing is asked, memory is measured once a second, so that what is shown stays true, and formats of
the cache are tried that nothing is known of. Knows no chat and no document.
"""

from __future__ import annotations

import gc
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kvchat.device.heap import trim
from kvchat.engine.events import Done, Event, Failed, Figures, Framed, Prefilled, Request, Token
from kvchat.engine.timeline import Timeline
from kvchat.errors import KVChatError, ModelError
from kvchat.models.progress import LoadProgress

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

logger = logging.getLogger(__name__)

IDLE_INTERVAL_S = 1.0
SAVING_INTERVAL_S = 0.01
WAITING_INTERVAL_S = 0.1
LONGEST_END_S = 30.0  # of a step, and of what is still to be written to disk
Stage = Literal["loading", "ready", "prefill", "decode", "stopping", "error", "unloaded"]
Load = Callable[[Callable[[LoadProgress], None], threading.Event], "Engine"]


@dataclass(order=True)
class _Job:
    priority: int
    number: int
    request: Request | None = field(compare=False)
    events: queue.SimpleQueue[Event] = field(compare=False, default_factory=queue.SimpleQueue)
    claim: threading.Lock = field(compare=False, default_factory=threading.Lock)

    def claimed(self) -> bool:
        """Whether the caller is the first to take the job: to answer it, or to take it back."""
        return self.claim.acquire(blocking=False)


class Worker:
    """Starts its thread when made. `load` makes the engine, reporting progress, until told to
    stop.

    `error`: why there is no engine. `refused`: why the one that was wanted last is not the one that
    there is. `progress`: of the loading under way, which began at `load_began_s` (monotonic).
    """

    def __init__(self, load: Load) -> None:
        self._wanted: tuple[Load, ...] | None = (load,)
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._cancel_load = threading.Event()
        self._loaded = threading.Event()
        self._change = threading.Lock()
        self._closing = False
        self._current: Request | None = None
        self._unchecked = False
        self.engine: Engine | None = None
        self.error: KVChatError | None = None
        self.refused: KVChatError | None = None
        self.progress: LoadProgress | None = None
        self.load_began_s = time.monotonic()
        self._stage: Stage = "loading"
        self.frame: dict[str, Any] | None = None
        self.timeline = Timeline()
        self._thread = threading.Thread(target=self._work, name="kvchat-worker", daemon=True)
        self._thread.start()

    @property
    def stage(self) -> Stage:
        """What the thread is at; `stopping` from the moment that the answer was told to end."""
        current = self._current
        return "stopping" if current is not None and current.cancel.is_set() else self._stage

    # --- for other threads ------------------------------------------------------------------------

    def is_loaded(self, timeout_s: float | None = None) -> bool:
        """Whether loading is over, by then, whichever way it ended."""
        return self._loaded.wait(timeout_s)

    def wait_ready(self, timeout_s: float | None = None) -> Engine:
        """The engine, once it is loaded. Raises ModelError if that failed or takes longer."""
        if not self._loaded.wait(timeout_s):
            raise ModelError("model_still_loading")
        engine = self.engine
        if engine is None:
            raise self._why_not()
        return engine

    def _why_not(self) -> KVChatError:
        return self.error.alone() if self.error is not None else ModelError("closing")

    def submit(self, request: Request) -> Iterator[Event]:
        """The events of one reply, as they come; the last is Done or Failed.

        A request that is told to end while others are answered does not wait for its turn.
        """
        job = _Job(request.priority, next(self._numbers), request)
        self._jobs.put(job)
        while True:
            event = self._next_event(job, request)
            yield event
            if isinstance(event, (Done, Failed)):
                return

    def _next_event(self, job: _Job, request: Request) -> Event:
        while True:
            try:
                return job.events.get(timeout=WAITING_INTERVAL_S)
            except queue.Empty:
                if request.cancel.is_set() and job.claimed():
                    figures = Figures(len(request.prompt_ids), 0, 0, 0.0, 0.0, 0.0, 0, {})
                    return Done("", (), "cancelled", figures)
                if not self._thread.is_alive() and job.claimed():
                    return Failed(self._why_not(), "", ())

    def closing_model(self) -> None:
        """Who asks from now on waits for the model that is to come: call `change` next."""
        self._loaded.clear()

    def change(self, *loads: Load) -> None:
        """Lets go of the model once the answer under way has ended, and calls off a loading under
        way; then loads what is given, the first that can be loaded. None given: none is loaded.

        Requests that wait are for the model that goes: who asks must not have any.
        """
        with self._change:
            self._loaded.clear()
            self._wanted = loads
            self._cancel_load.set()
        self._jobs.put(_Job(-1, next(self._numbers), None))

    def cancel_load(self) -> None:
        """Calls off the loading under way, if there is one: the next of what may be loaded is."""
        with self._change:
            if not self._loaded.is_set():
                self._cancel_load.set()

    def close(self) -> bool:
        """Stops what is being made, ends the thread and lets go of the model. False where a step
        takes longer than that may: then the model is let go of after it.
        """
        with self._change:
            self._closing = True
            self._cancel_load.set()
        current = self._current
        if current is not None:
            current.cancel.set()
        self._jobs.put(_Job(-1, -1, None))
        self._thread.join(timeout=LONGEST_END_S)
        return not self._thread.is_alive()

    # --- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closing:
            self._open_wanted()
            if self.engine is not None:
                self._serve(self.engine)
                self._let_go()
            else:
                self._refuse_until_wanted()
        self._refuse_the_rest()

    def _open_wanted(self) -> None:
        """The first of what is wanted that can be loaded; whatever comes of it, it is known then
        that loading is over, unless something else is wanted by now.
        """
        with self._change:
            loads = self._wanted or ()
            self._wanted, self.refused = None, None
        self.error = ModelError("model_unloaded") if not loads else None
        if not loads:
            self._stage = "unloaded"
        for load in loads:
            with self._change:
                if self._wanted is not None or self._closing:
                    break
                self._cancel_load.clear()
            self._open_engine(load)
            if self.engine is not None:
                break
            self.refused = self.refused or self.error
        with self._change:
            if self._wanted is None:
                self._loaded.set()

    def _begin_load(self) -> None:
        self.progress, self.load_began_s, self._stage = None, time.monotonic(), "loading"

    def _open_engine(self, load: Load) -> None:
        self._begin_load()
        self.error = None
        try:
            self.engine = load(self._on_progress, self._cancel_load)
            self._stage = "ready"
        except KVChatError as error:
            called_off = error.code == "load_cancelled"
            self.error = error.alone()  # its frames hold the weights
            self._stage = "unloaded" if called_off else "error"
        except Exception as error:
            logger.exception("loading failed")
            self._stage = "error"
            self.error = ModelError("model_load_failed", why=" ".join(str(error).split())[:200])

    @property
    def _is_wanted(self) -> bool:
        """Whether the thread is to leave what it does."""
        return self._closing or self._wanted is not None

    def _serve(self, engine: Engine) -> None:
        self._measure(engine)
        proving = False
        while not self._is_wanted:
            saving = self._saves(engine)
            busy = saving or proving
            try:
                job = self._jobs.get(timeout=SAVING_INTERVAL_S if busy else IDLE_INTERVAL_S)
            except queue.Empty:
                if not saving:
                    reading = self._reads_ahead(engine)
                    proving = reading or self._gauges(engine) or self._proves(engine)
                    self._measure(engine)
                    self._check(engine)
                continue
            if job.request is not None and job.claimed():
                if engine.proving is not None:
                    engine.proving.rest()
                if engine.gauging is not None:
                    engine.gauging.rest()
                proving = False
                self._answer(engine, job, job.request)

    def _let_go(self) -> None:
        """Gives back all that the engine holds."""
        engine, self.engine, self.frame = self.engine, None, None
        assert engine is not None
        self._stage = "unloaded"
        if self._wanted:
            self._begin_load()
        self._close(engine)
        if self._closing:
            return
        from kvchat.device.oom import release  # torch, which takes seconds

        device = engine.loaded.device
        engine.give_back()
        del engine
        gc.collect()  # models and their caches point at each other
        release(device)
        trim()

    def _saves(self, engine: Engine) -> bool:
        """Saves a piece between answers; whether there is more to save."""
        try:
            return engine.save()
        except Exception:
            logger.exception("saving failed")
            return False

    def _reads_ahead(self, engine: Engine) -> bool:
        """Reads a chunk of what may be asked about next; whether there is more to do."""
        ahead = engine.ahead
        if ahead is None:
            return False
        try:
            return ahead.go_on(lambda: self._is_wanted or not self._jobs.empty())
        except Exception:
            logger.exception("a text could not be read ahead")
        ahead.failed()  # out of the except block, which keeps the step's tensors alive
        return False

    def _proves(self, engine: Engine) -> bool:
        """Tries the formats a little further, until somebody asks; whether there is more to do."""
        proving = engine.proving
        if proving is None:
            return False
        try:
            return proving.go_on(lambda: self._closing or not self._jobs.empty())
        except Exception:
            logger.exception("the formats could not be tried")
        proving.failed()  # out of the except block, which keeps the step's tensors alive
        return False

    def _gauges(self, engine: Engine) -> bool:
        """Measures the device a little further; whether there is more to do."""
        gauging = engine.gauging
        if gauging is None:
            return False
        try:
            return gauging.go_on()
        except Exception:
            logger.exception("the device could not be measured")
        gauging.failed()  # out of the except block, as above
        return False

    def _close(self, engine: Engine) -> None:
        try:
            engine.close()
        except Exception:
            logger.exception("the engine could not be closed")

    def _on_progress(self, progress: LoadProgress) -> None:
        self.progress = progress

    def _measure(self, engine: Engine) -> None:
        try:
            engine.trim()
            self._show(engine.frame())
        except Exception:
            logger.exception("measuring failed")

    def _show(self, frame: dict[str, Any]) -> None:
        self.frame = frame
        self.timeline.add(frame)

    def _check(self, engine: Engine) -> None:
        """Once after answers, when nothing is asked: what is found is told, and the thread goes
        on.
        """
        if self._unchecked:
            self._unchecked = False
            try:
                engine.check()
            except AssertionError:
                logger.exception("the cache is not what it should be")

    def _answer(self, engine: Engine, job: _Job, request: Request) -> None:
        self._current, self._stage = request, "prefill"
        failed = self._failure_of(engine, job, request)
        if failed is not None:  # out of the except block, which keeps the reply's tensors alive
            self._close_text(engine)
            job.events.put(failed)
        self._current, self._stage, self._unchecked = None, "ready", True
        trim()  # a few milliseconds

    def _failure_of(self, engine: Engine, job: _Job, request: Request) -> Failed | None:
        """Hands the reply's events on; what it must be ended with if an error cut it short."""
        from kvchat.device.oom import is_out_of_memory, release  # torch, which takes seconds

        ended = False
        try:
            for event in engine.run(request):
                self._note(event)
                ended = isinstance(event, (Done, Failed))
                job.events.put(event)
            return None
        except Exception as error:
            logger.exception("a reply failed")
            is_short = is_out_of_memory(error)
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if ended:
            return None
        if is_short:  # outside of any step, where nothing could be done again
            release(engine.loaded.device)
            return Failed(engine.room.out_of_memory(0), "", ())
        return Failed(ModelError("step_failed", why=why), "", ())

    def _close_text(self, engine: Engine) -> None:
        """The thread goes on whatever happens: others wait for it."""
        try:
            engine.close_text()
        except Exception:
            logger.exception("a text could not be closed")

    def _note(self, event: Event) -> None:
        if isinstance(event, Prefilled):
            self._stage = "prefill"
        elif isinstance(event, Token):
            self._stage = "decode"
        elif isinstance(event, Framed):
            self._show(event.frame)

    def _refuse_until_wanted(self) -> None:
        """While there is no model: who asks is told why."""
        while not self._is_wanted:
            self._refuse(self._jobs.get())

    def _refuse_the_rest(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._refuse(self._jobs.get_nowait())

    def _refuse(self, job: _Job) -> None:
        if job.request is not None and job.claimed():
            job.events.put(Failed(self._why_not(), "", ()))
