"""What is read from a config equals what the library's own cache then holds."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvchat.arch.from_hf import spec_from_config
from kvchat.errors import ModelError
from tests.arch.models import (
    CONFIGS,
    config_json,
    kv_bytes_of,
    meta_cache,
    recurrent_bytes_of,
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 2048,
}
# The library's sliding layers hold one token less than the window between two steps.
WITHIN = 0.02


# Mamba holds no KV, and the library's plain version of it steps through a text token by token.
@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "recurrent_mamba"])
@pytest.mark.parametrize("num_tokens", [1024, 8192])
def test_kv_bytes_equal_the_tensors_of_the_library(kind: str, num_tokens: int):
    cache = meta_cache(kind, num_tokens, torch.bfloat16)
    spec = spec_from_config(config_json(kind), name=kind, dtype_bytes=2)
    measured = kv_bytes_of(cache)
    assert measured <= spec.kv_bytes(num_tokens, 16) <= measured * (1 + WITHIN)


@pytest.mark.parametrize("kind", [k for k in CONFIGS if "recurrent" in k or k == "hybrid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recurrent_bytes_equal_the_states_of_the_library(kind: str, dtype: torch.dtype):
    cache = meta_cache(kind, 16, dtype)
    spec = spec_from_config(config_json(kind), name=kind, dtype_bytes=dtype.itemsize)
    found = sum(layer.recurrent_bytes for layer in spec.layers)
    assert found == recurrent_bytes_of(cache) > 0


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_config_object_gives_the_same_spec_as_its_file(kind: str):
    asked = config_json(kind)
    from_file = spec_from_config(asked, name=kind)
    from_object = spec_from_config(AutoConfig.for_model(**asked), name=kind)
    assert from_file == from_object


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_family_that_the_library_does_not_know_is_read_as_it_stands(kind: str):
    """A complete file needs no class: all fields that its class would derive, under a new name."""
    config = AutoConfig.for_model(**config_json(kind))
    complete = config.to_dict() | {"model_type": "brand-new"}
    for derived in ("layer_types", "kv_sharing_modes"):
        complete[derived] = getattr(config, derived, None)
    known, read = spec_from_config(config, name=kind), spec_from_config(complete, name=kind)
    assert read.layers == known.layers
    assert (read.hidden_size, read.vocab_size) == (known.hidden_size, known.vocab_size)


def test_old_files_say_by_rule_which_layers_slide():
    base = LLAMA | {"model_type": "brand-new", "num_hidden_layers": 6, "sliding_window": 100}
    windows = {
        "all": (base, [100] * 6),
        "pattern": (base | {"sliding_window_pattern": 3}, [100, 100, None] * 2),
        "off": (base | {"use_sliding_window": False}, [None] * 6),
        "upper": (
            base | {"use_sliding_window": True, "max_window_layers": 4},
            [None] * 4 + [100] * 2,
        ),
    }
    for name, (config, expected) in windows.items():
        spec = spec_from_config(config, name=name)
        assert [layer.window for layer in spec.layers] == expected, name


def test_a_llama_3_70b_takes_327680_bytes_a_token():
    config = LLAMA | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    spec = spec_from_config(config, name="llama-3-70b")
    assert spec.kv_bytes(1, 16) == 327_680
    assert spec.kv_bytes(4096, 16) / 2**30 == 1.25
    assert round(spec.kv_bytes(32_000, 16) / 2**30, 2) == 9.77
    assert spec.kv_bytes(131_072, 16) / 2**30 == 40
    assert spec.kv_bytes(131_072, 8) / 2**30 == 20


def test_a_shared_layer_names_the_last_layer_of_its_kind_that_holds_kv():
    spec = spec_from_config(config_json("shared"), name="shared")
    assert [layer.shares_with for layer in spec.layers] == [None] * 6 + [4, 4, 4, 4, 4, 5]
    assert sum(layer.values_per_token == 0 for layer in spec.layers) == 6


def test_the_text_model_is_found_inside_a_model_of_text_and_pictures():
    wrapped = {
        "model_type": "brand-new-vl",
        "tie_word_embeddings": True,
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        "text_config": LLAMA,
    }
    plain = spec_from_config(LLAMA | {"tie_word_embeddings": True}, name="x")
    assert spec_from_config(wrapped, name="x") == plain
    assert spec_from_config({"thinker_config": wrapped}, name="x") == plain


def test_a_published_gemma_3_leaves_its_heads_to_its_class():
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    spec = spec_from_config({"model_type": "gemma3", "text_config": text}, name="gemma-3-4b")
    assert (spec.num_query_heads, spec.layers[0].num_kv_heads, spec.layers[0].key_dim) == (
        8,
        4,
        256,
    )
    assert sum(layer.kind == "full" for layer in spec.layers) == 5
    assert spec.max_positions == 131_072


def test_the_config_given_is_left_as_it_was():
    config = LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0}}
    before = repr(config)
    spec_from_config(config, name="x")
    assert repr(config) == before


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"hidden_size": None}, "config_field_missing", "hidden_size"),
        ({"num_hidden_layers": None}, "config_field_missing", "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "config_field_range", "num_hidden_layers"),
        ({"num_hidden_layers": "many"}, "config_field_absurd", "num_hidden_layers"),
        ({"num_hidden_layers": True}, "config_field_absurd", "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "config_field_range", "num_hidden_layers"),
        ({"hidden_size": float("nan")}, "config_field_absurd", "hidden_size"),
        ({"hidden_size": float("inf")}, "config_field_absurd", "hidden_size"),
        ({"head_dim": -8}, "config_field_range", "head_dim"),
        ({"num_key_value_heads": 3}, "config_heads_uneven", "num_key_value_heads"),
        ({"num_key_value_heads": 16}, "config_heads_uneven", "num_key_value_heads"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "config_head_dim", "head_dim"),
        ({"layer_types": ["full_attention"]}, "config_layers_disagree", "num_hidden_layers"),
        ({"layer_types": ["telepathy"] * 4}, "config_layer_unknown", "layer_types"),
        ({"is_encoder_decoder": True}, "config_not_causal", None),
    ],
)
@pytest.mark.parametrize("family", ["llama", "brand-new"])
def test_a_field_that_makes_no_sense_is_named(
    family: str, changes: dict[str, Any], code: str, field: str | None
):
    config = {k: v for k, v in (LLAMA | {"model_type": family} | changes).items() if v is not None}
    with pytest.raises(ModelError) as caught:
        spec_from_config(config, name="x")
    assert caught.value.code == code
    for lang in ("en", "ko"):
        assert caught.value.remedy(lang)
        assert field is None or field in caught.value.message(lang)


@pytest.mark.parametrize(
    "missing", ["num_attention_heads", "vocab_size", "max_position_embeddings"]
)
def test_without_a_class_nothing_is_made_up(missing: str):
    config = {k: v for k, v in (LLAMA | {"model_type": "brand-new"}).items() if k != missing}
    with pytest.raises(ModelError) as caught:
        spec_from_config(config, name="x")
    assert caught.value.facts["field"] == missing


@pytest.mark.parametrize("family", ["recurrent_gemma", "minimax"])
def test_a_recurrent_family_of_unknown_states_is_refused(family: str):
    with pytest.raises(ModelError) as caught:
        spec_from_config(AutoConfig.for_model(family), name=family)
    assert caught.value.code == "config_recurrent_unknown"


@pytest.mark.parametrize(
    "asked",
    [
        {"model_type": "llama", "num_key_value_heads": 8},
        {"model_type": "llama", "tie_word_embeddings": True},
        {"model_type": "qwen2", "num_hidden_layers": 24},
        {"model_type": "qwen3", "num_hidden_layers": 36},
        {"model_type": "mistral"},
        {"model_type": "gemma2"},
        {"model_type": "gemma3_text"},
        {"model_type": "phi3"},
        {"model_type": "gpt2"},
        {"model_type": "falcon"},
        {"model_type": "mixtral"},
        {"model_type": "qwen3_moe"},
        {"model_type": "gpt_oss"},
        {"model_type": "deepseek_v3"},
        {"model_type": "llama4_text"},
        {"model_type": "mamba"},
        {"model_type": "mamba2"},
        {"model_type": "lfm2"},
        {"model_type": "qwen3_next"},
    ],
    ids=lambda asked: "-".join(str(v) for v in asked.values()),
)
def test_weights_are_estimated_within_one_percent(asked: dict[str, Any]):
    """Against the library's own model in its default size, on the `meta` device."""
    config = AutoConfig.for_model(**asked)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    measured = sum(p.numel() for p in model.parameters()) * 2
    estimate = spec_from_config(config, name="x", dtype_bytes=2).weight_bytes
    assert estimate == pytest.approx(measured, rel=0.01)


def test_given_weight_bytes_are_taken_as_they_are():
    assert spec_from_config(LLAMA, name="x", weight_bytes=12345).weight_bytes == 12345
