"""What a model is made of, read from its config.json: one LayerSpec a layer, the widths, the
length.

Says what each layer would hold in memory; knows no tensor, reads no file, builds no model. The
kinds of layers follow transformers' own cache (`cache_utils.py`, 5.24): what it stores for a token
is what is counted here, and the tests hold the two against each other.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from kvchat.arch.fields import Fields, read
from kvchat.arch.positions import max_positions
from kvchat.arch.recurrent import recurrent_bytes, work_values
from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.arch.weights import Parameters, estimated_parameters
from kvchat.errors import ModelError

_FULL = ("full_attention", "attention", "hybrid", "indexed_attention", "deepseek_sparse_attention")
_SLIDING = ("sliding_attention", "hybrid_sliding")
_RECURRENT = ("linear_attention", "mamba", "recurrent", "conv")
_WITHOUT_KV = ("moe", "mlp")
_SLIDING_HEADS_TIMES = {"mimo_v2_flash": 2}  # its sliding layers have twice the KV heads


def spec_from_config(
    config: Mapping[str, Any] | PreTrainedConfig,
    *,
    name: str,
    weight_bytes: int | None = None,
    dtype_bytes: int = 2,
    tokenizer_limit: float | None = None,
) -> ModelSpec:
    """The spec of a causal language model from its config, or from a config.json as it was parsed.

    `weight_bytes` is what the weights take; None estimates it from the shapes at `dtype_bytes` a
    value. `dtype_bytes` is also the size of a recurrent layer's convolution state.
    `tokenizer_limit` is the tokenizer's `model_max_length`. Raises ModelError naming the field
    that is missing or absurd.
    """
    fields = read(config)
    kinds = layer_kinds(fields)
    layers = tuple(_layer(fields, kinds, i, dtype_bytes) for i in range(len(kinds)))
    if weight_bytes is None:
        weight_bytes = estimated_parameters(fields, kinds).bytes(dtype_bytes)
    return ModelSpec(
        name=name,
        layers=layers,
        hidden_size=fields.count("hidden_size"),
        intermediate_size=mlp_width(fields),
        vocab_size=fields.count("vocab_size"),
        num_query_heads=fields.count("num_attention_heads", default=1),
        weight_bytes=weight_bytes,
        max_positions=max_positions(fields, tokenizer_limit),
        dense_scores=fields.has("attn_logit_softcapping") or fields.get("model_type") == "gpt_oss",
    )


def parameters_of(config: Mapping[str, Any] | PreTrainedConfig) -> Parameters:
    """An estimate of how many values a model's weights have, from the shapes alone."""
    fields = read(config)
    return estimated_parameters(fields, layer_kinds(fields))


def layer_kinds(fields: Fields) -> tuple[str, ...]:
    """transformers' name of each layer's kind: as the config lists them, else by the rules of old
    files.
    """
    listed = fields.get("layer_types")
    if listed is not None:
        declared = fields.count("num_hidden_layers", default=len(listed))
        if declared != len(listed):
            raise ModelError("config_layers_disagree", declared=declared, listed=len(listed))
        return tuple(listed)
    return tuple(_kind_by_rule(fields, i) for i in range(fields.count("num_hidden_layers")))


def _kind_by_rule(fields: Fields, index: int) -> str:
    interval = fields.get("full_attention_interval")
    if interval:
        return "full_attention" if (index + 1) % int(interval) == 0 else "linear_attention"
    if not fields.get("sliding_window") or fields.get("use_sliding_window") is False:
        return "full_attention"
    pattern = fields.get("sliding_window_pattern")
    if pattern:
        slides = (index + 1) % int(pattern) != 0
    else:
        slides = not fields.get("use_sliding_window") or index >= fields.count(
            "max_window_layers", default=0, least=0
        )
    return "sliding_attention" if slides else "full_attention"


def _layer(fields: Fields, kinds: tuple[str, ...], index: int, dtype_bytes: int) -> LayerSpec:
    kind, own = kinds[index], fields.at_layer(index)
    if kind in _WITHOUT_KV or index in (fields.get("cross_attention_layers") or ()):
        return LayerSpec("none")  # Mllama's cross attention holds KV of pictures only
    if kind in _RECURRENT:
        return LayerSpec(
            "recurrent",
            recurrent_bytes=recurrent_bytes(own, kind, dtype_bytes),
            work_values=work_values(own),
        )
    states = recurrent_bytes(own, kind, dtype_bytes) if kind.startswith("hybrid") else 0
    shares = _shares_with(fields, kinds, index)
    if kind in _SLIDING:
        window = own.count("sliding_window")
    elif kind == "chunked_attention":
        window = own.count("attention_chunk_size")
    elif kind in _FULL:
        window = None
    else:
        raise ModelError("config_layer_unknown", kind=kind)
    if own.has("kv_lora_rank"):
        return _latent(own, kind, window, shares)
    heads, key_dim, value_dim = _heads(own)
    if window is not None:
        heads *= _SLIDING_HEADS_TIMES.get(own.get("model_type"), 1)
    return LayerSpec(
        "full" if window is None else "sliding", heads, key_dim, value_dim, window, shares, states
    )


def _latent(fields: Fields, kind: str, window: int | None, shares: int | None) -> LayerSpec:
    """MLA: one latent and one rotated key a token, all heads sharing them; each is expanded to be
    used.

    An indexed layer keeps one more key of `index_head_dim` (DeepSeek-V3.2), counted with the
    rotated one.
    """
    rank, rotated = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    index = fields.count("index_head_dim", default=0, least=0) if "index" in kind else 0
    key_dim = fields.count("qk_nope_head_dim") + rotated
    # Projected out of the latent: keys without the rotated part and values; then the keys whole.
    made = fields.count("num_attention_heads") * (
        2 * key_dim - rotated + fields.count("v_head_dim")
    )
    return LayerSpec("latent", 1, rank, rotated + index, window, shares, work_values=made)


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Number of KV heads, values a key, values a value."""
    heads = fields.count("num_attention_heads")
    if fields.get("multi_query") and not fields.get("new_decoder_architecture"):
        kv_heads = 1  # Falcon, StarCoder
    else:
        kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ModelError(
            "config_heads_uneven", field="num_key_value_heads", value=kv_heads, heads=heads
        )
    if fields.has("head_dim"):
        key_dim = fields.count("head_dim")
    else:
        hidden = fields.count("hidden_size")
        if hidden % heads:
            raise ModelError("config_head_dim", hidden=hidden, heads=heads)
        key_dim = hidden // heads
    return kv_heads, key_dim, fields.count("v_head_dim", default=key_dim)


def _shares_with(fields: Fields, kinds: tuple[str, ...], index: int) -> int | None:
    """The layer whose KV this one reads: the last of its kind before the sharing ones began."""
    modes = fields.get("kv_sharing_modes")
    if modes is None:
        first = len(kinds) - fields.count("num_kv_shared_layers", default=0, least=0)
        modes = ["reuse" if i >= first else None for i in range(len(kinds))]
    if modes[index] != "reuse":
        return None
    makers = [i for i in range(index) if modes[i] != "reuse" and kinds[i] == kinds[index]]
    if not makers:
        raise ModelError("config_sharing", layer=index, kind=kinds[index])
    return makers[-1]


def mlp_width(fields: Fields) -> int:
    """Values a token in each of an MLP's three streams (gate, up, product).

    Experts work on copies, one for each expert that a token is sent to: its input and output, gate
    and up together, the activation, the product; gpt-oss adds biases and clamps, which makes nine.
    The router's scores and the places of those chosen come on top. A third of it is one stream.
    """
    hidden = fields.count("hidden_size")
    dense = fields.count("intermediate_size", default=4 * hidden, least=0)
    if not fields.get("num_experts"):
        return dense
    expert = fields.count("moe_intermediate_size", default=dense)
    shared = fields.count("shared_expert_intermediate_size", default=0, least=0)
    chosen = fields.count("num_experts_per_tok", default=1)
    streams = 9 if fields.get("model_type") == "gpt_oss" else 4
    router = fields.count("num_experts") + 16 * chosen
    return max(dense, -(-chosen * (streams * expert + 2 * hidden) // 3) + shared + router)
