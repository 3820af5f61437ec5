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

from kvchat.attention.backend import LayerKV, Scoring

# From here on a second thread saves more than waking it costs.
PARALLEL_TOKENS = 1024
_LANES = 8
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@cache
def is_installed() -> bool:
    return find_spec("numba") is not None


def supports(query: Tensor, value_dim: int) -> bool:
    """One new token, sizes that fill whole vectors; any scoring."""
    one = query.shape[2] == 1 and query.dtype in _DTYPES
    return one and not query.shape[3] % _LANES and not value_dim % _LANES and is_installed()


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
    arguments = array(
        "q",
        (
            wide.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            0 if sinks is None else sinks.data_ptr(),
            kv_heads,
            shares,
            kernel.two_floats(scoring.scale, scoring.softcap or 0.0),
            lying.addresses.data_ptr(),
            lying.addresses.shape[0],
            layer * lying.layer_bytes,
            lying.head_bytes,
            lying.skip,
            lying.hot_keys + layer * lying.hot_layer_bytes,
            lying.hot_values + layer * lying.hot_layer_bytes,
            lying.hot_head_bytes,
            lying.num_hot,
            1,
        ),
    )
    at, _ = arguments.buffer_info()
    kind = _DTYPES[query.dtype]
    one = kernel.passes(kind, kind, kind, key_dim, value_dim, ratio, (key_dim,))
    run = kernel.run if threads == 1 else kernel.run_parallel
    run(one.address, at, kv_heads * shares)
    kernel.join(at, ratio, key_dim, value_dim, (value_dim,))
    return out.to(query.dtype)
