"""The formula and the tensors: what the planner counts is what the pool allocated, to the byte."""

from collections.abc import Callable

import pytest
import torch

from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Request
from kvchat.engine.local import LocalModel
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.pool import Pool, Storing
from kvchat.memory.footprint import BLOCK_TOKENS, kv_bytes
from kvchat.memory.formats import FormatPair
from kvchat.models.weights import weight_bytes
from tests.memory.live import LivePeak
from tests.memory.test_activations import model_of

MakeEngine = Callable[..., Engine]
CPU = torch.device("cpu")
LONG, CHUNK = 4096, 64


def run(engine: Engine, num_tokens: int, chunk: int) -> None:
    """Reads a text so that exactly `num_tokens` are in the cache."""
    generator = torch.Generator().manual_seed(num_tokens)
    ids = torch.randint(3, 500, (num_tokens,), generator=generator).tolist()
    *_, last = engine.run(Request(tuple(ids), (), max_new_tokens=1, prefill_chunk=chunk))
    assert isinstance(last, Done)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("num_tokens", [1, 63, 64, 65, 200, 333])
def test_blocks_are_as_foretold(make_engine: MakeEngine, kind: str, num_tokens: int) -> None:
    """Full layers exactly; a sliding group at most what the plan allows, at least what it sees."""
    engine = make_engine(kind)
    run(engine, num_tokens, 50)
    assert engine.room.text is not None
    for geometry, table in zip(
        engine.pool.geometries, engine.room.text.sequence.tables, strict=True
    ):
        held = sum(block is not None for block in table)
        foretold = geometry.blocks_held(num_tokens, 50)
        if geometry.window is None:
            assert held == foretold == num_tokens // BLOCK_TOKENS
        else:
            seen = geometry.first_visible(num_tokens)
            assert num_tokens // BLOCK_TOKENS - seen // BLOCK_TOKENS <= held <= foretold


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_tokens_cost_what_the_spec_says(make_engine: MakeEngine, kind: str) -> None:
    """Whole blocks of a text, against bytes by heads and widths, and against torch's storages."""
    engine = make_engine(kind)
    run(engine, 10 * BLOCK_TOKENS, 128)
    sealed = engine.pool.slab_bytes - engine.pool.free_block_bytes
    assert sealed == kv_bytes(engine.loaded.spec, 10 * BLOCK_TOKENS, 32, 32)
    storages = {
        slab.memory.untyped_storage().data_ptr(): slab.memory.untyped_storage().nbytes()
        for slab in engine.pool.on_device.slabs
    }
    assert sum(storages.values()) == engine.pool.slab_bytes


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_weights_are_measured_and_foretold(make_engine: MakeEngine, kind: str) -> None:
    engine = make_engine(kind)
    assert engine.costs.weight_bytes == weight_bytes(engine.loaded.model)
    assert engine.frame()["weights_bytes"] == engine.costs.weight_bytes


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("chunk", [32, 256])
def test_a_text_never_takes_more_than_its_footprint(
    make_engine: MakeEngine, kind: str, chunk: int
) -> None:
    """Blocks and hot window, at every step, against what was planned for the whole text."""
    engine = make_engine(kind)
    ids = tuple(range(3, 403))
    planned = engine.costs.footprint(len(ids) + 8, chunk)
    for _ in engine.run(Request(ids, (), max_new_tokens=8, prefill_chunk=chunk)):
        used = engine.pool.device_bytes - engine.pool.free_block_bytes - engine.pool.idle_bytes
        assert used <= planned.kv_device + planned.workspace


def peak_of_a_long_text(stored: str) -> int:
    """The most that is alive at once while 4,096 tokens are read in bf16 and 16 more written:
    cache, workspaces and activations, without the weights.
    """
    spec, model = model_of("llama", torch.bfloat16)
    local = LocalModel(model, spec, Pool(geometries(spec, torch.bfloat16), CPU, b"root"))
    local.pool.storing = Storing(FormatPair.parse(stored), FormatPair.parse(stored))
    with LivePeak() as peak:
        text = local.open([5], CHUNK)
        while text.num_cached < LONG:
            local.step(text, [7 + text.num_cached % 100] * CHUNK)
        for _ in range(16):
            local.step(text, (9,))
    local.close(text)
    return peak.peak_bytes


@pytest.mark.slow
def test_fewer_bits_take_less_at_the_peak_too() -> None:
    """C07: what is stored in less is not first there as computed, nor dequantised as a whole."""
    plain = peak_of_a_long_text("fp")
    assert plain > LONG * kv_bytes(model_of("llama", torch.bfloat16)[0], 1, 16, 16)
    assert peak_of_a_long_text("int8") <= 0.75 * plain
    assert peak_of_a_long_text("int4/int4") <= 0.55 * plain
