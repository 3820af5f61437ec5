"""Layers that stay the library's own (latent, recurrent, shared), beside ours in one model.

They cannot be rolled back: a text goes on where it stopped, or is read again.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from kvchat.arch.from_hf import spec_from_config
from kvchat.attention import hf_seam
from kvchat.engine.local import LocalModel
from kvchat.kvcache.blocks import geometries
from kvchat.kvcache.pool import Pool
from kvchat.memory.formats import FormatPair

COMMON: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
}
KINDS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        "kv_lora_rank": 32,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
    },
    "qwen3_next": {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
}


def made(kind: str) -> tuple[LocalModel, nn.Module]:
    config = AutoConfig.for_model(kind, **(COMMON | KINDS[kind]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    hf_seam.register()
    model.set_attn_implementation(hf_seam.NAME)
    spec = spec_from_config(config, name=kind, dtype_bytes=4)
    pool = Pool(geometries(spec, torch.float32), torch.device("cpu"), b"root")
    return LocalModel(model, spec, pool), model


def library_logits(model: nn.Module, ids: list[int]) -> Tensor:
    with hf_seam.use_library_attention(model), torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def random_ids(count: int) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, 299, (count,), generator=generator).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 33, 90])
def test_logits_are_the_librarys(kind: str, chunk: int) -> None:
    local, model = made(kind)
    assert local.has_library_layers
    ids = random_ids(90)
    expected = library_logits(model, ids)
    text = local.open(ids, chunk)
    for start in range(0, len(ids), chunk):
        piece = ids[start : start + chunk]
        logits = local.step(text, piece)
        assert (logits - expected[start + len(piece) - 1]).abs().max() < 2e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_goes_on_or_is_read_again(kind: str) -> None:
    local, model = made(kind)
    ids = random_ids(90)
    text = local.open(ids[:60], 60)
    local.step(text, ids[:60])
    local.close(text)
    longer = local.open(ids, 60)
    assert longer.num_cached == 60
    assert (local.step(longer, ids[60:]) - library_logits(model, ids)[-1]).abs().max() < 2e-4
    local.close(longer)
    edited = [*ids[:40], 7, 8, 9]
    again = local.open(edited, 60)
    assert again.num_cached == 0
    assert (local.step(again, edited) - library_logits(model, edited)[-1]).abs().max() < 2e-4
    local.close(again)
    assert local.drop_kept() > 0
    local.pool.check_integrity(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_step_is_undone_in_every_layer(kind: str) -> None:
    """Recurrent states are overwritten in place by a forward: they come back as they were."""
    local, model = made(kind)
    ids = random_ids(80)
    text = local.open(ids, 80)
    local.step(text, ids[:50])
    last = model.model.layers[-1].mlp
    right = last.forward
    last.forward = lambda *_: (_ for _ in ()).throw(MemoryError())
    with pytest.raises(MemoryError):
        local.step(text, ids[50:])
    last.forward = right
    logits = local.step(text, ids[50:])
    assert (logits - library_logits(model, ids)[-1]).abs().max() < 2e-4


@pytest.mark.parametrize("loss", ["stored in less", "evicted", "nothing"])
def test_what_was_compressed_is_read_again_where_that_is_asked(loss: str) -> None:
    """A text that is to be held as it would be sealed does not go on from one that is not."""
    local, model = made("qwen3_next")
    ids = random_ids(210)
    text = local.open(ids, 70)
    for start in range(0, 210, 70):
        local.step(text, ids[start : start + 70])
    if loss == "evicted":
        text.sequence.evict(1)
    elif loss == "stored in less":
        for block in list(local.pool.index.all()):
            local.pool.requantize(block, FormatPair.parse("int4"))
    local.close(text)
    longer = [*ids, 7, 8, 9]
    again = local.open(longer, 213, as_sealed=True)
    assert again.num_cached == (210 if loss == "nothing" else 0)
    assert not again.sequence.evicted
    logits = local.step(again, longer[again.num_cached :])
    assert (logits - library_logits(model, longer)[-1]).abs().max() < 2e-4
