"""The fields of a model's config.json, under whichever name a family gives them, checked when read.

A file leaves out what its family's class has as a default (Gemma 3 leaves out its heads), and some
families derive their layers in code; so where the installed transformers knows the `model_type`,
its config class completes the file. Where it does not, the file is read as it stands.
Knows what a field is called and which values make sense, not what follows from it.
"""

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvchat.errors import ModelError

log = logging.getLogger(__name__)

# Where a model of text and pictures keeps the part that reads and writes text.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")

# Other names of the fields; the first that is there counts.
_ALIASES = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"),
    "max_position_embeddings": (
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    ),
    "layer_types": ("layer_types", "layers_block_type"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "top_k_experts", "moe_top_k", "moe_k"),
    "mamba_heads": ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads"),
    "mamba_head_dim": ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim"),
    "mamba_state": ("mamba_d_state", "ssm_state_size", "state_size"),
    "mamba_groups": ("mamba_n_groups", "mamba_ngroups", "n_groups"),
    "mamba_kernel": ("mamba_d_conv", "conv_kernel"),
    "mamba_expand": ("mamba_expand", "expand"),
}  # fmt: skip

# Fields that may be a list with one value a layer.
_PER_LAYER = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")

# Beyond these no model is a model; they only keep a mangled file from asking for exabytes.
_MOST = {
    "num_hidden_layers": 4096, "hidden_size": 2**20, "vocab_size": 2**24,
    "num_attention_heads": 2**14, "num_key_value_heads": 2**14, "head_dim": 2**14,
    "intermediate_size": 2**24, "num_experts": 2**16,
}  # fmt: skip
_MOST_OTHERWISE = 2**40

# What a config class raises for a file that it does not accept; each family checks in its own way.
_REFUSALS = (
    StrictDataclassError, ValueError, TypeError, AttributeError, KeyError, ZeroDivisionError,
)  # fmt: skip


class Fields:
    """A config read by name. `count` gives a checked whole number, or raises ModelError."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        """The value under any of the field's names, or None."""
        for alias in _ALIASES.get(name, (name,)):
            if self._values.get(alias) is not None:
                return self._values[alias]
        return None

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least`. Raises ModelError if absent without a default, or absurd."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise ModelError("config_field_missing", field=name)
        if isinstance(value, (list, tuple)) and value:  # a width for each layer: the widest
            value = max(value, key=lambda one: one if isinstance(one, int) else 0)
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise ModelError("config_field_absurd", field=name, value=value, least=least)
        most = _MOST.get(name, _MOST_OTHERWISE)
        if not least <= value <= most:
            raise ModelError("config_field_range", field=name, value=value, least=least, most=most)
        return int(value)

    def has(self, *names: str) -> bool:
        return all(self.get(name) is not None for name in names)

    def at_layer(self, index: int) -> "Fields":
        """The config as one layer sees it: some families give layers shapes of their own."""
        layers = self.get("per_layer_config") or {}
        own: dict[str, Any] = dict(next((v for k, v in layers.items() if int(k) == index), {}))
        for name in _PER_LAYER:
            value = self.get(name)
            if isinstance(value, (list, tuple)) and index < len(value):
                own.setdefault(name, value[index])
        hidden = {alias for name in own for alias in _ALIASES.get(name, ())}
        kept = {name: value for name, value in self._values.items() if name not in hidden}
        return Fields({**kept, **own})


def read(config: Mapping[str, Any] | PreTrainedConfig) -> Fields:
    """The fields of the text model inside a config. Raises ModelError if it is no causal model."""
    if isinstance(config, PreTrainedConfig):
        return Fields(_of_class(config.get_text_config(decoder=True)))
    written = _text_part(config)
    if written.get("is_encoder_decoder"):
        raise ModelError("config_not_causal", kind=written.get("model_type", "?"))
    _check_core(Fields(written))
    return Fields(_completed(written))


def _text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's own values over those of its wrapper (which may say tie_word_embeddings)."""
    values = dict(config)
    for _ in range(3):  # Qwen's Omni models nest twice
        inner = next((values[k] for k in _TEXT_PARTS if isinstance(values.get(k), Mapping)), None)
        if inner is None:
            return values
        outer = {k: v for k, v in values.items() if not k.endswith("_config") and k != "decoder"}
        values = {**outer, **inner}
    return values


def _check_core(fields: Fields) -> None:
    """Every file states these: a class's default in their place would be some other model."""
    fields.count("hidden_size")
    if not fields.has("layer_types") and fields.get("hybrid_override_pattern") is None:
        fields.count("num_hidden_layers")
    for optional in ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"):
        if fields.has(optional):
            fields.count(optional)
    if fields.has("intermediate_size"):
        fields.count("intermediate_size", least=0)


def _completed(written: dict[str, Any]) -> dict[str, Any]:
    kind = written.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return written
    # A copy all the way down: the classes write their defaults into the dicts that they are given.
    given = deepcopy({name: value for name, value in written.items() if name != "model_type"})
    try:
        made = CONFIG_MAPPING[kind](**given)
    except _REFUSALS as error:
        log.info("transformers refuses this config of %s: %s; read as it stands", kind, error)
        return written
    rope = {name: written[name] for name in ("rope_parameters",) if name in written}
    return {**written, **_of_class(made.get_text_config(decoder=True)), **rope}


def _of_class(config: PreTrainedConfig) -> dict[str, Any]:
    """A config object's values, with what its class derives and what single layers have for it."""
    values = dict(vars(config))
    values["model_type"] = config.model_type
    for derived in (*_ALIASES, "kv_sharing_modes"):
        if not any(alias in values for alias in _ALIASES.get(derived, ())):
            values[derived] = getattr(config, derived, None)
    values["per_layer_config"] = config.to_dict().get("per_layer_config")
    return values
