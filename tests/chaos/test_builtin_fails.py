"""The built-in model with memory that runs out at random calls of torch: always the same answer."""

import gc
import random
from collections.abc import Iterator

import pytest
import torch

from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Request, Sampling, Took
from kvchat.engine.limits import Limits
from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.models.load import LoadedModel, load_model
from kvchat.settings import RUNGS
from kvchat.units import GIB
from tests.faults import Failing, Recorder, RecordFaults, assert_same_logits, count_faults
from tests.tiny import builtin_data_dir

TEXT = "The memory of a card holds the weights of the model, and beside them what it has read. "
NUM_NEW = 9
NUM_FAULTS = 200


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LoadedModel]:
    loaded = load_model("smollm2", data_dir=builtin_data_dir(), device=torch.device("cpu"))
    gc.collect()
    gc.freeze()  # the guard collects after each failure: not the libraries each time
    yield loaded
    gc.unfreeze()


@pytest.mark.slow
def test_two_hundred_random_calls_may_fail(
    smollm2: LoadedModel, record_property: RecordFaults
) -> None:
    """One block is reused, a few tokens are read, three are drawn: bit by bit the same."""
    roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
    engine = Engine(smollm2, FakeProbe([roomy]), Limits(None, GIB, RUNGS))
    recorder = Recorder(engine)
    ids = smollm2.tokenizer(TEXT * 9)["input_ids"][: BLOCK_TOKENS + NUM_NEW]
    asked = Request(tuple(ids), (), 3, 64, Sampling(temperature=1.0, seed=5))

    def answer(at: int, times: int = 1) -> tuple[Done, list[str], Failing, list[torch.Tensor]]:
        for tail in list(engine.pool.index.tails):
            engine.pool.drop_tail(tail)
        recorder.logits.clear()
        with Failing(at, times) as failing:
            events = list(engine.run(asked))
            engine.close_text()
        assert isinstance(events[-1], Done), (at, events[-1])
        codes = [event.entry["code"] for event in events if isinstance(event, Took)]
        return events[-1], codes, failing, list(recorder.logits)

    answer(0, 0)
    expected, codes, counted, logits = answer(0, 0)
    assert (expected.figures.reused_tokens, codes) == (BLOCK_TOKENS, [])
    device_bytes = engine.pool.device_bytes
    chance, survived = random.Random(11), 0
    for _ in range(NUM_FAULTS):
        at = chance.randint(1, counted.calls)
        found, codes, failing, again = answer(at)
        assert failing.num_failed == 1, at
        assert found.ids == expected.ids, at
        assert_same_logits(again, logits, at)
        assert codes in ([], ["retry"]), at
        engine.pool.check_integrity(0)
        assert engine.pool.device_bytes <= device_bytes
        survived += failing.num_failed
    count_faults(record_property, "torch call, SmolLM2", survived)
