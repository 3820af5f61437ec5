"""The decode backend of a CPU: our kernel over blocks where they lie, a pass a pair of formats.

Chunks of more than one token, and what the kernel does not do, are not for it; `choose` knows.
numba is imported here only, and may be missing: then torch's own kernels serve.
"""

from array import array
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from math import gcd
from typing import Literal

import torch
from torch import Tensor

from kvchat.attention.backend import LayerKV, Lying, Scoring
from kvchat.kvcache.blocks import FP, Geometry
from kvchat.kvcache.quantize import rotation_parts
from kvchat.memory.formats import FormatPair

Refusal = Literal["no_numba", "head_size", "format"]

# From here on a second thread saves more than waking it costs.
PARALLEL_TOKENS = 1024
_LANES = 8
SERVED = frozenset(("fp", "int8", "int6", "int5", "int4", "int2"))
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@cache
def is_installed() -> bool:
    return find_spec("numba") is not None


def supports(query: Tensor, kv: LayerKV) -> bool:
    """One new token, sizes that fill whole vectors, codes of whole numbers; any scoring."""
    if query.shape[2] != 1 or not is_installed():
        return False
    lying = kv.lying()
    served = _serves(query.shape[3], lying.value_dim, lying.dtype)
    return served and lying.formats <= SERVED


def why_not(
    key_dim: int, value_dim: int, dtype: torch.dtype, formats: frozenset[str]
) -> Refusal | None:
    """Why the kernel does not serve such layers in these formats, or None if it does."""
    if not is_installed():
        return "no_numba"
    if not _serves(key_dim, value_dim, dtype):
        return "head_size"
    return None if formats <= SERVED else "format"


def _serves(key_dim: int, value_dim: int, dtype: torch.dtype) -> bool:
    return dtype in _DTYPES and not key_dim % _LANES and not value_dim % _LANES


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
    dtype, parts = _DTYPES[lying.dtype], rotation_parts(key_dim)
    last = len(lying.lists) - 1
    for number, (one, shape) in enumerate(lying.lists):
        blocks = (
            one.addresses.data_ptr(),
            one.num_blocks,
            layer * shape.layer_bytes,
            shape.head_bytes,
            one.skip,
        )
        arguments = array(
            "q", (*common, *blocks, *_hot(lying, layer, number == last), int(number == 0))
        )
        at, _ = arguments.buffer_info()
        key, value = _kinds(one.pair, dtype)
        one_pass = kernel.passes(key, value, dtype, key_dim, value_dim, ratio, parts)
        run(one_pass.address, at, kv_heads * shares)
    kernel.join(at, ratio, key_dim, value_dim, rotation_parts(value_dim))
    return out.to(query.dtype)


def prepare(
    geometries: Iterable[Geometry], pairs: Iterable[FormatPair], num_query_heads: int
) -> None:
    """Compiles, or loads from disk, what such layers need in these formats: the first step with a
    pair would otherwise take two or three seconds longer. Nothing where the kernel does not serve.
    """
    if not is_installed():
        return
    from kvchat.attention import cpu_kernel as kernel

    asked = [*pairs]
    for one in geometries:
        if not _serves(one.key_dim, one.value_dim, one.dtype):
            continue
        dtype, ratio = _DTYPES[one.dtype], num_query_heads // one.num_kv_heads
        for pair in {FP, *(one.served(pair) for pair in asked)}:
            if {pair.key.name, pair.value.name} <= SERVED:
                key, value = _kinds(pair, dtype)
                sizes = one.key_dim, one.value_dim, ratio, rotation_parts(one.key_dim)
                kernel.passes(key, value, dtype, *sizes)
    kernel.prepare(torch.get_num_threads() > 1)


def _kinds(pair: FormatPair, dtype: str) -> tuple[str, str]:
    key, value = (dtype if fmt.bits is None else fmt.name for fmt in (pair.key, pair.value))
    return key, value


def _hot(lying: Lying, layer: int, is_last: bool) -> tuple[int, int, int, int]:
    """The hot window as the last pass reads it; no tokens for the others."""
    at = layer * lying.hot_layer_bytes
    num_hot = lying.num_hot if is_last else 0
    return lying.hot_keys + at, lying.hot_values + at, lying.hot_head_bytes, num_hot
