"""The decode backend of a CPU: our kernel over blocks where they lie, a pass a pair of formats.

Chunks of more than one token, and what the kernel does not do, are not for it; `choose` knows.
numba is imported here only, and may be missing: then torch's own kernels serve.
"""

from array import array
from functools import cache
from importlib.util import find_spec
from math import gcd

import torch
from torch import Tensor

from kvchat.attention.backend import LayerKV, Lying, Scoring
from kvchat.kvcache.quantize import rotation_parts

# From here on a second thread saves more than waking it costs.
PARALLEL_TOKENS = 1024
_LANES = 8
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@cache
def is_installed() -> bool:
    return find_spec("numba") is not None


def supports(query: Tensor, kv: LayerKV) -> bool:
    """One new token, sizes that fill whole vectors, codes of whole numbers; any scoring."""
    if query.shape[2] != 1 or kv.new[0].dtype not in _DTYPES or not is_installed():
        return False
    lying = kv.lying()
    names = {fmt.name for one, _ in lying.lists for fmt in (one.pair.key, one.pair.value)}
    return "fp8" not in names and not query.shape[3] % _LANES and not lying.value_dim % _LANES


def attend(query: Tensor, kv: LayerKV, scoring: Scoring) -> Tensor:
    """See `backend.Attend`; query [1, heads, 1, key_dim] on a CPU, computed in fp32."""
    from kvchat.attention import cpu_kernel as kernel

    _, heads, _, key_dim = query.shape
    lying, layer = kv.lying(), kv.layer
    kv_heads, ratio, value_dim = kv.num_kv_heads, heads // kv.num_kv_heads, lying.value_dim
    threads = torch.get_num_threads() if lying.num_tokens >= PARALLEL_TOKENS else 1
    shares = threads // gcd(kv_heads, threads)
    scratch = kv.scratch(kv_heads * shares * kernel.item_floats(key_dim, value_dim, ratio))
    wide = query.float().contiguous()
    sinks = None if scoring.sinks is None else scoring.sinks.float().contiguous()
    out = torch.empty(1, 1, heads, value_dim, dtype=torch.float32)
    common = (
        wide.data_ptr(),
        out.data_ptr(),
        scratch.data_ptr(),
        0 if sinks is None else sinks.data_ptr(),
        kv_heads,
        shares,
        kernel.two_floats(scoring.scale, scoring.softcap or 0.0),
    )
    run = kernel.runner(threads > 1)
    if threads > 1:
        kernel.use_threads(threads)
    dtype, parts = _DTYPES[kv.new[0].dtype], rotation_parts(key_dim)
    last = len(lying.lists) - 1
    for number, (one, shape) in enumerate(lying.lists):
        blocks = (
            one.addresses.data_ptr(),
            one.addresses.shape[0],
            layer * shape.layer_bytes,
            shape.head_bytes,
            one.skip,
        )
        arguments = array(
            "q", (*common, *blocks, *_hot(lying, layer, number == last), int(number == 0))
        )
        at, _ = arguments.buffer_info()
        key, value = (dtype if f.bits is None else f.name for f in (one.pair.key, one.pair.value))
        one_pass = kernel.passes(key, value, dtype, key_dim, value_dim, ratio, parts)
        run(one_pass.address, at, kv_heads * shares)
    kernel.join(at, ratio, key_dim, value_dim, rotation_parts(value_dim))
    return out.to(query.dtype)


def _hot(lying: Lying, layer: int, is_last: bool) -> tuple[int, int, int, int]:
    """The hot window as the last pass reads it; no tokens for the others."""
    at = layer * lying.hot_layer_bytes
    num_hot = lying.num_hot if is_last else 0
    return lying.hot_keys + at, lying.hot_values + at, lying.hot_head_bytes, num_hot
