"""Whole models whose older tokens are stored in less: every decode step by the CPU's kernel gives
the logits that the plain reference gives over the same blocks.

The values of untrained models say nothing about how much a format loses; what is compared here is
the reading of one and the same cache.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvchat.arch.from_hf import spec_from_config
from kvchat.attention import cpu, hf_seam, reference
from kvchat.attention.backend import Attend
from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Request
from kvchat.engine.limits import Limits
from kvchat.engine.local import LocalModel, Text
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.pool import Pool, Storing
from kvchat.memory.formats import FormatPair
from kvchat.models.load import load_model
from kvchat.settings import RUNGS
from kvchat.units import GIB
from tests.tiny import tiny_folder, tiny_model

pytest.importorskip("numba", reason="numba is not installed")

CPU = torch.device("cpu")
KINDS = {"llama": {}, "qwen3": {}, "gemma3": {}, "wide window": {"sliding_window": 130}}
# int8 leaves 64 tokens as computed, the others 256: texts are longer than that.
STORED = {
    "int8": (Storing(FormatPair.parse("int8"), FormatPair.parse("int8"), 0), 200),
    "int4": (Storing(FormatPair.parse("int4"), FormatPair.parse("int4"), 64), 400),
}


def made(kind: str, storing: Storing) -> LocalModel:
    config, model = tiny_model("gemma3" if kind == "wide window" else kind, **KINDS[kind])
    hf_seam.register()
    model.set_attn_implementation(hf_seam.NAME)
    spec = spec_from_config(config, name=kind, dtype_bytes=4)
    local = LocalModel(model, spec, Pool(geometries(spec, torch.float32), CPU, b"root"))
    local.pool.storing = storing
    return local


def random_ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 500, (count,), generator=generator).tolist()


def read(local: LocalModel, ids: list[int], chunk: int) -> Text:
    text = local.open(ids, chunk)
    while text.num_cached < len(ids):
        local.step(text, ids[text.num_cached : text.num_cached + chunk])
    return text


def by_reference(local: LocalModel, text: Text, token: int) -> Tensor:
    """The logits after one more token, which is not kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_seam, "choose", lambda *_: reference.attend)
        patch.setattr(text.sequence, "commit", lambda _: text.sequence.rollback())
        return local.step(text, (token,))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each call of the kernel had; empty if it was never called."""
    calls: list[int] = []
    right: Attend = cpu.attend

    def attend(query: Tensor, *others: object) -> Tensor:
        calls.append(query.shape[2])
        return right(query, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(cpu, "attend", attend)
    return calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("chunk", [37, 200])
def test_the_kernel_reads_what_the_reference_reads(
    kind: str, stored: str, chunk: int, counted: list[int]
) -> None:
    """Over two turns and the edges of blocks, with sinks as computed and without."""
    storing, length = STORED[stored]
    local = made(kind, storing)
    ids = random_ids(length, 1)
    for turn in range(2):
        text = read(local, ids, chunk)
        formats = {b.pair for table in text.sequence.tables for b in table if b is not None}
        assert formats == {storing.seal, storing.pair_at(0)}
        for token in random_ids(70 if turn == 0 else 5, 2 + turn):
            expected = by_reference(local, text, token)
            found = local.step(text, (token,))
            assert (found - expected).abs().max() < 1e-4
        ids = [*text.sequence.token_ids, *random_ids(30, 9)]
        before = text.num_cached
        local.close(text)
        assert local.pool.index.match(ids, storing.floor, storing.hot_tokens).num_tokens == before
    assert set(counted) == {1}
    assert len(counted) >= 75 * len(local.spec.layers)
    local.pool.check_integrity(0)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_blocks_stored_anew_between_steps_are_read_so(kind: str) -> None:
    """Some blocks as computed, some in one format, some in another, in all groups."""
    local = made(kind, Storing())
    text = read(local, random_ids(300, 5), 64)
    for step, (number, pair) in enumerate(((0, "int8"), (2, "int6/int4"), (0, "int4"))):
        for table in text.sequence.tables:
            held = [block for block in table if block is not None]
            if number < len(held):
                local.pool.requantize(held[number], FormatPair.parse(pair))
        expected = by_reference(local, text, 7 + step)
        assert (local.step(text, (7 + step,)) - expected).abs().max() < 1e-4
    local.pool.check_integrity()


@pytest.mark.parametrize("chunk", [1, 64, 300])
def test_chunks_of_any_size_lose_little(chunk: int) -> None:
    """int8 moves a tiny model's logits by a few parts in a hundred; another block would by all."""
    storing, _ = STORED["int8"]
    ids = random_ids(300, 6)
    plain = made("llama", Storing())
    exact = plain.step(read(plain, ids[:-1], 64), ids[-1:])
    local = made("llama", storing)
    found = local.step(read(local, ids[:-1], chunk), ids[-1:])
    assert (found - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("stored", STORED)
def test_an_engine_writes_the_same_with_either(
    kind: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two turns, the second on the cache of the first; all drawn tokens are the likeliest."""
    storing, length = STORED[stored]
    folder = tiny_folder(kind, tmp_path / kind)
    loaded = load_model(str(folder), data_dir=tmp_path, device=CPU)
    roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
    limits = Limits(None, GIB, RUNGS, storing)
    replies = []
    for attend in (None, reference.attend):
        if attend is not None:
            monkeypatch.setattr(hf_seam, "choose", lambda *_, attend=attend: attend)
        engine = Engine(loaded, FakeProbe([roomy]), limits)
        ids = tuple(random_ids(length, 8))
        for turn in range(2):
            request = Request(ids, (), max_new_tokens=40, prefill_chunk=64)
            *_, done = engine.run(request)
            assert isinstance(done, Done)
            assert not turn or done.figures.reused_tokens >= len(ids) - 12
            replies.append(done.ids)
            ids = (*ids, *done.ids, *random_ids(10, 20 + turn))
    assert replies[:2] == replies[2:]
