"""Which attention backend runs where, and what is said about it.

What a backend does not implement it does not get: the plain reference serves then, and `describe`
says so.
"""

import torch
from torch import Tensor

from kvchat.arch.spec import LayerSpec, ModelSpec
from kvchat.attention import cpu, flash, reference
from kvchat.attention.backend import Attend, LayerKV, Scoring


def choose(query: Tensor, kv: LayerKV, scoring: Scoring) -> Attend:
    """The fastest backend that can do it."""
    on_cpu = query.device.type == "cpu"
    if on_cpu and cpu.supports(query, kv):
        return cpu.attend
    if not scoring.is_plain or query.shape[-1] != kv.value_dim:
        return reference.attend
    return flash.attend_cpu if on_cpu else flash.attend_sdpa


def describe(spec: ModelSpec, device: torch.device) -> list[dict[str, object]]:
    """Which backend runs each kind of layer of a model, for `doctor` and the screen.

    `fast` is False where only the plain reference or the library's own cache serves.
    """
    kinds: dict[str, int] = {}
    for layer in spec.layers:
        kinds[_label(layer)] = kinds.get(_label(layer), 0) + 1
    rows: list[dict[str, object]] = []
    for kind, number in kinds.items():
        backend, fast = _backend(kind, spec, device)
        rows.append({"layers": kind, "num_layers": number, "backend": backend, "fast": fast})
    return rows


def _backend(kind: str, spec: ModelSpec, device: torch.device) -> tuple[str, bool]:
    if kind not in ("full", "sliding"):
        return "library cache", False
    reading = "plain reference" if spec.dense_scores else _fused(device)
    if device.type == "cpu" and cpu.is_installed():
        return f"our kernel (numba); chunks by {reading}", not spec.dense_scores
    return f"{reading}, paged", not spec.dense_scores and device.type != "cpu"


def _fused(device: torch.device) -> str:
    return "torch flash (CPU)" if device.type == "cpu" else "torch SDPA"


def _label(layer: LayerSpec) -> str:
    return "shared" if layer.shares_with is not None else layer.kind
