"""What the Triton kernels read of one layer's KV, all of it on the device, and what they serve.

Lengths and addresses are tensors of a fixed size, so that a captured step can be run again after
they changed. Imports no Triton: where it is missing, `refusal` says so.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from kvchat.memory.formats import FormatPair

HEAD_DIMS = (64, 80, 96, 112, 128, 256)
# Below 8.0 Triton's dots spill or find no tensor cores.
_LEAST_CAPABILITY = (8, 0)
_MOST_SPLITS = 64


@dataclass(frozen=True, slots=True)
class SealedBlocks:
    """The sealed blocks of one format pair that a step sees, in any order.

    addresses: int64 [capacity] in device memory, multiples of 16; positions: int32 [capacity] of
    their first tokens; count: int32 [1], how many of the entries hold. `layer_offset`: bytes from a
    block's address to the layer's first head.
    """

    pair: FormatPair
    addresses: Tensor
    positions: Tensor
    count: Tensor
    layer_offset: int


@dataclass(frozen=True, slots=True)
class HotWindow:
    """The newest tokens of a layer, as computed: keys and values [kv_heads, places, dim], each
    vector contiguous.

    span: int32 [3], the first place that is seen, the one after the last, the first one's position.
    """

    keys: Tensor
    values: Tensor
    span: Tensor


@dataclass(frozen=True, slots=True)
class LayerTable:
    """All that one layer's queries see. query_position: int32 [1], where the first of them stands.

    For decode the hot window has the new token in it; for prefill it ends before the chunk.
    """

    sealed: tuple[SealedBlocks, ...]
    hot: HotWindow
    query_position: Tensor
    window: int | None = None


def refusal(
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
) -> str | None:
    """Why the kernels do not serve this, or None if they do.

    `capability` is that of an NVIDIA card; None stands for any other device, where they run in
    Triton's interpreter only. Any number of heads, any format, softcap, sinks and sliding windows
    are served.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    interpreted = capability is None and _interpreted()
    if capability is None and not interpreted:
        return "not an NVIDIA card"
    if capability is not None and capability < _LEAST_CAPABILITY:
        return "compute capability below 8.0"
    if dtype not in (torch.float16, torch.bfloat16, *((torch.float32,) if interpreted else ())):
        return f"{dtype}: no tensor cores"
    for dim in (key_dim, value_dim):
        if dim not in HEAD_DIMS:
            return f"head size {dim}"
    return None


def _interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


def num_splits(kv_heads: int, capacity: int, num_processors: int) -> int:
    """Programs that share the blocks of one KV head: two for each processor, none without work."""
    return max(1, min(_MOST_SPLITS, capacity, -(-2 * num_processors // kv_heads)))
