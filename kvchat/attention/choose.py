"""Which attention backend runs where, and what is said about it.

What a backend does not implement it does not get: the plain reference serves then, and `describe`
says so.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.attention import cpu, flash, reference
from kvchat.attention.backend import Attend, LayerKV, Scoring
from kvchat.attention.triton_paged.table import SERVED, why_not
from kvchat.kvcache.blocks import Geometry
from kvchat.memory.formats import FormatPair


def choose(query: Tensor, kv: LayerKV, scoring: Scoring) -> Attend:
    """The fastest backend that can do it."""
    if kv.on_card and kv.lying().formats <= SERVED:
        from kvchat.attention.triton_paged.attend import attend  # imports Triton

        return attend
    on_cpu = query.device.type == "cpu"
    if on_cpu and cpu.supports(query, kv):
        return cpu.attend
    if not scoring.is_plain or query.shape[-1] != kv.value_dim:
        return reference.attend
    return flash.attend_cpu if on_cpu else flash.attend_sdpa


def reads_in_place(
    geometries: Iterable[Geometry], device: torch.device, pairs: Iterable[FormatPair]
) -> bool:
    """Whether a card's kernels run all layers that lie in blocks, in any of these formats: then
    nothing is gathered for them.
    """
    names = {fmt.name for pair in pairs for fmt in (pair.key, pair.value)}
    return (
        device.type == "cuda"
        and names <= SERVED
        and all(why_not(g.key_dim, g.value_dim, g.dtype, device) is None for g in geometries)
    )


def describe(
    spec: ModelSpec, device: torch.device, dtype: torch.dtype, pairs: Iterable[FormatPair] = ()
) -> list[dict[str, Any]]:
    """Which backend runs each kind of layer of a model, for `doctor` and the screen.

    `pairs`: the formats in use. decode, prefill: `attention.CODE` names the backend. `fast` is
    False where it is not the one made for the device, and `attention.why.CODE` says why.
    """
    names = frozenset(fmt.name for pair in pairs for fmt in (pair.key, pair.value))
    kinds: dict[LayerSpec, int] = {}
    for layer in spec.layers:
        kinds[layer] = kinds.get(layer, 0) + 1
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    for layer, number in kinds.items():
        decode, prefill, why = _backends(layer, spec.dense_scores, device, dtype, names)
        row = {"layers": _label(layer), "decode": decode, "prefill": prefill, "why": why}
        same = rows.setdefault(tuple(row.values()), row | {"num_layers": 0, "fast": why is None})
        same["num_layers"] += number
    return list(rows.values())


def _backends(
    layer: LayerSpec,
    is_dense: bool,
    device: torch.device,
    dtype: torch.dtype,
    names: frozenset[str],
) -> tuple[str, str, str | None]:
    """Of a decode step and of a prefill chunk, and why not the fast ones."""
    if layer.shares_with is not None or layer.kind not in ("full", "sliding"):
        return "library", "library", "library"
    refused: str | None = why_not(layer.key_dim, layer.value_dim, dtype, device)
    if refused is None and not names <= SERVED:
        refused = "format"
    if refused is None:
        return "triton", "triton", None
    unfused = is_dense or layer.key_dim != layer.value_dim
    fused = "torch_flash" if device.type == "cpu" else "torch_sdpa"
    prefill = "reference" if unfused else fused
    if device.type != "cpu":
        return prefill, prefill, refused
    why = cpu.why_not(layer.key_dim, layer.value_dim, dtype, names)
    if why is not None:
        return prefill, prefill, why
    return "numba", prefill, "scores" if unfused else None


def _label(layer: LayerSpec) -> str:
    return "shared" if layer.shares_with is not None else layer.kind
