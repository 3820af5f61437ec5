"""Formats that nothing is known of are measured while nothing is asked: what passes is found out,
nobody waits for it, and nothing of it stays.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine import fidelity, proving
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done
from kvchat.engine.fidelity import (
    CHUNK_TOKENS,
    Lengths,
    PairReader,
    Score,
    reading,
    reading_bytes,
    shipped_sample,
)
from kvchat.engine.limits import Limits
from kvchat.engine.proving import LENGTHS, MOST_FAILURES, Proving
from kvchat.engine.worker import Worker
from kvchat.kvcache.blocks import FP
from kvchat.kvcache.pool import Pool
from kvchat.memory.formats import FormatPair
from kvchat.memory.verdicts import LEAST_SAME_PERCENT, MOST_KL, STEPS, Verdict, failure_of
from kvchat.models.catalog import builtin
from kvchat.models.load import LoadedModel, load_model
from kvchat.units import GIB
from tests.engine.test_engine import MakeEngine, done, random_ids, request
from tests.engine.test_injected import loaded_as as loaded_as
from tests.engine.test_worker import Asked, long_request
from tests.memory.live import LivePeak
from tests.tiny import builtin_data_dir, tiny_folder

NAMES = [str(pair) for pair in STEPS]
SHORT = Lengths(num_tokens=384, num_scored=128, num_around_needles=0)
NUM_STEPS = (1 + len(STEPS)) * SHORT.num_tokens // CHUNK_TOKENS
Known = dict[str, Verdict]


def give(engine: Engine) -> Known:
    """Lets the engine measure; what it finds."""
    known: Known = {}

    def keep(found: list[Verdict]) -> None:
        known.update({one.pair: one for one in found})

    engine.proving = Proving(engine, lambda: known, keep)
    return known


def after(num_steps: int) -> Callable[[], bool]:
    """Somebody wants the thread after so many chunks; it is asked once more before the first."""
    numbers = count(-1)
    return lambda: next(numbers) >= num_steps


def measured(engine: Engine) -> Known:
    known = give(engine)
    assert engine.proving is not None
    while engine.proving.go_on(lambda: False):
        pass
    return known


def engine_of(loaded: LoadedModel) -> Engine:
    roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
    return Engine(loaded, FakeProbe([roomy]), Limits(None, GIB, ("drop_idle",)))


def outlying(loaded: LoadedModel, times: float) -> None:
    """The same model as computed, with keys of which two values, that are rotated together, are so
    many times larger.
    """
    with torch.no_grad():
        for layer in loaded.model.model.layers:  # type: ignore[union-attr]
            layer.self_attn.k_proj.weight[3::8] *= times
            layer.self_attn.q_proj.weight[3::8] /= times


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> Iterator[None]:
    """What a reading held is collected after it: not the libraries each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts over so little say nothing, but are as much work to be given way for."""
    monkeypatch.setattr(proving, "LENGTHS", SHORT)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Pool]]:
    """The pools of readers, as they are made; and the worker looks around often."""
    pools: list[weakref.ref[Pool]] = []

    class Watched(Pool):
        def __init__(self, *about: Any) -> None:
            super().__init__(*about)
            pools.append(weakref.ref(self))

    monkeypatch.setattr(fidelity, "Pool", Watched)
    monkeypatch.setattr("kvchat.engine.worker.IDLE_INTERVAL_S", 0.02)
    return pools


@pytest.mark.parametrize(
    ("kind", "passed"), [("llama", NAMES[:1]), ("gemma3", NAMES)], ids=["llama", "gemma3"]
)
def test_what_a_model_passes_in_is_found_out(
    make_engine: MakeEngine, kind: str, passed: list[str]
) -> None:
    """As the benchmark would find it; nothing of the engine's own pool is touched."""
    engine = make_engine(kind)
    done(list(engine.run(request(random_ids(200)))))
    before = (engine.pool.device_bytes, engine.pool.idle_bytes, len(list(engine.pool.index.all())))
    known = measured(engine)
    assert list(known) == NAMES
    assert [name for name in NAMES if known[name].passed] == passed
    assert {one.num_scored for one in known.values()} == {LENGTHS.num_scored}
    assert {one.text for one in known.values()} == {"wording.en"}
    divergence = [known[name].kl for name in NAMES]
    assert divergence == sorted(divergence)
    assert divergence[0] < divergence[2]
    after_it = engine.pool.device_bytes, engine.pool.idle_bytes
    assert (*after_it, len(list(engine.pool.index.all()))) == before
    engine.close_text()
    engine.pool.check_integrity(0)
    assert engine.frame()["formats"]["stage"] == "done"


@pytest.mark.slow
def test_the_built_in_model_passes_what_it_passes_in_a_benchmark() -> None:
    """So little text tells int4 from int2, with much room between the two bounds."""
    loaded = load_model(builtin().name, data_dir=builtin_data_dir(), device=torch.device("cpu"))
    engine = engine_of(loaded)
    pairs = (FP, *STEPS, FormatPair.parse("int2"))
    readers = {str(pair): PairReader(engine, pair) for pair in pairs}
    scores = {name: Score(reader.bits) for name, reader in readers.items()}
    text = shipped_sample(loaded.name, "ko")
    assert text.name == "wording.en"
    ids = text.ids(loaded.tokenizer)
    for _ in reading(readers, scores, ids, LENGTHS, loaded.device):
        pass
    computed = scores.pop("fp/fp")
    found = {name: score.verdict(name, computed, text.name) for name, score in scores.items()}
    for name in NAMES:
        assert found[name].kl < MOST_KL / 4
        assert found[name].same_percent > LEAST_SAME_PERCENT + 1.5
    assert found["int2/int2"].kl > 3 * MOST_KL
    assert found["int2/int2"].same_percent < LEAST_SAME_PERCENT - 4


def test_keys_with_an_outlier_fail_though_the_model_is_the_same(make_engine: MakeEngine) -> None:
    """C08: safe for one model, rubbish for another."""
    engine = make_engine()
    asked = request(random_ids(150, 3))
    plain = done(list(engine.run(asked)))
    try:
        outlying(engine.loaded, 32)
        same = make_engine()
        assert done(list(same.run(asked))).ids == plain.ids
        known = measured(same)
    finally:
        outlying(engine.loaded, 1 / 32)
    assert not any(known[name].passed for name in NAMES)
    assert all(failure_of(pair, known) is not None for pair in STEPS)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("num_steps", [1, 2, 17, NUM_STEPS - 1])
def test_who_asks_in_the_middle_is_answered_as_ever(
    make_engine: MakeEngine, made: list[weakref.ref[Pool]], num_steps: int
) -> None:
    asked = request(random_ids(150, 3))
    plain = done(list(make_engine().run(asked)))
    engine = make_engine()
    held = engine.pool.device_bytes
    known = give(engine)
    trying = engine.proving
    assert trying is not None
    for _ in range(num_steps):  # as slowly as may be
        assert trying.go_on(after(1))
    assert trying.stage == "measuring"
    trying.rest()
    gc.collect()
    assert (trying.stage, known) == ("waiting", {})
    assert not any(pool() for pool in made)
    assert engine.pool.device_bytes == held
    found = done(list(engine.run(asked)))
    assert (found.ids, found.figures.reused_tokens) == (plain.ids, 0)
    while trying.go_on(lambda: False):
        pass
    assert list(known) == NAMES  # one by one from then on
    engine.close_text()
    engine.pool.check_integrity(0)


@pytest.fixture
def worker(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    made: list[weakref.ref[Pool]],
    short: None,
) -> Iterator[tuple[Worker, Known]]:
    """One whose model was never measured."""
    monkeypatch.setattr(make_engine().loaded, "eos_token_ids", frozenset())
    engine = make_engine()
    known = give(engine)
    engines = [engine]
    del engine
    found = Worker(lambda *_: engines.pop())
    yield found, known
    found.close()


def until_done(worker: Worker, stage: str = "done") -> None:
    waiting = threading.Event()
    trying = worker.wait_ready(60).proving
    for _ in range(6000):
        if trying is None or trying.stage == stage:
            return
        waiting.wait(0.01)
    raise AssertionError(f"not {stage} in a minute")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> "Reads":
    found = Reads()

    def read(reader: PairReader, *about: Any) -> Any:
        found.log.append("chunk")
        if found.num_left == 0:
            found.here.set()
            found.may_go_on.wait(60)
        found.num_left -= 1
        return found.right(reader, *about)

    monkeypatch.setattr(PairReader, "read", read)
    return found


class Reads:
    """Chunks that are read for the measuring; the sixth of them waits for the test."""

    def __init__(self) -> None:
        self.right = PairReader.read
        self.log: list[str] = []
        self.num_left = 5
        self.here, self.may_go_on = threading.Event(), threading.Event()


def test_the_worker_answers_first(reads: Reads, worker: tuple[Worker, Known]) -> None:
    """Who asks while a chunk is read has the thread after that chunk; then it begins again."""
    assert reads.here.wait(60)
    answering = Asked(worker[0], request(random_ids(60)))
    while not worker[0]._jobs.qsize():
        pass
    num_read = len(reads.log)
    reads.may_go_on.set()
    assert answering.first.wait(60)
    assert len(reads.log) == num_read
    assert isinstance(answering.ended(), Done)
    until_done(worker[0])
    assert list(worker[1]) == NAMES


def test_closing_in_the_middle_ends_it_at_once(
    reads: Reads, worker: tuple[Worker, Known], made: list[weakref.ref[Pool]]
) -> None:
    """C06: not one chunk more, and nothing of it stays."""
    assert reads.here.wait(60)
    num_read = len(reads.log)
    closing = threading.Thread(target=worker[0].close)
    closing.start()
    while not worker[0]._closing:
        pass
    reads.may_go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert (len(reads.log), worker[1]) == (num_read, {})
    gc.collect()
    assert len(made) == 1 + len(STEPS)
    assert not any(pool() for pool in made)


def test_without_room_it_waits_and_nothing_is_given_up_for_it(
    make_engine: MakeEngine, made: list[weakref.ref[Pool]]
) -> None:
    engine = make_engine()
    done(list(engine.run(request(random_ids(300, 5)))))
    engine.close_text()
    idle, own = engine.pool.idle_bytes, engine.room.snapshot().own_bytes
    assert idle
    give(engine)
    one, all_of_them = (
        reading_bytes(engine, (FP, *pairs), LENGTHS.num_tokens) for pairs in (STEPS[:1], STEPS)
    )

    def try_within(budget: int) -> str:
        engine.limits = type(engine.limits)(budget, 0, engine.limits.ladder)
        assert engine.proving is not None
        engine.proving.go_on(after(1))
        return engine.proving.stage

    assert try_within(own + one - 1) == "waiting"
    assert not made
    assert try_within(own + one) == "measuring"
    assert len(made) == 2
    engine.trim()
    assert (engine.pool.idle_bytes, engine._untold) == (idle, [])
    assert try_within(own - 1) == "waiting"  # somebody took it meanwhile
    gc.collect()
    assert not any(pool() for pool in made)
    known = give(engine)
    assert try_within(own + all_of_them) == "measuring"
    assert len(made) == 2 + 1 + len(STEPS)
    assert known == {}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("llama", {}), ("llama", {"vocab_size": 32768}), ("gemma3", {}), ("library", None)],
    ids=["llama", "logits", "gemma3", "library"],
)
def test_it_takes_no_more_than_was_foretold(
    loaded_as: Callable[[str], LoadedModel],
    tmp_path: Path,
    kind: str,
    changes: dict[str, int] | None,
) -> None:
    """Every storage that is alive at once counts: blocks, hot windows, logits, activations."""
    if changes is None:
        loaded = loaded_as(kind)
    else:
        folder = tiny_folder(kind, tmp_path / kind, **changes)
        loaded = load_model(str(folder), data_dir=tmp_path, device=torch.device("cpu"))
    engine = engine_of(loaded)
    foretold = reading_bytes(engine, (FP, *STEPS), LENGTHS.num_tokens)
    with LivePeak() as peak:
        measured(engine)
    assert 0.5 * foretold < peak.peak_bytes <= foretold


@pytest.mark.usefixtures("short")
def test_what_is_known_is_not_measured_again(
    make_engine: MakeEngine, made: list[weakref.ref[Pool]]
) -> None:
    engine = make_engine()
    known = measured(engine)
    again = Proving(engine, lambda: known, lambda _: None)
    num_made = len(made)
    assert again.stage == "done"
    assert not again.go_on(lambda: False)
    assert len(made) == num_made
    del known["int4/int4"], known["int6/int4"]  # what is missing is measured alone
    found: list[Verdict] = []
    rest = Proving(engine, lambda: known | {one.pair: one for one in found}, found.extend)
    while rest.go_on(lambda: False):
        pass
    assert [one.pair for one in found] == NAMES[1:]


@pytest.mark.parametrize(
    "why", [ZeroDivisionError, lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_an_error_is_logged_and_not_repeated_for_ever(
    worker: tuple[Worker, Known],
    monkeypatch: pytest.MonkeyPatch,
    made: list[weakref.ref[Pool]],
    why: Callable[[], Exception],
) -> None:
    logged: list[str] = []

    def read(*_: object) -> None:
        raise why()

    monkeypatch.setattr("kvchat.engine.worker.logger.exception", logged.append)
    monkeypatch.setattr(PairReader, "read", read)
    until_done(worker[0], "given_up")
    assert logged == ["the formats could not be tried"] * MOST_FAILURES
    assert isinstance(Asked(worker[0], request(random_ids(30))).ended(), Done)
    assert worker[1] == {}
    gc.collect()
    assert not any(pool() for pool in made)
    engine = worker[0].wait_ready()
    found = engine.frame()["formats"]
    assert (found["offered"], found["stage"], found["done"]) == ([], "given_up", 0)


@pytest.mark.usefixtures("short")
def test_verdicts_that_cannot_be_kept_are_not_measured_for_ever(make_engine: MakeEngine) -> None:
    engine = make_engine()
    kept: list[list[Verdict]] = []
    trying = Proving(engine, dict, kept.append)
    for _ in range(100):
        trying.go_on(lambda: False)
    assert trying.stage == "given_up"
    assert len(kept) == MOST_FAILURES


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", ["full", "sliding", "library", "latent"])
def test_only_models_with_blocks_of_ours_are_measured(
    loaded_as: Callable[[str], LoadedModel],
    made: list[weakref.ref[Pool]],
    kind: str,
) -> None:
    """Layers of the library's own beside ours are read with them; alone they are left alone."""

    engine = engine_of(loaded_as(kind))
    known = measured(engine)
    assert list(known) == (NAMES if engine.pool.geometries else [])
    assert bool(made) == bool(engine.pool.geometries)
    assert engine.proving is not None
    assert engine.proving.stage == "done"


def test_a_long_answer_is_not_disturbed(reads: Reads, worker: tuple[Worker, Known]) -> None:
    """While somebody is answered nothing is read."""
    reads.may_go_on.set()
    answering = Asked(worker[0], long_request())
    assert answering.first.wait(60)
    num_read = len(reads.log)
    threading.Event().wait(0.3)
    assert len(reads.log) == num_read
    answering.asked.cancel.set()
    assert isinstance(answering.ended(), Done)
    until_done(worker[0])
