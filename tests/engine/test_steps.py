"""Every step of reading and decoding against what was foretold for it: on the CPU by counting live
storages, and with a card's counters that are a script.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from kvchat.device.peak import Peak, Taken, TorchPeak
from kvchat.engine.local import LocalModel
from kvchat.engine.steps import StepWatch
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.pool import Pool, Storing
from kvchat.memory.calibrate import Calibration, Step
from kvchat.memory.formats import FormatPair
from kvchat.models.load import load_model
from kvchat.planner.costs import Costs
from tests.memory.live import LivePeak
from tests.memory.test_activations import model_of
from tests.tiny import builtin_data_dir

CPU = torch.device("cpu")
OUT = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


class LiveCounters:
    """A device's counters on the CPU, where torch has none."""

    def begin(self) -> None:
        self._mode = LivePeak()
        self._mode.__enter__()

    def end(self) -> Taken:
        self._mode.__exit__(None, None, None)
        return Taken(self._mode.peak_bytes, self._mode.live_bytes)


class Remembered:
    """What was measured in the newest step; None where it was not."""

    def __init__(self, peak: Peak) -> None:
        self._peak = peak
        self.last: Taken | None = None

    def begin(self) -> None:
        self._peak.begin()

    def end(self) -> Taken:
        self.last = self._peak.end()
        return self.last


class Planning:
    """Costs as the engine's room keeps them, and each step's figure beside what it took."""

    def __init__(self, local: LocalModel, dtype: torch.dtype, peak: Peak) -> None:
        pool = local.pool
        known = (local.spec, pool.geometries, dtype.itemsize, 0, pool.device.type)
        self.costs = Costs(*known, storing=pool.storing)
        self._local, self._peak = local, peak
        self.start()

    def start(self) -> None:
        """As after a start: nothing was measured yet, but what was known is."""
        self.steps: list[tuple[tuple[int, int], int, int]] = []
        self.counters = Remembered(self._peak)
        grows = self._local.has_library_layers
        self._watch = StepWatch(lambda: self.costs, self._learned, self.counters, grows)
        self._local.watch = self

    def _learned(self, calibration: Calibration) -> None:
        self.costs = replace(self.costs, calibration=calibration)

    def begin(self, chunk: int, context: int) -> None:
        estimated = self.costs.estimated_activations(chunk, context)
        figure = self.costs.calibration.figure(chunk, context, estimated)
        assert figure <= self.costs.activations(chunk, context)
        self._size, self._figure, self.counters.last = (chunk, context), figure, None
        self._watch.begin(chunk, context)

    def done(self, logits: torch.Tensor) -> None:
        self._watch.done(logits)
        last = self.counters.last
        if last is not None:
            # What stays beside the logits (a kernel's tables) is the runtime's from here on.
            stays = 0 if self._local.has_library_layers else last.left_bytes
            stays = max(0, stays - logits.untyped_storage().nbytes())
            self.steps.append((self._size, self._figure, last.peak_bytes - stays))

    def failed(self, error: BaseException) -> None:
        self._watch.failed(error)


def read_and_write(local: LocalModel, chunk: int, num_tokens: int, num_new: int) -> None:
    text = local.open([5], chunk)
    for start in range(0, num_tokens, chunk):
        local.step(text, [7] * min(chunk, num_tokens - start))
    for _ in range(num_new):
        local.step(text, [9])
    text.sequence.close()
    local.pool.drop_idle(2**60)


USUAL = {("llama", "fp"), ("llama", "int6/int4"), ("gemma3", "int8"), ("recurrent", "fp")}


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        pytest.param(*one, marks=() if one in USUAL else pytest.mark.slow)
        for one in product(("llama", "gemma3", "qwen3", "recurrent"), ("fp", "int8", "int6/int4"))
    ],
)
def test_every_step_is_foretold_and_within_ten_percent_once_measured(
    name: str, stored: str
) -> None:
    dtype = torch.float32
    spec, model = model_of(name, dtype)
    local = LocalModel(model, spec, Pool(geometries(spec, dtype), CPU, b"root"))
    local.pool.storing = Storing(FormatPair.parse(stored), FormatPair.parse(stored))
    # torch's causal mask for a chunk within a sliding window is a tensor that no mode can follow.
    chunks = (100, 128) if name == "gemma3" else (32, 100)
    assert_foretold(Planning(local, dtype, LiveCounters()), local, chunks, 330)


def assert_foretold(
    planning: Planning, local: LocalModel, chunks: tuple[int, ...], num_tokens: int
) -> None:
    """First by estimates, never too low; then by what was measured, within 10 %."""
    for chunk in chunks * 2:  # steps that set something up are measured once they did
        read_and_write(local, chunk, num_tokens, 20)
    assert len(planning.steps) > 6
    assert [one for one in planning.steps if one[1] < one[2]] == []
    planning.start()
    for chunk in chunks:
        read_and_write(local, chunk, num_tokens, 20)
    assert len(planning.steps) > 6
    assert [s for s in planning.steps if not s[2] <= s[1] <= 1.1 * s[2]] == []


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["fp", "int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_long_text_too(name: str, stored: str) -> None:
    """C05: 8,000 tokens in chunks of 512."""
    dtype = torch.float32
    spec, model = model_of(name, dtype)
    local = LocalModel(model, spec, Pool(geometries(spec, dtype), CPU, b"root"))
    local.pool.storing = Storing(FormatPair.parse(stored), FormatPair.parse(stored))
    assert_foretold(Planning(local, dtype, LiveCounters()), local, (512,), 8000)


class Script:
    """torch.cuda's counters: in the step that comes `peak` bytes at once, of which `left` stay."""

    def __init__(self) -> None:
        self.peak, self.left, self.current, self.resets = 0, 3200, 10_000, 0

    def reset_peak_memory_stats(self, device: object) -> None:
        self.resets += 1
        self._figures = [(self.current, self.current)]
        self._figures.append((self.current + self.left, self.current + self.peak))

    def memory_stats_as_nested_dict(self, device: object) -> dict[str, Any]:
        self.current, peak = self._figures.pop(0)
        return {"allocated_bytes": {"all": {"current": self.current, "peak": peak}}}


class Card:
    def __init__(self) -> None:
        spec, _ = model_of("llama", torch.float32)
        self.costs = Costs(spec, geometries(spec, torch.float32), 4, 0)
        self.script = Script()
        peak = TorchPeak(torch.device("cuda", 0), self.script)
        self.watch = StepWatch(lambda: self.costs, self.learned, peak)

    def learned(self, calibration: Calibration) -> None:
        self.costs = replace(self.costs, calibration=calibration)

    def step(self, chunk: int, context: int, peak: int) -> None:
        self.script.peak = peak
        self.watch.begin(chunk, context)
        self.watch.done(torch.zeros(800))


def test_a_card_is_measured_by_its_counters() -> None:
    card = Card()
    estimated = card.costs.estimated_activations(256, 2048)
    card.step(256, 2048, estimated // 2)
    expected = Step(256, 2048, estimated, estimated // 2)
    assert card.costs.calibration.steps == (expected,)
    assert card.costs.activations(256, 2048) == expected.measured_bytes


def test_a_step_that_sets_something_up_stands_for_itself_only() -> None:
    """A library's workspace is allocated once: the next step is what steps are."""
    card = Card()
    card.script.left = 8 * 2**20
    card.step(256, 2048, 9 * 2**20)
    assert card.costs.calibration.steps == ()
    card.script.left = 3200
    card.step(256, 2048, 2**20)
    assert [one.measured_bytes for one in card.costs.calibration.steps] == [2**20]


def test_decoding_is_measured_once_a_block_and_where_its_length_is_new() -> None:
    card = Card()
    for context in range(1000, 1256):
        card.step(1, context, 5000)
    # Four blocks end there, and seven slots of 4 % begin.
    assert 10 <= card.script.resets <= 11


def test_decoding_is_planned_with_the_step_that_fills_the_block() -> None:
    card = Card()
    card.step(1, 1001, 12_000)
    card.step(1, 1024, 90_000)
    assert card.costs.activations(1, 1001) == card.costs.activations(1, 1024) == 90_000
    assert card.costs.activations(1, 1000) == 90_000
    estimated = card.costs.estimated_activations(1, 1001)
    assert card.costs.calibration.figure(1, 1001, estimated) == 12_000


def test_a_step_that_ran_out_is_planned_with_more_until_it_succeeds() -> None:
    card = Card()
    before = card.costs.activations(256, 2048)
    card.watch.begin(256, 2048)
    card.watch.failed(OUT)
    assert before < card.costs.activations(256, 2048) <= 1.1 * before
    assert card.costs.activations(128, 2048) < before
    card.step(256, 2048, before // 2)
    assert card.costs.activations(256, 2048) == before // 2


@pytest.mark.parametrize("error", [RuntimeError("size mismatch"), KeyboardInterrupt()])
def test_another_failure_teaches_nothing(error: BaseException) -> None:
    card = Card()
    before = card.costs
    card.watch.begin(256, 2048)
    card.watch.failed(error)
    assert card.costs is before


def test_a_step_for_which_there_was_no_room_in_the_pool_teaches_nothing() -> None:
    """It failed before it began."""
    card = Card()
    before = card.costs
    card.watch.failed(OUT)
    assert card.costs is before


def test_where_nothing_is_measured_a_shortage_still_counts() -> None:
    card = Card()
    card.watch = StepWatch(lambda: card.costs, card.learned, None)
    before = card.costs.activations(256, 2048)
    card.watch.begin(256, 2048)
    card.watch.failed(MemoryError())
    assert card.costs.activations(256, 2048) > before
    card.watch.begin(256, 2048)
    card.watch.done(torch.zeros(800))
    assert card.costs.activations(256, 2048) == before
    assert card.costs.calibration.steps == ()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_built_in_model_too(dtype: torch.dtype) -> None:
    name = "fp32" if dtype == torch.float32 else "bf16"
    loaded = load_model("smollm2", data_dir=builtin_data_dir(), dtype=name, device=CPU)
    local = LocalModel(loaded.model, loaded.spec, Pool(geometries(loaded.spec, dtype), CPU, b""))
    local.pool.storing = Storing(FormatPair.parse("int8"), FormatPair.parse("int8"))
    assert_foretold(Planning(local, dtype, LiveCounters()), local, (512,), 1400)
