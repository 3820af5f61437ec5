"""The thread that owns the device: who goes first, and that nobody waits for what is over."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Failed, Priority, Request, Token
from kvchat.engine.limits import Limits
from kvchat.engine.worker import Load, Worker
from kvchat.errors import ModelError
from kvchat.models.load import load_model
from kvchat.models.progress import LoadProgress
from kvchat.settings import RUNGS
from kvchat.units import GIB
from tests.engine.test_engine import MakeEngine, random_ids, request
from tests.tiny import tiny_folder

MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorker]:
    """Answers end where they are told to, not with a token of the model's own choice."""
    monkeypatch.setattr(make_engine().loaded, "eos_token_ids", frozenset())
    made: list[Worker] = []

    def make(load: Callable[..., Engine] | None = None) -> Worker:
        made.append(Worker(load or (lambda *_: make_engine())))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


class Asked(threading.Thread):
    """Reads the events of a request as a conversation does."""

    def __init__(self, worker: Worker, asked: Request) -> None:
        super().__init__(daemon=True)
        self.events: list[Event] = []
        self.first = threading.Event()
        self._worker, self.asked = worker, asked
        self.start()

    def run(self) -> None:
        for event in self._worker.submit(self.asked):
            self.events.append(event)
            if isinstance(event, Token):
                self.first.set()

    def ended(self, timeout_s: float = 30) -> Event:
        self.join(timeout_s)
        assert not self.is_alive()
        return self.events[-1]


def long_request(seed: int = 1, **changes: object) -> Request:
    cancel = threading.Event()
    return request(random_ids(40, seed), max_new_tokens=1900, cancel=cancel, **changes)


def test_who_waits_need_not_wait_to_be_stopped(make_worker: MakeWorker) -> None:
    """C28: a question that is queued behind a long answer ends when it is told to."""
    worker = make_worker()
    answering = Asked(worker, long_request())
    assert answering.first.wait(60)
    waiting = Asked(worker, long_request(2))
    waiting.asked.cancel.set()
    end = waiting.ended()
    assert isinstance(end, Done)
    assert (end.finish_reason, end.ids, len(waiting.events)) == ("cancelled", (), 1)
    assert end.figures.prompt_tokens == 40
    assert answering.is_alive()
    answering.asked.cancel.set()
    assert isinstance(answering.ended(), Done)
    assert isinstance(Asked(worker, request(random_ids(30, 3))).ended(), Done)


def test_people_go_before_programs(make_worker: MakeWorker) -> None:
    worker = make_worker()
    answering = Asked(worker, long_request())
    assert answering.first.wait(60)
    program = Asked(worker, long_request(2, priority=Priority.API))
    while worker._jobs.qsize() < 1:
        time.sleep(0.01)
    person = Asked(worker, long_request(3, priority=Priority.PERSON))
    while worker._jobs.qsize() < 2:
        time.sleep(0.01)
    answering.asked.cancel.set()
    assert person.first.wait(60)
    assert not program.events
    person.asked.cancel.set()
    assert program.first.wait(60)
    program.asked.cancel.set()
    assert isinstance(program.ended(), Done)


def test_closing_ends_what_waits_and_what_comes_too_late(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.wait_ready(60)
    worker.close()
    late = Asked(worker, long_request()).ended()
    assert isinstance(late, Failed)
    assert late.error.code == "closing"


def test_a_model_that_cannot_be_loaded_fails_every_request(make_worker: MakeWorker) -> None:
    def load(progress: object, cancel: object) -> Engine:
        raise ModelError("model_load_failed", why="no such thing")

    worker = make_worker(load)
    with pytest.raises(ModelError):
        worker.wait_ready(60)
    for _ in range(2):
        failed = Asked(worker, long_request()).ended()
        assert isinstance(failed, Failed)
        assert failed.error.code == "model_load_failed"
    assert worker.stage == "error"


def test_an_error_in_a_reply_ends_only_that_reply(make_worker: MakeWorker) -> None:
    worker = make_worker()
    engine = worker.wait_ready(60)
    right = engine.local.step
    engine.local.step = lambda *_: 1 / 0  # type: ignore[assignment,method-assign]
    failed = Asked(worker, request(random_ids(30))).ended()
    assert isinstance(failed, Failed)
    assert failed.error.code == "step_failed"
    engine.local.step = right  # type: ignore[method-assign]
    assert isinstance(Asked(worker, request(random_ids(30))).ended(), Done)
    engine.close_text()
    engine.pool.check_integrity(0)


def test_closing_in_mid_answer_ends_all_and_lets_go_of_the_model(make_worker: MakeWorker) -> None:
    """C06: whoever still holds the worker does not hold the engine."""
    worker = make_worker()
    engine = weakref.ref(worker.wait_ready(60))
    answering = Asked(worker, long_request())
    assert answering.first.wait(60)
    waiting = [Asked(worker, long_request(seed)) for seed in (2, 3)]
    worker.close()
    assert isinstance(answering.ended(), Done)
    for one in waiting:
        end = one.ended()
        assert isinstance(end, Failed)
        assert end.error.code == "closing"
    gc.collect()
    assert engine() is None
    with pytest.raises(ModelError):
        worker.wait_ready(1)


def test_a_text_that_cannot_be_closed_ends_no_thread(make_worker: MakeWorker) -> None:
    """The next question is answered though the error's own clean-up failed as well."""
    worker = make_worker()
    engine = worker.wait_ready(60)
    assert isinstance(Asked(worker, request(random_ids(30))).ended(), Done)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.local, "step", lambda *_: 1 / 0)
        patch.setattr(engine.local, "close", lambda *_: 1 / 0)
        for _ in range(2):
            assert isinstance(Asked(worker, request(random_ids(30))).ended(), Failed)
    assert isinstance(Asked(worker, request(random_ids(30))).ended(), Done)


def test_an_error_of_loading_holds_nothing_of_the_loading(make_worker: MakeWorker) -> None:
    """A model too large for the budget is refused after it was read: its weights do not stay."""

    class Weights:
        pass

    held = []

    def load(progress: object, cancel: object) -> Engine:
        weights = Weights()
        held.append(weakref.ref(weights))
        raise ModelError("model_load_failed", why="no such thing")

    worker = make_worker(load)
    for _ in range(3):
        with pytest.raises(ModelError) as caught:
            worker.wait_ready(60)
    gc.collect()
    assert held[0]() is None
    assert len(caught.traceback) < 5  # not one more frame each time it is told


def test_the_cache_is_checked_when_idle_and_faults_are_told_not_fatal(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an answer nothing is amiss; a block that nobody holds but is counted as held is."""
    checked, right = threading.Semaphore(0), Engine.check

    def check(engine: Engine) -> None:
        try:
            right(engine)
        finally:
            checked.release()

    monkeypatch.setattr(Engine, "check", check)
    worker = make_worker()
    assert isinstance(Asked(worker, request(random_ids(200, 5))).ended(), Done)
    assert checked.acquire(timeout=60)
    engine = worker.wait_ready()
    next(iter(engine.pool.index.all())).ref_count += 1
    assert "cache is not what" not in caplog.text
    assert isinstance(Asked(worker, request(random_ids(30, 6))).ended(), Done)
    assert checked.acquire(timeout=60)
    assert isinstance(Asked(worker, request(random_ids(30, 7))).ended(), Done)
    assert "cache is not what it should be" in caplog.text
    assert "held by texts" in caplog.text


@pytest.fixture
def own(tmp_path: Path) -> Callable[[int], Load]:
    """Engines of their own: what is let go of cannot be used by other tests any more."""

    def of(seed: int) -> Load:
        def load(progress: object, cancel: object) -> Engine:
            folder = tmp_path / str(seed)
            if not folder.is_dir():
                tiny_folder("llama", folder, seed=seed)
            loaded = load_model(str(folder), data_dir=tmp_path)
            roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
            return Engine(loaded, FakeProbe([roomy]), Limits(None, GIB, RUNGS))

        return load

    return of


def test_another_engine_is_loaded_and_answers(
    make_worker: MakeWorker, own: Callable[[int], Load]
) -> None:
    def told(progress: Callable[[LoadProgress], None], cancel: object) -> Engine:
        seen.append(worker.progress)  # nothing of the loading before
        progress(LoadProgress("prepare", 0, 0))
        return own(7)(progress, cancel)

    worker, seen = make_worker(own(1)), list[LoadProgress | None]()
    first = worker.wait_ready(60)
    worker.change(told)
    second = worker.wait_ready(60)
    assert second is not first
    close = second.close
    second.close = lambda: (seen.append(worker.progress), close())[1]  # type: ignore[method-assign]
    worker.change(own(1))
    worker.wait_ready(60)
    assert seen == [None, None], (
        "what is told is of this loading, also while the model is let go of"
    )
    assert isinstance(Asked(worker, request(random_ids(30, 3))).ended(), Done)


def test_what_cannot_be_loaded_leaves_room_for_what_can(
    make_worker: MakeWorker, own: Callable[[int], Load]
) -> None:
    def fails(progress: object, cancel: object) -> Engine:
        raise ModelError("model_load_failed", why="no such thing")

    worker = make_worker(own(1))
    worker.wait_ready(60)
    worker.change(fails, own(7))
    worker.wait_ready(60)
    assert worker.refused is not None
    assert (worker.refused.code, worker.error) == ("model_load_failed", None)
    worker.change(fails)
    with pytest.raises(ModelError, match="no such thing"):
        worker.wait_ready(60)
    assert worker.stage == "error"
    failed = Asked(worker, request(random_ids(30, 3))).ended()
    assert isinstance(failed, Failed)
    worker.change()
    with pytest.raises(ModelError):
        worker.wait_ready(60)
    assert worker.stage == "unloaded"
    worker.change(own(8))
    worker.wait_ready(60)


def test_a_loading_is_called_off_by_another_one_and_by_hand(
    make_worker: MakeWorker, own: Callable[[int], Load]
) -> None:
    begun = threading.Event()

    def slow(progress: object, cancel: threading.Event) -> Engine:
        begun.set()
        assert cancel.wait(60)
        raise ModelError("load_cancelled")

    worker = make_worker(own(1))
    worker.wait_ready(60)
    worker.change(slow)
    assert begun.wait(60)
    worker.change(own(7))
    worker.wait_ready(60)
    assert worker.refused is None, "another one was wanted"
    begun.clear()
    worker.change(slow)
    assert begun.wait(60)
    worker.cancel_load()
    with pytest.raises(ModelError, match="called off"):
        worker.wait_ready(60)
    assert worker.stage == "unloaded"
    begun.clear()
    worker.change(slow)
    assert begun.wait(60)
    assert worker.close(), "a loading does not keep the program from ending"
