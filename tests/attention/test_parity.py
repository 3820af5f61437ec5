"""Our cache and attention against the library's own, on tiny random models of each layer kind.

Every prefill chunk size gives the same logits; so does continuing from a reused prefix.
"""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from kvchat.arch.from_hf import spec_from_config
from kvchat.arch.spec import ModelSpec
from kvchat.attention import choose as choose_module
from kvchat.attention import cpu, hf_seam
from kvchat.attention.choose import describe
from kvchat.attention.triton_paged.table import Refusal
from kvchat.engine.local import LocalModel
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.pool import Pool
from kvchat.memory.formats import FormatPair
from kvchat.wording import table
from tests.tiny import tiny_model

CPU = torch.device("cpu")
KINDS = {
    "llama": {},
    "qwen3": {},
    "gemma3": {},
    "mha": {"kind": "llama", "num_key_value_heads": 4},
    "mqa": {"kind": "llama", "num_key_value_heads": 1},
    "tiny window": {"kind": "gemma3", "sliding_window": 9},
    "wide window": {"kind": "gemma3", "sliding_window": 130},
}


def made(kind: str) -> tuple[LocalModel, torch.nn.Module]:
    changes = dict(KINDS[kind])
    config, model = tiny_model(str(changes.pop("kind", kind)), **changes)
    hf_seam.register()
    model.set_attn_implementation(hf_seam.NAME)
    spec = spec_from_config(config, name=kind, dtype_bytes=4)
    pool = Pool(geometries(spec, torch.float32), CPU, b"root")
    return LocalModel(model, spec, pool), model


def library_logits(model: torch.nn.Module, ids: list[int]) -> Tensor:
    """[len(ids), vocab] by the library, without any cache."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    model.set_attn_implementation(hf_seam.NAME)
    return logits


def random_ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 500, (count,), generator=generator).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 13, 64, 127, 260])
def test_logits_are_the_librarys_at_every_chunk_size(kind: str, chunk: int) -> None:
    local, model = made(kind)
    ids = random_ids(260, 1)
    expected = library_logits(model, ids)
    text = local.open(ids, chunk)
    for start in range(0, len(ids), chunk):
        piece = ids[start : start + chunk]
        logits = local.step(text, piece)
        assert (logits - expected[start + len(piece) - 1]).abs().max() < 1e-4
    local.close(text)
    local.pool.check_integrity(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [1, 63, 64, 65, 129, 200])
def test_a_reused_prefix_gives_the_logits_of_a_fresh_run(kind: str, cut: int) -> None:
    local, model = made(kind)
    first = random_ids(200, 2)
    text = local.open(first, 50)
    for start in range(0, 200, 50):
        local.step(text, first[start : start + 50])
    local.close(text)
    second = [*first[:cut], *random_ids(30, 3)]
    text = local.open(second, 50)
    assert text.num_cached == cut
    logits = local.step(text, second[text.num_cached :])
    assert (logits - library_logits(model, second)[-1]).abs().max() < 1e-4


@pytest.mark.parametrize("length", [63, 64, 65, 130])
def test_a_window_edge_holds_over_turns(length: int) -> None:
    """C14: prompts around the window's length, then three more turns on the reused cache."""
    config, model = tiny_model("gemma3", sliding_window=64)
    hf_seam.register()
    model.set_attn_implementation(hf_seam.NAME)
    spec = spec_from_config(config, name="edge", dtype_bytes=4)
    local = LocalModel(model, spec, Pool(geometries(spec, torch.float32), CPU, b"root"))
    ids = random_ids(length, 4)
    for turn in range(4):
        text = local.open(ids, 32)
        while text.num_cached < len(ids):
            logits = local.step(text, ids[text.num_cached : text.num_cached + 32])
        assert (logits - library_logits(model, ids)[-1]).abs().max() < 1e-4
        local.close(text)
        ids = [*ids, *random_ids(20, 5 + turn)]


def test_a_failed_forward_changes_nothing() -> None:
    """A layer that fails in the middle: the same step gives the same logits when it runs again."""
    local, model = made("gemma3")
    ids = random_ids(150, 6)
    expected = library_logits(model, ids)
    text = local.open(ids, 100)
    local.step(text, ids[:100])
    broken = model.model.layers[3].mlp
    right = broken.forward
    broken.forward = lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory"))
    with pytest.raises(RuntimeError):
        local.step(text, ids[100:])
    broken.forward = right
    local.pool.check_integrity()
    assert text.num_cached == 100
    assert (local.step(text, ids[100:]) - expected[-1]).abs().max() < 1e-4


def test_a_model_that_hides_its_keywords_is_refused() -> None:
    """A family that does not hand the live keyword dict to the cache gets a sentence, not
    garbage.
    """
    from kvchat.errors import ModelError

    local, _ = made("llama")
    text = local.open([1, 2], 8)
    text.sequence.reserve(1)
    layer = text.cache.layers[0]
    with pytest.raises(ModelError):
        layer.update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16))


def test_a_slow_path_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """C12: chunks with softcap go to the reference, latent layers to the library, and without numba
    every token does; `describe` says so, and why.
    """
    config, _ = tiny_model("llama")
    plain = spec_from_config(config, name="plain", dtype_bytes=4)

    def told(spec: ModelSpec, *pairs: str) -> list[tuple[str, str, str | None, int]]:
        rows = describe(spec, CPU, torch.float32, map(FormatPair.parse, pairs))
        assert all(row["fast"] == (row["why"] is None) for row in rows)
        return [(r["decode"], r["prefill"], r["why"], r["num_layers"]) for r in rows]

    ours = ("numba", "torch_flash", None)
    assert told(plain, "int8") == [(*ours, 4)]
    assert told(plain, "int8", "int8/fp8") == [("torch_flash", "torch_flash", "format", 4)]
    capped = replace(plain, dense_scores=True)
    assert told(capped) == [("numba", "reference", "scores", 4)]
    latent = replace(plain, layers=(replace(plain.layers[0], kind="latent"), *plain.layers[1:]))
    assert told(latent) == [("library", "library", "library", 1), (*ours, 3)]
    odd = replace(plain, layers=(replace(plain.layers[0], key_dim=12, value_dim=12),))
    assert told(odd) == [("torch_flash", "torch_flash", "head_size", 1)]
    monkeypatch.setattr(cpu, "is_installed", lambda: False)
    assert told(plain) == [("torch_flash", "torch_flash", "no_numba", 4)]


@pytest.mark.parametrize(
    ("why", "expected"),
    [(None, ("triton", "triton")), ("no_triton", ("torch_sdpa", "torch_sdpa"))],
)
def test_on_a_card_the_triton_kernels_are_told(
    why: str | None, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = tiny_model("llama", head_dim=64)
    spec = spec_from_config(config, name="card", dtype_bytes=2)
    monkeypatch.setattr(choose_module, "why_not", lambda *_: why)
    card = torch.device("cuda", 0)
    (row,) = describe(spec, card, torch.float16, [FormatPair.parse("int6/int4")])
    assert (row["decode"], row["prefill"], row["why"]) == (*expected, why)
    capped = replace(spec, dense_scores=True)
    (row,) = describe(capped, card, torch.float16)
    assert row["prefill"] == ("triton" if why is None else "reference")


def test_every_backend_and_reason_has_a_sentence() -> None:
    whys = (*get_args(Refusal), *get_args(cpu.Refusal), "library", "scores")
    backends = ("triton", "numba", "torch_flash", "torch_sdpa", "reference", "library")
    for code in (*backends, *(f"why.{why}" for why in whys)):
        assert f"attention.{code}" in table()
