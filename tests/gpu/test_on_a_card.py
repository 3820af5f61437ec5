"""What only a card can show: engine runs through the compiled kernels, blocks in pinned memory of
the host, and memory that really runs out. Each kernel alone: tests/attention/test_triton_paged.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvchat.arch.from_hf import spec_from_config
from kvchat.attention import hf_seam
from kvchat.device.memory import probe_for
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Event, Request, Took
from kvchat.engine.limits import Limits
from kvchat.engine.local import LocalModel
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.pool import Pool, Storing
from kvchat.memory.formats import FormatPair
from kvchat.models.load import load_model
from kvchat.settings import RUNGS
from kvchat.units import MIB
from tests.attention.test_mixed_formats import by_reference, random_ids, read
from tests.tiny import tiny_folder, tiny_model

pytestmark = pytest.mark.gpu

_SMALL = {"head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
_SLIDING = {"sliding_window": 70, "layer_types": ["sliding_attention", "full_attention"] * 2}
KINDS = {
    "llama": {},
    "gemma2": _SLIDING | {"model_type": "gemma2", "attn_logit_softcapping": 20.0},
    "gpt_oss": _SLIDING
    | {"model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1},
}
INT8, INT4 = FormatPair.parse("int8"), FormatPair.parse("int4")


@pytest.fixture
def card() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no card")
    return torch.device("cuda", 0)


def made(kind: str, card: torch.device) -> LocalModel:
    config, model = tiny_model("llama", **_SMALL | KINDS[kind])
    hf_seam.register()
    model.set_attn_implementation(hf_seam.NAME)
    spec = spec_from_config(config, name=kind, dtype_bytes=2)
    pool = Pool(geometries(spec, torch.float16), card, b"root")
    pool.storing = Storing(INT8, INT4, 64)
    pool.host_limit_bytes = 64 * MIB
    return LocalModel(model.to(card, torch.float16), spec, pool)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_the_references_wherever_blocks_lie(kind: str, card: torch.device) -> None:
    """Of one text some blocks lie on the card, some in pinned memory; in three formats."""
    local = made(kind, card)
    text = read(local, random_ids(400, 1), 130)
    assert all(text.forward.on_card)
    held = [block for table in text.sequence.tables for block in table if block is not None]
    for number, block in enumerate(held):
        if number % 3 == 1:
            local.pool.requantize(block, INT4)
        if number % 2:
            local.pool.offload(block)
    assert {block.tier for block in held} == {"device", "host"}
    assert all(b.slab.memory.is_pinned() for b in held if b.tier == "host")
    for token in random_ids(5, 2):
        expected = by_reference(local, text, token)
        found = local.step(text, (token,))
        assert (found - expected).norm() < 0.02 * expected.norm()
    local.close(text)
    local.pool.check_integrity(0)


@pytest.fixture
def engine(card: torch.device, tmp_path: Path) -> Iterator[Engine]:
    folder = tiny_folder("llama", tmp_path / "llama", dtype=torch.float16, **_SMALL)
    loaded = load_model(str(folder), data_dir=tmp_path, device=card)
    limits = Limits(None, 0, RUNGS, Storing(INT8, INT4, 64))
    yield Engine(loaded, probe_for(card), limits)
    torch.cuda.set_per_process_memory_fraction(1.0, card)


def answered(engine: Engine, num_tokens: int, seed: int) -> list[Event]:
    ids = tuple(random_ids(num_tokens, seed))
    return list(engine.run(Request(ids, (), max_new_tokens=20, prefill_chunk=256)))


def test_an_engine_answers_twice_alike(engine: Engine) -> None:
    first, again = (answered(engine, 500, 3)[-1] for _ in range(2))
    assert isinstance(first, Done)
    assert isinstance(again, Done)
    assert len(first.ids) == len(again.ids) == 20
    assert again.figures.reused_tokens > 300
    assert {row["decode"] for row in engine.attention} == {"triton"}


def test_memory_that_runs_out_ends_no_answer(engine: Engine, card: torch.device) -> None:
    """The allocator refuses every new piece of memory: idle blocks make the room."""
    for seed in range(4):
        assert isinstance(answered(engine, 1900, seed)[-1], Done)
    engine.close_text()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info(card)
    share = torch.cuda.memory_reserved(card) / total
    torch.cuda.set_per_process_memory_fraction(share, card)
    events = answered(engine, 1900, 9)
    assert isinstance(events[-1], Done)
    codes = {event.entry["code"] for event in events if isinstance(event, Took)}
    assert codes & {"retry", "drop_idle", "shrink_chunk"}
