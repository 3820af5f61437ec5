"""Memory that runs out while a text is stored in less, moved, brought back, raised, read from disk
or written there: the answer is that of a run to which the same was done at the same token, bit by
bit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Request, Sampling, Took
from kvchat.engine.limits import Limits
from kvchat.kvcache.blocks import FP
from kvchat.kvcache.disk import KVFolder
from kvchat.kvcache.kv_file import KVFileReader
from kvchat.kvcache.pool import Storing
from kvchat.kvcache.spans import Span, whole_blocks
from kvchat.kvcache.tiers import DiskPlace
from kvchat.memory.formats import FormatPair
from kvchat.models.load import LoadedModel
from kvchat.planner.costs import Relief
from kvchat.units import GIB
from tests.engine.test_engine import done, random_ids
from tests.faults import (
    Failing,
    Recorder,
    RecordFaults,
    assert_same_logits,
    count_faults,
    failing_calls,
    other_error,
)

LoadAs = Callable[[str], LoadedModel]
INT8, INT4 = FormatPair.parse("int8"), FormatPair.parse("int4/int4")
FIRST, SECOND, THIRD = (random_ids(n) for n in (300, 460, 480))  # each goes on from the one before
OLD = ((0, 128),)
CHUNK, REPLY = 64, 3
HOT = Sampling(temperature=1.0, seed=5)
SPANS = (Span("turn", "old", 1, 0, 128), Span("turn", "now", 2, 128, 300))
ROOMY = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)


def asked(ids: tuple[int, ...], sampling: Sampling = HOT) -> Request:
    return Request(ids, SPANS, REPLY, CHUNK, sampling, old=OLD, chat="c1")


def answer(engine: Engine, ids: tuple[int, ...]) -> list[Event]:
    events = list(engine.run(asked(ids)))
    engine.close_text()
    return events


def answer_before(engine: Engine, ids: tuple[int, ...]) -> None:
    """A turn of which whole blocks alone are found again, so that the next one reads the same steps
    wherever there was room for its newest tokens and where not.
    """
    answer(engine, ids)
    for tail in list(engine.pool.index.tails):
        engine.pool.drop_tail(tail)


def engine_of(loaded: LoadedModel, rung: str, **limits: object) -> Engine:
    """With that rung alone on its ladder, unless it is told otherwise."""
    storing = Storing(FP, INT4 if rung == "requantize" else FP)
    known = Limits(None, GIB, (rung,), storing, lower=(INT8, INT4), host_quota=GIB)
    return Engine(loaded, FakeProbe([ROOMY]), replace(known, **limits))  # type: ignore[arg-type]


def budget_for(engine: Engine, num_tokens: int, rung: str) -> int:
    """What a text needs with its old blocks in less, or on the host."""
    blocks = len(whole_blocks(OLD))
    relief = Relief(INT8) if rung == "requantize" else Relief(host_bytes=GIB)
    total = num_tokens + REPLY
    return engine.costs.footprint(total, CHUNK, 0, relief, blocks).total


@dataclass(frozen=True, slots=True)
class Scene:
    """The rung that is taken in the turn to be disturbed, or was before and is taken back in it."""

    rung: str
    back: bool = False
    keep_originals: bool = False


SCENES = {
    "requantize": Scene("requantize"),
    "requantize, originals kept": Scene("requantize", keep_originals=True),
    "offload": Scene("offload"),
    "raise": Scene("requantize", back=True, keep_originals=True),
    "bring_back": Scene("offload", back=True),
}


def before(loaded: LoadedModel, scene: Scene) -> tuple[Engine, Recorder, tuple[int, ...]]:
    """All that comes before the turn to be disturbed; and what is asked in that."""
    ladder = ("drop_idle", scene.rung)
    engine = engine_of(loaded, scene.rung, ladder=ladder, keep_originals=scene.keep_originals)
    recorder = Recorder(engine)
    answer_before(engine, FIRST)
    engine.limits = replace(engine.limits, budget=budget_for(engine, len(SECOND), scene.rung))
    if not scene.back:
        return engine, recorder, SECOND
    answer_before(engine, SECOND)
    engine.limits = replace(engine.limits, budget=None)
    return engine, recorder, THIRD


def repeated(loaded: LoadedModel, scene: Scene, recorder: Recorder) -> tuple[Recorder, Done]:
    """The same turns with all the room there is, the same done to the same blocks."""
    engine = engine_of(loaded, scene.rung, keep_originals=scene.keep_originals)
    engine.room.bring_back = lambda *_: iter(())  # type: ignore[method-assign]  # as recorded only
    again = recorder.repeat(engine)
    *earlier, last = (FIRST, SECOND, THIRD) if scene.back else (FIRST, SECOND)
    for ids in earlier:
        answer_before(engine, ids)
    return again, done(answer(engine, last))


def assert_nothing_stays(engine: Engine) -> None:
    engine.check()
    engine.limits = replace(engine.limits, budget=None)
    assert isinstance(answer(engine, random_ids(6, 9))[-1], Done)
    engine.local.drop_kept()
    pool = engine.pool
    pool.check_integrity(0)
    pool.drop_idle(2**60)
    pool.host_limit_bytes = 0
    pool.trim_host()
    assert pool.device_bytes == pool.host_bytes == 0


@pytest.mark.parametrize("name", SCENES)
def test_a_call_may_fail_while_a_measure_is_taken(
    loaded_as: LoadAs, name: str, record_property: RecordFaults
) -> None:
    survived = check_scene(loaded_as("full"), SCENES[name], 9)
    count_faults(record_property, f"turn with {name}", survived)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_any_call_may_fail_while_a_measure_is_taken(
    loaded_as: LoadAs, name: str, record_property: RecordFaults
) -> None:
    survived = check_scene(loaded_as("full"), SCENES[name], 60)
    count_faults(record_property, f"turn with {name}", survived)


def check_scene(loaded: LoadedModel, scene: Scene, num_points: int) -> int:
    """At so many calls, evenly spread over the turn."""
    engine, recorder, ids = before(loaded, scene)
    num_before = len(recorder.done)
    with Failing(0, 0) as counted:
        events = answer(engine, ids)
    assert len(recorder.done) > num_before, "nothing was done in that turn"
    assert isinstance(events[-1], Done)
    survived = 0
    for point in range(num_points):
        at = 1 + point * counted.calls // num_points
        engine, recorder, ids = before(loaded, scene)
        with Failing(at) as failing:
            events = answer(engine, ids)
        last = events[-1]
        assert isinstance(last, Done), (at, last)
        again, expected = repeated(loaded, scene, recorder)
        assert_same_logits(recorder.logits, again.logits, at)
        assert last.ids == expected.ids, at
        assert_nothing_stays(engine)
        survived += failing.num_failed
    return survived


@pytest.mark.parametrize("name", SCENES)
def test_what_is_no_lack_of_memory_ends_the_answer_and_loses_nothing(
    loaded_as: LoadAs, name: str
) -> None:
    loaded, scene = loaded_as("full"), SCENES[name]
    engine, _, ids = before(loaded, scene)
    with Failing(0, 0) as counted:
        answer(engine, ids)
    for point in range(5):
        engine, _, ids = before(loaded, scene)
        with Failing(1 + point * counted.calls // 5, error=other_error()) as failing:
            with pytest.raises(RuntimeError, match="size mismatch"):
                answer(engine, ids)
            assert failing.num_failed == 1
        engine.close_text()
        assert_nothing_stays(engine)


# --- the ladder after a failure -------------------------------------------------------------------


def undisturbed(loaded: LoadedModel, sampling: Sampling = HOT) -> Done:
    engine = engine_of(loaded, "drop_idle")
    answer(engine, FIRST)
    return done(list(engine.run(asked(SECOND, sampling))))


@pytest.mark.parametrize("rung", ["drop_idle", "offload"])
@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_after_a_rung_that_loses_nothing_the_tokens_are_the_same(
    loaded_as: LoadAs, kind: str, rung: str
) -> None:
    """The retry fails as well: the next rung is taken, in prefill and in decode."""
    loaded = loaded_as(kind)
    expected = undisturbed(loaded)
    taken = set()
    for step in (1, 2, 3, 4):
        engine = engine_of(loaded, rung)
        answer(engine, FIRST)
        answer(engine, random_ids(200, 8))  # idle beside
        with failing_steps(engine, step, times=2):
            events = list(engine.run(asked(SECOND)))
        assert done(events).ids == expected.ids, step
        taken |= {e.entry["code"] for e in events if isinstance(e, Took)}
        engine.close_text()
        assert_nothing_stays(engine)
    assert any(code.startswith(rung) for code in taken), taken


@pytest.mark.parametrize("kind", ["full", "sliding", "latent", "library"])
def test_after_a_smaller_chunk_the_greedy_tokens_are_the_same(loaded_as: LoadAs, kind: str) -> None:
    loaded, greedy = loaded_as(kind), Sampling()
    expected = undisturbed(loaded, greedy)
    for step in (1, 2):
        engine = engine_of(loaded, "shrink_chunk")
        answer(engine, FIRST)
        with failing_steps(engine, step, times=2):
            events = list(engine.run(asked(SECOND, greedy)))
        assert done(events).ids == expected.ids, step
        codes = [e.entry["code"] for e in events if isinstance(e, Took)]
        assert [one for one in codes if one != "read_again"] == ["retry", "shrink_chunk"]
        engine.close_text()
        assert_nothing_stays(engine)


@pytest.mark.parametrize("step", [1, 3, 5])
def test_after_a_lossy_rung_it_is_as_with_that_measure_at_that_token(
    loaded_as: LoadAs, step: int
) -> None:
    loaded = loaded_as("full")
    engine = engine_of(loaded, "requantize")
    recorder = Recorder(engine)
    answer_before(engine, FIRST)
    with failing_steps(engine, step, times=2):
        events = list(engine.run(asked(SECOND)))
    assert recorder.done, "nothing was stored in less"
    again, expected = repeated(loaded, SCENES["requantize"], recorder)
    assert_same_logits(recorder.logits, again.logits, step)
    assert done(events).ids == expected.ids
    engine.close_text()
    assert_nothing_stays(engine)


class failing_steps:  # noqa: N801 - a context
    """The model's n-th forward from here on runs out of memory half-way, so many times."""

    def __init__(self, engine: Engine, at: int, times: int) -> None:
        self.layer = engine.loaded.model.model.layers[1]
        self.at, self.times, self.calls = at, times, 0
        self.hook = self.layer.register_forward_pre_hook(self.fail)

    def fail(self, *_: object) -> None:
        self.calls += 1
        if self.at <= self.calls < self.at + self.times:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def __enter__(self) -> None:
        """Counts from now on."""

    def __exit__(self, *_: object) -> None:
        self.hook.remove()


# --- the disk -------------------------------------------------------------------------------------


def engine_on(loaded: LoadedModel, folder: Path, quota: int = GIB) -> Engine:
    limits = Limits(None, GIB, ("drop_idle",), disk_quota=quota, disk_format=FP)
    place = DiskPlace(KVFolder(folder), b"weights")
    return Engine(loaded, FakeProbe([ROOMY]), limits, place=place)


def saved(engine: Engine) -> None:
    while engine.save():
        pass


def unwatched(reader: KVFileReader, name: str) -> torch.Tensor:
    """Of safetensors' own calls of torch none allocates, and what they raise it takes for another
    error.
    """
    with _disable_current_modes():
        return right_tensor(reader, name)


right_tensor = KVFileReader._tensor


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_a_call_may_fail_while_a_text_comes_from_disk(
    loaded_as: LoadAs,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: RecordFaults,
) -> None:
    """What could not be loaded is read again; the files stay and serve the next time."""
    monkeypatch.setattr(KVFileReader, "_tensor", unwatched)
    loaded = loaded_as(kind)
    first = engine_on(loaded, tmp_path)
    answer(first, FIRST)
    first.close()
    files = sorted(tmp_path.glob("*/*.safetensors"))
    assert files
    engine = engine_on(loaded, tmp_path)
    with Failing(0, 0) as counted:
        events = answer(engine, SECOND)
    assert "restore" in {e.entry["code"] for e in events if isinstance(e, Took)}
    expected, survived = done(events).ids, 0
    points = [*range(1, 30, 3), *range(30, counted.calls + 1, counted.calls // 6)]
    for at in points:
        engine = engine_on(loaded, tmp_path)
        with Failing(at) as failing:
            events = answer(engine, SECOND)
        assert done(events).ids == expected, at
        survived += failing.num_failed
        assert_nothing_stays(engine)
    with failing_calls(KVFileReader, ("__init__", "_tensor", "read"), 0, 0) as counts:
        answer(engine_on(loaded, tmp_path), SECOND)
    for at in range(1, counts["calls"] + 1):
        engine = engine_on(loaded, tmp_path)
        with failing_calls(KVFileReader, ("__init__", "_tensor", "read"), at) as failed:
            events = answer(engine, SECOND)
        assert done(events).ids == expected, at
        survived += failed["failed"]
        again = answer(engine, random_ids(30, 9)), answer(engine_on(loaded, tmp_path), SECOND)
        assert "restore" in {e.entry["code"] for e in again[1] if isinstance(e, Took)}
    assert set(files) <= set(tmp_path.glob("*/*.safetensors")), "no file is taken to be damaged"
    count_faults(record_property, "turn from disk", survived)


def test_a_file_that_finds_no_memory_now_serves_later(loaded_as: LoadAs, tmp_path: Path) -> None:
    """safetensors says it as an OSError without a number; a file that is gone is told apart."""
    loaded = loaded_as("full")
    first = engine_on(loaded, tmp_path)
    answer(first, FIRST)
    first.close()
    engine = engine_on(loaded, tmp_path)

    def codes() -> set[str]:
        events = answer(engine, SECOND)
        engine.pool.drop_idle(2**60)
        return {event.entry["code"] for event in events if isinstance(event, Took)}

    def no_memory(*_: object) -> None:
        raise OSError("Cannot allocate memory (os error 12)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KVFileReader, "__init__", no_memory)
        assert codes() == set()
    assert codes() == {"restore"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KVFileReader, "__init__", lambda *_: (_ for _ in ()).throw(FileNotFoundError))
        assert codes() == set()
    assert codes() == set()


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_a_call_may_fail_while_a_text_is_copied_for_the_disk(
    loaded_as: LoadAs, kind: str, tmp_path: Path, record_property: RecordFaults
) -> None:
    """It is not kept then, or not all of it; what is kept is right, and the next answer is."""
    loaded = loaded_as(kind)
    quiet = engine_on(loaded, tmp_path / "quiet")
    answer(quiet, FIRST)
    with Failing(0, 0) as counted:
        saved(quiet)
    assert counted.calls > 3
    expected = done(answer(quiet, SECOND)).ids
    quiet.close()
    survived = 0
    for at in range(1, counted.calls + 1):
        folder = tmp_path / str(at)
        engine = engine_on(loaded, folder)
        answer(engine, FIRST)
        with Failing(at) as failing:
            saved(engine)
        assert_nothing_stays(engine)
        engine.close()
        survived += failing.num_failed
        later = engine_on(loaded, folder)
        assert done(answer(later, SECOND)).ids == expected, at
        later.close()
    count_faults(record_property, "copies for the disk", survived)
