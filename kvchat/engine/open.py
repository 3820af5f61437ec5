"""From settings to a running engine: the device, the model, the limits. Refuses what cannot fit.

Nothing large is allocated for a model whose weights alone pass what is allowed.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from kvchat.device.memory import pick_device
from kvchat.device.monitor import monitor_for
from kvchat.engine.engine import Engine
from kvchat.engine.gauging import Gauging
from kvchat.engine.limits import USUAL_THREADS, limits_for
from kvchat.kvcache.disk import KV_FOLDER, KVFolder
from kvchat.kvcache.tiers import DiskPlace
from kvchat.memory.formats import FormatPair, layer_pairs
from kvchat.models.calibrations import KeptCalibration, calibration_key
from kvchat.models.digest import weights_digest
from kvchat.models.fitting import LEAST_TEXT, does_not_fit, refuse_too_large, spec_of_folder
from kvchat.models.layout import lay_out
from kvchat.models.load import load_model, unload
from kvchat.models.progress import LoadProgress
from kvchat.models.verdicts import refuse_failed, verdict_key, verdicts
from kvchat.planner.plan import LEAST_CHUNK
from kvchat.settings import Settings


def open_engine(
    settings: Settings,
    data_dir: Path,
    progress: Callable[[LoadProgress], None],
    cancel: threading.Event | None,
) -> Engine:
    """Raises ModelError, SettingsError for formats that are not for this model, and OutOfMemory
    with the numbers where one short answer would not fit.
    """
    refuse_failed(settings, data_dir)
    device = pick_device()
    known = verdicts(data_dir, verdict_key(settings), settings.layer_formats)
    limits, monitor = limits_for(settings, device, known), monitor_for(device)
    torch.set_num_threads(limits.threads or USUAL_THREADS)

    folders: list[Path] = []
    places: list[DiskPlace] = []
    least: dict[int, FormatPair] = {}

    def check(folder: Path, dtype: torch.dtype) -> None:
        if settings.layer_formats:
            num_layers = len(spec_of_folder(folder, dtype).layers)
            least.update(layer_pairs(settings.layer_formats, num_layers))
        free = monitor.read().free - limits.headroom
        allowed = free if limits.budget is None else min(limits.budget, free)
        refuse_too_large(folder, dtype, settings.weights, allowed, device)
        folders.append(folder)
        digest = weights_digest(folder, settings.weights)
        places.append(DiskPlace(KVFolder(data_dir / KV_FOLDER), digest))

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
    engine = Engine(loaded, monitor, limits, place=places[0], least=least)
    key = calibration_key(places[0].weights, device, loaded.dtype, engine.attention)
    engine.known = KeptCalibration(data_dir, key)
    engine.room.learned(engine.known.read())
    if engine.local.has_library_layers and limits.disk_quota:
        loaded.notices = (*loaded.notices, "notice.not_on_disk")
    needed = engine.costs.needed_bytes(min(LEAST_TEXT, loaded.spec.max_positions), LEAST_CHUNK)
    if needed > engine.room.latest.allowed_bytes:
        allowed, dtype = engine.room.latest.allowed_bytes, loaded.dtype
        refusal = does_not_fit(folders[0], dtype, settings.weights, allowed, device)
        unload(loaded)
        raise refusal
    if device.type == "cpu":
        lay_out(loaded.model, engine.room.latest.allowed_bytes - loaded.weight_bytes)
    engine.gauging = Gauging(engine, data_dir)
    monitor.start()
    return engine
