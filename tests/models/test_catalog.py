"""The catalog's figures against the library's own models, built with no bytes."""

import pytest
import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from kvchat.arch.from_hf import spec_from_config
from kvchat.models.catalog import CatalogEntry, builtin, catalog

ENTRIES = list(catalog().values())
each = pytest.mark.parametrize("entry", ENTRIES, ids=[one.name for one in ENTRIES])


@each
def test_parameters_are_those_of_the_library_for_that_config(entry: CatalogEntry) -> None:
    fields = dict(entry.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    classes = found if isinstance(found, (list, tuple)) else (found,)
    (wanted,) = (one for one in classes if one.__name__ in entry.config["architectures"])
    with torch.device("meta"):
        model = wanted(config)
    model.tie_weights()
    assert sum(one.numel() for one in model.parameters()) == entry.parameters


@each
def test_each_entry_is_complete(entry: CatalogEntry) -> None:
    assert entry.repository.count("/") == 1
    assert entry.licence
    assert all(len(code) == 2 for code in entry.languages)
    spec = spec_from_config(entry.config, name=entry.name)
    assert spec.max_positions >= 8192
    # Its estimate knows matrices of text only: pictures' towers and biases are beyond it.
    assert 0.85 < spec.weight_bytes / 2 / entry.parameters <= 1.001


KV_VALUES = {  # 2 * KV heads * head size, layers
    "Qwen3-8B": (2 * 8 * 128, 36),
    "Llama-3.1-8B-Instruct": (2 * 8 * 128, 32),
    "Mistral-Nemo-Instruct-2407": (2 * 8 * 128, 40),
    "Mistral-7B-Instruct-v0.3": (2 * 8 * 128, 32),
    "EXAONE-4.0-1.2B": (2 * 8 * 64, 30),
    "phi-4": (2 * 10 * 128, 40),
}


@pytest.mark.parametrize("name", KV_VALUES)
def test_kv_of_models_that_attend_to_everything(name: str) -> None:
    values, layers = KV_VALUES[name]
    spec = spec_from_config(catalog()[name].config, name=name)
    assert spec.kv_bytes(8192, 16) == 8192 * values * layers * 2


def test_kv_of_a_model_with_sliding_layers() -> None:
    """Gemma 3 4B: five layers of six hold 1,024 tokens."""
    spec = spec_from_config(catalog()["gemma-3-4b-it"].config, name="gemma")
    full = sum(layer.kind == "full" for layer in spec.layers)
    assert (len(spec.layers), full) == (34, 5)
    assert spec.kv_bytes(8192, 16) == 2 * 2 * 4 * 256 * (5 * 8192 + 29 * 1024)


def test_the_catalog_covers_what_it_is_for() -> None:
    assert len(ENTRIES) >= 12
    assert [one.parameters for one in ENTRIES] == sorted(one.parameters for one in ENTRIES)
    korean = [one for one in ENTRIES if one.serves_korean]
    # One for each card: 8, 12, 16 and 24 GiB, weights in fp16 or int8 with room for a chat.
    for gib in (8, 12, 16, 24):
        assert any(one.parameters <= 0.8 * gib * 2**30 / 2 for one in korean)
    assert not catalog()[builtin().name].serves_korean
