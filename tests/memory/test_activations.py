"""The estimate of activations against what real forwards of tiny models keep alive."""

from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from kvchat.arch.from_hf import spec_from_config
from kvchat.arch.spec import ModelSpec
from kvchat.attention import hf_seam
from kvchat.engine.events import Sampling
from kvchat.engine.local import LocalModel, Text
from kvchat.engine.sampling import Sampler
from kvchat.kvcache.blocks import BLOCK_TOKENS, geometries
from kvchat.kvcache.pool import Pool, Storing
from kvchat.memory.activations import activation_bytes
from kvchat.memory.formats import FormatPair
from tests.memory.live import LivePeak

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 800,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama without grouped heads": {"model_type": "llama", "num_key_value_heads": 4},
    "llama of many words": {"model_type": "llama", "vocab_size": 20_000},
    "qwen3": {"model_type": "qwen3", "head_dim": 64},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 64, "sliding_window": 96},
    "gemma2": {"model_type": "gemma2", "head_dim": 64, "sliding_window": 96},
    "gpt_oss": {
        "model_type": "gpt_oss",
        "head_dim": 32,
        "sliding_window": 96,
        "intermediate_size": 64,
        "num_local_experts": 4,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 64,
        "num_experts": 8,
        "num_experts_per_tok": 4,
        "head_dim": 32,
    },
    "recurrent": {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    "latent": {
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "q_lora_rank": 48,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
    },
}


@cache
def model_of(name: str, dtype: torch.dtype) -> tuple[ModelSpec, torch.nn.Module]:
    hf_seam.register()
    config = AutoConfig.for_model(**COMMON | MODELS[name])
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="kvchat")
    return spec_from_config(config, name=name, dtype_bytes=dtype.itemsize), model.eval()


def measured(
    name: str,
    chunk: int,
    context: int,
    dtype: torch.dtype,
    stored: str = "fp",
    *,
    weighs: bool = False,
) -> tuple[ModelSpec, int]:
    """The model's spec, and the peak of reading the last chunk of a text and drawing one token."""
    spec, model = model_of(name, dtype)
    local = LocalModel(model, spec, Pool(geometries(spec, dtype), torch.device("cpu"), b"root"))
    local.pool.storing = Storing(FormatPair.parse(stored), FormatPair.parse(stored))
    text = local.open([5], context)
    if context > chunk:
        local.step(text, [7] * (context - chunk))
    text.sequence.resize_hot(local.pool.storing.hot_tokens + BLOCK_TOKENS + chunk)
    text.sequence.reserve(chunk)
    sampler = Sampler(Sampling(temperature=0.7, top_p=0.95, seed=1), torch.device("cpu"))
    before = library_storages(text)  # held, so that none of their places is used again
    with torch.inference_mode(), LivePeak() as peak:
        (logits,) = local._forward(text, [7] * chunk, 1, weighs=weighs)
        sampler.draw(logits, None)
    # What the library's own layers made anew stays with them, and is counted as KV.
    made = [s for at, s in library_storages(text).items() if at not in before]
    return spec, peak.peak_bytes - sum(storage.nbytes() for storage in made)


def library_storages(text: Text) -> dict[int, torch.UntypedStorage]:
    """The storages of the library's own layers, by their place in memory."""
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
        for layer in text.library.layers.values()
        for tensor in tree_leaves(vars(layer))
        if isinstance(tensor, torch.Tensor)
    }


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("recurrent", "latent")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("chunk", "context"), [(128, 128), (128, 640), (1, 512), (1, 64)])
def test_between_one_and_two_times_what_a_forward_keeps_alive(
    name: str, dtype: torch.dtype, chunk: int, context: int
):
    spec, peak = measured(name, chunk, context, dtype)
    predicted = activation_bytes(spec, chunk, context, dtype.itemsize, "cpu")
    assert peak <= predicted <= 2 * peak


@pytest.mark.parametrize("stored", ["fp", "int8", "int6/int4"])
def test_a_long_prefix_takes_no_more_than_a_tile(stored: str):
    spec, peak = measured("llama", 128, 3200, torch.float32, stored)
    predicted = activation_bytes(spec, 128, 3200, 4, "cpu")
    assert peak <= predicted <= 2 * peak
    assert predicted == activation_bytes(spec, 128, 6400, 4, "cpu")


@pytest.mark.parametrize("stored", ["fp", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("chunk", "context"), [(1, 512), (1, 3200), (128, 3200)])
def test_looking_at_what_blocks_get_takes_a_tile_more(
    stored: str, dtype: torch.dtype, chunk: int, context: int
):
    spec, peak = measured("llama", chunk, context, dtype, stored, weighs=True)
    predicted = activation_bytes(spec, chunk, context, dtype.itemsize, "cpu", weighs=True)
    assert peak <= predicted <= 2.5 * peak
    longer = activation_bytes(spec, chunk, context + 2048, dtype.itemsize, "cpu", weighs=True)
    assert longer == predicted or context < 1024


@pytest.mark.parametrize(("chunk", "context"), [(128, 128), (128, 512), (1, 512)])
def test_recurrent_layers_count_their_tiles(chunk: int, context: int):
    spec, peak = measured("recurrent", chunk, context, torch.float32)
    assert peak <= activation_bytes(spec, chunk, context, 4, "cpu") <= 2 * peak


def test_latent_layers_count_what_they_expand():
    """One token: torch's causal mask for a chunk is a tensor that no dispatch mode can follow."""
    spec, peak = measured("latent", 1, 2048, torch.float32)
    assert peak <= activation_bytes(spec, 1, 2048, 4, "cpu") <= 2 * peak


def test_a_device_that_joins_keys_and_values_takes_more():
    spec = spec_from_config(COMMON | {"model_type": "llama"}, name="x")
    on_cpu = activation_bytes(spec, 256, 8192, 2, "cpu")
    joined = 8192 * spec.layers[0].values_per_token * 2
    assert on_cpu < activation_bytes(spec, 256, 8192, 2, "cuda") <= on_cpu + 2 * joined


def test_more_of_anything_never_takes_less():
    spec = spec_from_config(COMMON | MODELS["gemma3"], name="x")
    by_chunk = [activation_bytes(spec, chunk, 4096, 2) for chunk in (1, 16, 64, 256, 1024, 4096)]
    by_context = [activation_bytes(spec, 256, n, 2) for n in (1, 64, 256, 257, 1024, 4096)]
    assert by_chunk == sorted(by_chunk)
    assert by_context == sorted(by_context)
