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
from kvchat.models.load import load_model
from kvchat.models.progress import LoadProgress
from kvchat.planner.plan import LEAST_CHUNK, LEAST_REPLY
from kvchat.settings import Settings
from kvchat.units import format_size


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
    loaded = load_model(
        settings.model,
        data_dir=data_dir,
        dtype=settings.dtype,
        weights=settings.weights,
        device=device,
        progress=progress,
        cancel=cancel,
    )
    engine = Engine(loaded, probe_for(device), limits_for(settings, device))
    allowed = engine.latest.allowed_bytes
    needed = engine.costs.needed_bytes(LEAST_REPLY, LEAST_CHUNK)
    if needed > allowed:
        raise OutOfMemory(
            "budget_below_weights",
            allowed=format_size(max(0, allowed)),
            weights=format_size(loaded.weight_bytes),
            needed=format_size(needed),
        )
    return engine
