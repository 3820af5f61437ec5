"""One small config for each kind of layer that a model may have, as a config.json would say it.

`meta_cache` runs the library's own model and cache over them on the `meta` device: every shape is
real, no byte is taken, so 8,192 tokens cost as little as eight.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 16384,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
_LATENT = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "q_lora_rank": 24,
    "num_key_value_heads": 8,
}
_EXPERTS = {
    "n_routed_experts": 8,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "mha": {"model_type": "llama", "num_key_value_heads": 8},
    "gqa": {"model_type": "llama"},
    "mqa": {"model_type": "llama", "num_key_value_heads": 1},
    "falcon_multi_query": {"model_type": "falcon"},
    "head_dim_is_not_hidden_over_heads": {"model_type": "qwen3", "head_dim": 32},
    "every_layer_slides": {"model_type": "mistral", "sliding_window": 128},
    "every_second_layer_slides": {"model_type": "gemma2", "sliding_window": 128},
    "five_of_six_slide": {
        "model_type": "gemma3_text",
        "sliding_window": 128,
        "num_hidden_layers": 12,
    },
    "upper_layers_slide": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 128,
        "max_window_layers": 3,
    },
    "window_switched_off": {
        "model_type": "qwen2",
        "use_sliding_window": False,
        "sliding_window": 128,
        "max_window_layers": 3,
    },
    "chunked": {"model_type": "llama4_text", "attention_chunk_size": 128, "num_local_experts": 2},
    "latent": {"model_type": "deepseek_v3", **_LATENT, **_EXPERTS},
    "recurrent_mamba": {"model_type": "mamba", "state_size": 8, "conv_kernel": 4},
    "recurrent_mamba2": {
        "model_type": "mamba2",
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 2,
    },
    "recurrent_delta_net": {"model_type": "qwen3_5_text", **_DELTA},
    "recurrent_convolution": {"model_type": "lfm2", "full_attn_idxs": [1], "conv_L_cache": 3},
    "hybrid": {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 128,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_n_groups": 2,
    },
    "without_kv": {
        "model_type": "nemotron_h",
        "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
    },
    "own_shape_for_full_layers": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 12,
        "global_head_dim": 32,
        "sliding_window": 128,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
    },
    "shared": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 12,
        "num_kv_shared_layers": 6,
        "global_head_dim": 32,
        "sliding_window": 128,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
    },
}
# What these families derive in code, and do not take from a file.
_LEFT_OUT = {
    "falcon_multi_query": ("head_dim", "num_key_value_heads"),
    "latent": ("head_dim",),
    "recurrent_mamba": ("intermediate_size",),
    "without_kv": ("num_hidden_layers",),
}


def config_json(kind: str) -> dict[str, Any]:
    """The config of a kind as its file would hold it."""
    found = _SMALL | CONFIGS[kind]
    for name in _LEFT_OUT.get(kind, ()):
        del found[name]
    return found


def meta_cache(kind: str, num_tokens: int, dtype: torch.dtype) -> DynamicCache:
    """The library's cache after its model has read that many tokens, all of it on `meta`."""
    asked = config_json(kind)
    config = AutoConfig.for_model(asked.pop("model_type"), **asked)
    with torch.device("meta"), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        cache = DynamicCache(config=config)
        ids = torch.zeros((1, num_tokens), dtype=torch.long)
        model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
    return cache


def kv_bytes_of(cache: DynamicCache) -> int:
    """Bytes of every key and value in it."""
    tensors = [
        t
        for layer in cache.layers
        for t in (getattr(layer, "keys", None), layer.__dict__.get("values"))
    ]
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def recurrent_bytes_of(cache: DynamicCache) -> int:
    """Bytes of every convolution and recurrent state in it."""
    tensors = [
        t
        for layer in cache.layers
        for name in ("conv_states", "recurrent_states")
        for t in getattr(layer, name, {}).values()
    ]
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
