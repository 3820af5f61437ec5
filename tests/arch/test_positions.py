"""How long a text a model reads: the table of expected limits."""

from typing import Any

import pytest
from transformers import AutoConfig

from kvchat.arch.from_hf import spec_from_config
from kvchat.arch.positions import WITHOUT_POSITIONS
from tests.arch.models import config_json

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

# name: (max_position_embeddings, rope, tokenizer's limit, what the model can read)
TABLE: dict[str, tuple[int, dict[str, Any] | None, float | None, int]] = {
    "plain": (4096, None, None, 4096),
    "the tokenizer has no limit": (4096, None, 1e30, 4096),
    "the tokenizer claims more": (32768, None, 131072, 32768),
    "default rope": (8192, {"rope_type": "default", "rope_theta": 1e6}, None, 8192),
    "yarn before scaling (Qwen2.5)": (
        32768,
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        None,
        131072,
    ),
    "yarn, trained a bit longer (Qwen3)": (
        40960,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        131072,
        131072,
    ),
    "yarn after scaling (DeepSeek-V3)": (
        163840,
        {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
        None,
        163840,
    ),
    "yarn of 200k": (
        204800,
        {"rope_type": "yarn", "factor": 50, "original_max_position_embeddings": 4096},
        1e30,
        204800,
    ),
    "yarn that is not to be applied twice": (
        1048576,
        {"type": "yarn", "factor": 32.0},
        None,
        1048576,
    ),
    "llama3 (Llama 3.1)": (
        131072,
        {**LLAMA3, "original_max_position_embeddings": 8192},
        131072,
        131072,
    ),
    "linear before scaling (Vicuna 16k)": (4096, {"type": "linear", "factor": 4.0}, None, 16384),
    "linear, and the tokenizer agrees": (4096, {"type": "linear", "factor": 4.0}, 16384, 16384),
    "linear, and the tokenizer says scaled already (deepseek-coder)": (
        16384,
        {"type": "linear", "factor": 4.0},
        16384,
        16384,
    ),
    "linear after scaling, with its original": (
        16384,
        {"type": "linear", "factor": 4.0, "original_max_position_embeddings": 4096},
        None,
        16384,
    ),
    "dynamic": (4096, {"type": "dynamic", "factor": 2.0}, None, 8192),
    "dynamic after scaling, with its original": (
        8192,
        {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4096},
        None,
        8192,
    ),
    "a factor of nothing": (4096, {"type": "linear", "factor": 1.0}, None, 4096),
    "a factor that is no number": (4096, {"type": "linear", "factor": "x"}, None, 4096),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("family", ["llama", "brand-new"])
def test_the_limit_is_read_once_and_right(name: str, family: str):
    declared, rope, tokenizer_limit, expected = TABLE[name]
    config = BASE | {"model_type": family, "max_position_embeddings": declared}
    if rope is not None:
        config["rope_scaling"] = rope
    spec = spec_from_config(config, name=name, tokenizer_limit=tokenizer_limit)
    assert spec.max_positions == expected


def test_new_files_keep_the_scaling_under_rope_parameters():
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = BASE | {
        "model_type": "qwen3",
        "max_position_embeddings": 40960,
        "rope_parameters": rope | {"rope_theta": 1e6},
    }
    assert spec_from_config(config, name="x").max_positions == 131072
    assert spec_from_config(AutoConfig.for_model(**config), name="x").max_positions == 131072


def test_scaling_of_some_layers_only_does_not_lengthen_the_model():
    """Gemma 3: 131,072 is declared; 8 x 131,072 would be a limit that nobody trained."""
    config = BASE | {
        "model_type": "gemma3_text",
        "max_position_embeddings": 131072,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert spec_from_config(config, name="x").max_positions == 131072
    assert spec_from_config(config | {"model_type": "new"}, name="x").max_positions == 131072


def test_longrope_is_written_after_scaling():
    rope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = BASE | {
        "model_type": "phi3",
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": rope,
        "pad_token_id": 0,
    }
    assert spec_from_config(config, name="x").max_positions == 131072


def test_a_sliding_window_does_not_shorten_the_text():
    config = BASE | {"model_type": "mistral", "max_position_embeddings": 32768}
    assert spec_from_config(config | {"sliding_window": 4096}, name="x").max_positions == 32768


def test_chunked_attention_is_read_to_the_end_of_its_first_chunk():
    assert spec_from_config(config_json("chunked"), name="x").max_positions == 128


def test_a_recurrent_model_has_no_positions():
    spec = spec_from_config(config_json("recurrent_mamba2"), name="x")
    assert spec.max_positions >= 16384
    without = {k: v for k, v in config_json("recurrent_mamba2").items() if "position" not in k}
    assert spec_from_config(without, name="x").max_positions == WITHOUT_POSITIONS
