"""The bytes of a recurrent layer's states, which stay the same at any length of text.

Shapes as transformers 5.24 makes them (`modeling_*.py`), for one sequence:
    convolution state   [channels, kernel]              in the model's dtype
    recurrent state     by family, see each function    in fp32
"""

from kvchat.arch.fields import Fields
from kvchat.errors import ModelError

_FP32_BYTES = 4


def recurrent_bytes(fields: Fields, kind: str, dtype_bytes: int) -> int:
    """Bytes of one layer's states. Raises ModelError for a family that is not known here."""
    if kind == "conv":
        return _short_convolution(fields, dtype_bytes)
    if fields.has("linear_num_value_heads"):
        return _delta_net(fields, dtype_bytes)
    if fields.has("mamba_heads", "mamba_state"):
        return _mamba2(fields, dtype_bytes)
    if fields.has("mamba_state", "mamba_kernel"):
        return _mamba(fields, dtype_bytes)
    raise ModelError("config_recurrent_unknown", kind=fields.get("model_type") or "?")


def _short_convolution(fields: Fields, dtype_bytes: int) -> int:
    """LFM2: [hidden, kernel], and no recurrent state."""
    return fields.count("hidden_size") * fields.count("conv_L_cache") * dtype_bytes


def _delta_net(fields: Fields, dtype_bytes: int) -> int:
    """Qwen3-Next, Qwen3.5, OLMo hybrid: [2 key_heads key_dim + value_heads value_dim, kernel] and
    [value_heads, key_dim, value_dim].
    """
    key_dim, value_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    value_heads = fields.count("linear_num_value_heads")
    channels = 2 * fields.count("linear_num_key_heads") * key_dim + value_heads * value_dim
    convolution = channels * fields.count("linear_conv_kernel_dim") * dtype_bytes
    return convolution + value_heads * key_dim * value_dim * _FP32_BYTES


def _mamba2(fields: Fields, dtype_bytes: int) -> int:
    """Mamba 2 and the hybrids that use it: [heads head_dim + 2 groups state, kernel] and
    [heads, head_dim, state].
    """
    heads, head_dim = fields.count("mamba_heads"), fields.count("mamba_head_dim")
    state = fields.count("mamba_state")
    channels = heads * head_dim + 2 * fields.count("mamba_groups", default=1) * state
    convolution = channels * fields.count("mamba_kernel") * dtype_bytes
    return convolution + heads * head_dim * state * _FP32_BYTES


def _mamba(fields: Fields, dtype_bytes: int) -> int:
    """Mamba, Falcon Mamba, Jamba: [inner, kernel] and [inner, state], inner = expand hidden."""
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    convolution = inner * fields.count("mamba_kernel") * dtype_bytes
    return convolution + inner * fields.count("mamba_state") * _FP32_BYTES


def work_values(fields: Fields) -> int:
    """Values in fp32 that a recurrent layer makes of each token while it reads a chunk.

    Of a delta net, whose plain version works in tiles of 64: the convolution's input and output,
    five times keys and values of all heads, and seven rows of a tile's matrix. Of a Mamba layer
    that has heads, whose plain version makes a matrix of a tile by state of each token: two of
    those.
    """
    if fields.has("linear_num_value_heads"):
        key_dim = fields.count("linear_key_head_dim")
        value_dim, heads = (
            fields.count("linear_value_head_dim"),
            fields.count("linear_num_value_heads"),
        )
        channels = 2 * fields.count("linear_num_key_heads") * key_dim + heads * value_dim
        return 2 * channels + heads * (5 * (key_dim + value_dim) + 7 * 64)
    return 0
