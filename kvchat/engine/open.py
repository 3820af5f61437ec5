"""From settings to a running engine: the device, the model, the limits. Refuses what cannot fit.

Nothing large is allocated for a model whose weights alone pass what is allowed.
"""

import json
import threading
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import torch

from kvchat.arch.from_hf import spec_from_config
from kvchat.arch.spec import ModelSpec
from kvchat.attention import cpu
from kvchat.device.memory import pick_device, probe_for
from kvchat.engine.engine import Engine
from kvchat.engine.limits import USUAL_THREADS, limits_for
from kvchat.errors import OutOfMemory
from kvchat.kvcache.disk import KV_FOLDER, KVFolder
from kvchat.kvcache.tiers import DiskPlace
from kvchat.memory.footprint import Holding, footprint_of
from kvchat.memory.formats import FormatPair, layer_pairs
from kvchat.models.load import load_model, unload
from kvchat.models.progress import LoadProgress
from kvchat.models.verdicts import model_name, refuse_failed, verdicts
from kvchat.models.weights import predicted_weight_bytes
from kvchat.planner.plan import LEAST_CHUNK, LEAST_REPLY
from kvchat.settings import Settings
from kvchat.units import format_least, format_size

# The least reply, and as much for a short question with its system text and template.
LEAST_TEXT = 2 * LEAST_REPLY
# Weights of 8 bits on disk, computed in fp32.
LARGEST_GROWTH = 4
# Of a weights file: pieces that are looked at, beside its size and date.
NUM_SAMPLES, SAMPLE_BYTES = 64, 4096


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
    known = verdicts(data_dir, model_name(settings), settings.layer_formats)
    limits, probe = limits_for(settings, device, known), probe_for(device)
    torch.set_num_threads(limits.threads or USUAL_THREADS)

    places: list[DiskPlace] = []
    least: dict[int, FormatPair] = {}

    def check(folder: Path, dtype: torch.dtype) -> None:
        if settings.layer_formats:
            num_layers = len(_spec_of(folder, dtype).layers)
            least.update(layer_pairs(settings.layer_formats, num_layers))
        free = probe.read().free - limits.headroom
        allowed = free if limits.budget is None else min(limits.budget, free)
        _refuse_too_large(folder, dtype, settings.weights, allowed, device)
        places.append(_disk_place(data_dir, folder, settings.weights))

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
    engine = Engine(loaded, probe, limits, place=places[0], least=least)
    if engine.local.has_library_layers and limits.disk_quota:
        loaded.notices = (*loaded.notices, "notice.not_on_disk")
    needed = engine.costs.needed_bytes(min(LEAST_TEXT, loaded.spec.max_positions), LEAST_CHUNK)
    if needed > engine.room.latest.allowed_bytes:
        refusal = _does_not_fit(engine.room.latest.allowed_bytes, loaded.weight_bytes, needed)
        unload(loaded)
        raise refusal
    if device.type == "cpu":
        cpu.prepare(engine.pool.geometries, [limits.storing.seal], loaded.spec.num_query_heads)
    return engine


def _disk_place(data_dir: Path, folder: Path, weights: str) -> DiskPlace:
    """Where the model's KV files lie: others where anything of the weights' files is another."""
    digest = blake2b(weights.encode(), digest_size=16)
    for file in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        found = file.stat()
        digest.update(f"{file.name} {found.st_size} {found.st_mtime_ns} ".encode())
        with file.open("rb") as content:
            for i in range(NUM_SAMPLES):
                content.seek(found.st_size * i // NUM_SAMPLES)
                digest.update(content.read(SAMPLE_BYTES))
    return DiskPlace(KVFolder(data_dir / KV_FOLDER), digest.digest())


def least_bytes(spec: ModelSpec, dtype_bytes: int, device: torch.device) -> int:
    """What a model must be allowed: its weights, and one short question with its answer."""
    holding = Holding(LEAST_CHUNK, "fp", "fp", dtype_bytes, device.type)
    return footprint_of(spec, min(LEAST_TEXT, spec.max_positions), holding).total


def _refuse_too_large(
    folder: Path, dtype: torch.dtype, weights: str, allowed: int, device: torch.device
) -> None:
    """Before any weight is read: exact bytes, computed only where the files come near the limit."""
    on_disk = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if LARGEST_GROWTH * on_disk > allowed:
        foretold = predicted_weight_bytes(folder, dtype, weights)
        spec = _spec_of(folder, dtype, foretold)
        needed = least_bytes(spec, dtype.itemsize, device)
        if needed > allowed:
            raise _does_not_fit(allowed, foretold, needed)


def _spec_of(folder: Path, dtype: torch.dtype, weight_bytes: int = 0) -> ModelSpec:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return spec_from_config(
        config, name=folder.name, weight_bytes=weight_bytes, dtype_bytes=dtype.itemsize
    )


def _does_not_fit(allowed: int, weights: int, needed: int) -> OutOfMemory:
    return OutOfMemory(
        "budget_below_weights",
        allowed=format_size(max(0, allowed)),
        weights=format_size(weights),
        needed=format_least(needed),
    )
