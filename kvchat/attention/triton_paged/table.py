"""What the Triton kernels read of one layer's KV, all of it on the device, and what they serve.

Lengths and addresses are tensors of a fixed size, so that a captured step can be run again after
they changed. Imports no Triton: where it is missing, `why_not` says so.
"""

import logging
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from os import environ
from subprocess import SubprocessError
from typing import Literal

import torch
from torch import Tensor

from kvchat.device.cuda import nvidia_capability
from kvchat.device.oom import is_out_of_memory
from kvchat.memory.formats import FormatPair

Refusal = Literal["no_triton", "no_nvidia_card", "old_card", "dtype", "head_size", "triton_broken"]

logger = logging.getLogger(__name__)

HEAD_DIMS = (64, 80, 96, 112, 128, 256)
SERVED = frozenset(("fp", "int8", "int6", "fp8", "int5", "int4", "int2"))
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

    The hot window ends with the new tokens.
    """

    sealed: tuple[SealedBlocks, ...]
    hot: HotWindow
    query_position: Tensor
    window: int | None = None


@cache
def why_not(
    key_dim: int, value_dim: int, dtype: torch.dtype, device: torch.device
) -> Refusal | None:
    """Why the kernels do not run such layers here, or None if they do. Asked once a run: at the
    first time on a card, a kernel is compiled and run there.
    """
    refused = refusal(key_dim, value_dim, dtype, nvidia_capability(device))
    if refused is None and device.type == "cuda" and not _compiles(device):
        return "triton_broken"
    return refused


def refusal(
    key_dim: int, value_dim: int, dtype: torch.dtype, capability: tuple[int, int] | None
) -> Refusal | None:
    """Why the kernels do not serve this, or None if they do.

    `capability` is that of an NVIDIA card; None stands for any other device, where they run in
    Triton's interpreter only, if that is asked for. Any number of heads, any format, softcap, sinks
    and sliding windows are served.
    """
    if capability is None and not interpreted():
        return "no_nvidia_card"
    if find_spec("triton") is None:
        return "no_triton"
    if capability is not None and capability < _LEAST_CAPABILITY:
        return "old_card"
    half = (torch.float16, torch.bfloat16)
    if dtype not in half and not (capability is None and dtype == torch.float32):
        return "dtype"
    return None if key_dim in HEAD_DIMS and value_dim in HEAD_DIMS else "head_size"


def interpreted() -> bool:
    """Whether Triton's interpreter is asked for, by its own variable. Does not import Triton."""
    return environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "y", "yes")


def _compiles(device: torch.device) -> bool:
    """Triton makes a launcher with a C compiler, which may be missing."""
    try:
        from kvchat.attention.triton_paged.trial import run

        run(device)
    except (RuntimeError, OSError, ImportError, SubprocessError) as error:
        if is_out_of_memory(error):
            raise
        logger.warning("Triton does not work here: %s", error)
        return False
    return True


def num_splits(kv_heads: int, capacity: int, num_processors: int) -> int:
    """Programs that share the blocks of one KV head: two for each processor, none without work."""
    return max(1, min(_MOST_SPLITS, capacity, -(-2 * num_processors // kv_heads)))
