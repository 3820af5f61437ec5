"""How many bytes a model's weights take: exactly, from the headers of its files, or by the shapes.

The headers tell every tensor's type and size without reading it, so a folder's figure is exact. A
bare config.json only gives an estimate: the families' matrices are counted, biases and norms are
not, nor what only one family has (towers for pictures, adapters). Whoever shows it says that it is
an estimate.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.arch.fields import Fields
from kvchat.errors import ModelError

# Families whose MLP is two matrices (up, down) and not three (gate, up, down).
_PLAIN_MLP = (
    "gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "mpt", "falcon", "phi",
    "starcoder2", "nemotron", "nemotron_h", "persimmon", "codegen", "xglm", "arcee", "jais2",
    "apertus", "nanochat", "gpt_neox_japanese",
)  # fmt: skip
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_HEADER_MOST = 100 * 2**20  # what the format's own reader allows


def folder_weight_bytes(folder: Path, dtype_bytes: int | None = None) -> int | None:
    """Bytes of all tensors in a folder's safetensors files; None where it has none.

    With `dtype_bytes` the 16-, 32- and 64-bit floats are counted at that size, as they will be
    held. Reads headers only. Raises ModelError for a file that is no safetensors file, or cut
    short.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    return sum(
        _tensor_bytes(tensor, dtype_bytes)
        for file in files
        for name, tensor in _header(file).items()
        if name != "__metadata__"
    )


def _header(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if not 2 <= length <= _HEADER_MOST:
                raise ValueError(f"a header of {length} bytes")
            found = json.loads(stream.read(length))
        ends = [t["data_offsets"][1] for name, t in found.items() if name != "__metadata__"]
        missing = 8 + length + max(ends, default=0) - file.stat().st_size
    except (OSError, ValueError, struct.error, AttributeError, KeyError, TypeError, IndexError):
        raise ModelError("weights_unreadable", path=file) from None
    if missing > 0:
        raise ModelError("weights_cut_short", path=file, missing=missing)
    return dict(found)


def _tensor_bytes(tensor: Mapping[str, Any], dtype_bytes: int | None) -> int:
    start, stop = tensor["data_offsets"]
    stored = int(stop) - int(start)
    width = _FLOAT_BYTES.get(tensor["dtype"])
    return stored if dtype_bytes is None or width is None else stored // width * dtype_bytes


@dataclass(frozen=True, slots=True)
class Parameters:
    """Values of a model's matrices. `embedded`: embeddings and output, which int8 leaves as they
    are.
    """

    embedded: int
    in_layers: int

    def bytes(self, dtype_bytes: int, weights: str = "as-is") -> int:
        """What they take: int8 holds one byte a value of the layers' matrices."""
        width = 1 if weights == "int8" else dtype_bytes
        return self.embedded * dtype_bytes + self.in_layers * width


def estimated_parameters(fields: Fields, kinds: tuple[str, ...]) -> Parameters:
    """All matrices of the text model: embeddings, each layer's mixer and MLP, the output.

    hidden H, vocabulary V:  V H (twice if the output is not tied)  +  per layer: attention or a
    recurrent mixer  +  MLP or experts.
    """
    hidden, vocab = fields.count("hidden_size"), fields.count("vocab_size")
    embedded = vocab * hidden * (1 if fields.get("tie_word_embeddings") else 2)
    if fields.get("hidden_size_per_layer_input"):  # Gemma 3n: a small embedding for every layer
        width = fields.count("hidden_size_per_layer_input") * len(kinds)
        embedded += fields.count("vocab_size_per_layer_input", default=vocab) * width
    if fields.get("model_type") in ("gpt2", "gpt_bigcode", "opt"):  # learned positions
        embedded += fields.count("max_position_embeddings") * hidden
    in_layers = sum(
        _mixer(fields.at_layer(i), kind) + _mlp(fields.at_layer(i), kind, i)
        for i, kind in enumerate(kinds)
    )
    return Parameters(embedded, in_layers)


def _mixer(fields: Fields, kind: str) -> int:
    if kind in ("moe", "mlp"):
        return 0
    if kind in ("linear_attention", "mamba", "recurrent", "conv"):
        return _recurrent(fields, kind)
    attention = _latent(fields) if fields.has("kv_lora_rank") else _attention(fields)
    return attention + (_recurrent(fields, kind) if kind.startswith("hybrid") else 0)


def _attention(fields: Fields) -> int:
    """q and o: H heads D each; k and v: H kv_heads D each."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    key_dim = fields.count("head_dim", default=max(1, hidden // heads))
    value_dim = fields.count("v_head_dim", default=key_dim)
    one = fields.get("multi_query") and not fields.get("new_decoder_architecture")
    kv_heads = 1 if one else fields.count("num_key_value_heads", default=heads)
    return hidden * (heads + kv_heads) * (key_dim + value_dim)


def _latent(fields: Fields) -> int:
    """Down and up projections of q (or one), of k and v, and o."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    rank, rotated = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    key_dim, value_dim = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    queries = heads * (key_dim + rotated)
    q_rank = fields.get("q_lora_rank")
    from_q = q_rank * (hidden + queries) if q_rank else hidden * queries
    from_kv = hidden * (rank + rotated) + rank * heads * (key_dim + value_dim)
    return int(from_q + from_kv + heads * value_dim * hidden)


def _recurrent(fields: Fields, kind: str) -> int:
    """The in and out projections; what lies between is small beside them."""
    hidden = fields.count("hidden_size")
    if kind == "conv":
        return 4 * hidden * hidden
    if fields.has("linear_num_value_heads"):
        keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
        value_heads = fields.count("linear_num_value_heads")
        values = value_heads * fields.count("linear_value_head_dim")
        return hidden * (2 * keys + 3 * values + 2 * value_heads)
    if fields.has("mamba_heads", "mamba_state"):
        heads, state = fields.count("mamba_heads"), fields.count("mamba_state")
        inner = heads * fields.count("mamba_head_dim")
        groups = fields.count("mamba_groups", default=1)
        return hidden * (3 * inner + 2 * groups * state + heads)
    inner = fields.count("mamba_expand", default=2) * hidden
    state, rank = fields.count("mamba_state", default=16), -(-hidden // 16)
    return hidden * 3 * inner + inner * (2 * rank + 3 * state)


def _mlp(fields: Fields, kind: str, index: int) -> int:
    hidden = fields.count("hidden_size")
    if fields.get("model_type") in ("mamba", "mamba2", "falcon_mamba"):
        return 0
    if fields.get("model_type") == "nemotron_h" and kind not in ("moe", "mlp"):
        return 0
    matrices = 2 if fields.get("model_type") in _PLAIN_MLP else 3
    dense = fields.count("intermediate_size", default=4 * hidden, least=0)
    if not _has_experts(fields, kind, index):
        return matrices * hidden * _dense_width(fields, dense)
    expert = fields.count("moe_intermediate_size", default=dense)
    shared = fields.get("shared_expert_intermediate_size") or fields.get("shared_intermediate_size")
    if shared is None:
        shared = expert * fields.count("n_shared_experts", default=0, least=0)
    if fields.get("model_type") == "llama4_text":
        shared = expert
    experts = fields.count("num_experts")
    return matrices * hidden * (experts * expert + int(shared)) + hidden * experts


def _dense_width(fields: Fields, dense: int) -> int:
    if fields.get("intermediate_size_mlp"):  # Llama 4's dense layers
        return fields.count("intermediate_size_mlp")
    if fields.get("block_auto_adjust_ff_dim"):  # LFM2: two thirds, in whole multiples
        step = fields.count("block_multiple_of", default=256)
        return -(-int(2 * dense / 3 * (fields.get("block_ffn_dim_multiplier") or 1)) // step) * step
    return dense


def _has_experts(fields: Fields, kind: str, index: int) -> bool:
    """Whether a layer's MLP is a set of experts: each family says in its own way which ones are."""
    if not fields.get("num_experts") or kind == "mlp" or fields.get("is_moe") is False:
        return False
    if fields.has("expert_layer_period"):  # Jamba
        offset = fields.count("expert_layer_offset", default=0, least=0)
        return index % fields.count("expert_layer_period") == offset
    if fields.get("moe_layers") is not None:
        return index in fields.get("moe_layers")
    if fields.get("mlp_layer_types") is not None:
        return bool(fields.get("mlp_layer_types")[index] == "sparse")
    if index < fields.count("first_k_dense_replace", default=0, least=0):
        return False
    if index in (fields.get("mlp_only_layers") or ()):
        return False
    return (index + 1) % fields.count("decoder_sparse_step", default=1) == 0
