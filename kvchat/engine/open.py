"""From settings to a running engine: the device, the model, the limits. Refuses what cannot fit.

Nothing large is allocated for a model whose weights alone pass what is allowed.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from kvchat.device.memory import pick_device, probe_for
from kvchat.engine.engine import Engine
from kvchat.engine.limits import limits_for
from kvchat.errors import OutOfMemory
from kvchat.models.load import load_model, unload
from kvchat.models.progress import LoadProgress
from kvchat.models.weights import predicted_weight_bytes
from kvchat.planner.plan import LEAST_CHUNK, LEAST_REPLY
from kvchat.settings import Settings
from kvchat.units import format_size

# Weights of 8 bits on disk, computed in fp32.
LARGEST_GROWTH = 4


def open_engine(
    settings: Settings,
    data_dir: Path,
    progress: Callable[[LoadProgress], None],
    cancel: threading.Event | None,
) -> Engine:
    """Raises ModelError, and OutOfMemory with the numbers where one short answer would not fit."""
    device = pick_device()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    limits, probe = limits_for(settings, device), probe_for(device)

    def check(folder: Path, dtype: torch.dtype) -> None:
        free = probe.read().free - limits.headroom
        allowed = free if limits.budget is None else min(limits.budget, free)
        _refuse_too_large(folder, dtype, settings.weights, allowed)

    loaded = load_model(
        settings.model,
        data_dir=data_dir,
        dtype=settings.dtype,
        weights=settings.weights,
        device=device,
        progress=progress,
        cancel=cancel,
        check=check,
    )
    engine = Engine(loaded, probe, limits)
    needed = engine.costs.needed_bytes(LEAST_REPLY, LEAST_CHUNK)
    if needed > engine.latest.allowed_bytes:
        refusal = _does_not_fit(engine.latest.allowed_bytes, loaded.weight_bytes, needed)
        unload(loaded)
        raise refusal
    return engine


def _refuse_too_large(folder: Path, dtype: torch.dtype, weights: str, allowed: int) -> None:
    """Before any weight is read: exact bytes, computed only where the files come near the limit."""
    on_disk = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if LARGEST_GROWTH * on_disk > allowed:
        foretold = predicted_weight_bytes(folder, dtype, weights)
        if foretold > allowed:
            raise _does_not_fit(allowed, foretold, foretold)


def _does_not_fit(allowed: int, weights: int, needed: int) -> OutOfMemory:
    return OutOfMemory(
        "budget_below_weights",
        allowed=format_size(max(0, allowed)),
        weights=format_size(weights),
        needed=format_size(needed),
    )
