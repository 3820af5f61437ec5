"""A model before it is loaded, as a plan is for it: from a folder, a bare config.json, the catalog,
or the built-in one.

Where weights are at hand their bytes are exact, those of the catalog are what its publishers
counted; a bare config gives an estimate, and `weights_from` says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from kvchat.arch.from_hf import parameters_of, spec_from_config
from kvchat.arch.spec import ModelSpec
from kvchat.arch.weights import folder_weight_bytes
from kvchat.device.memory import pick_device
from kvchat.errors import ModelError
from kvchat.files import read_json
from kvchat.memory.formats import layer_pairs
from kvchat.models.catalog import CatalogEntry, builtin, catalog
from kvchat.models.fitting import spec_of_entry
from kvchat.models.folder import one_line, path_of
from kvchat.models.weights import predicted_weight_bytes
from kvchat.planner.costs import Costs
from kvchat.settings import Settings

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DTYPE_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Planned:
    spec: ModelSpec
    dtype: str
    weights_from: Literal["files", "catalog", "config"]


def find(settings: Settings, data_dir: Path, kind: str | None = None) -> Planned:
    """The model that the settings name. Raises ModelError with what can be given instead. `kind`:
    of the device that it is planned for, as torch names it; None is the one here.
    """
    path = path_of(settings.model)
    entry = _in_catalog(settings.model)
    if entry is None or path.exists():
        return _from_path(path, settings, kind)
    folder = data_dir / "models" / entry.name
    if entry.name == builtin().name and (folder / "config.json").is_file():
        return _from_path(folder, settings, kind, entry.name)
    dtype = _dtype(entry.config, settings, kind)
    return Planned(spec_of_entry(entry, DTYPE_BYTES[dtype], settings.weights), dtype, "catalog")


def costs_of(planned: Planned, layers: str, kind: str) -> Costs:
    """What texts would cost with a model that is not loaded, as computed, before anything was
    measured of it. `layers`: the setting `layer_formats`. Raises SettingsError.
    """
    least = layer_pairs(layers, len(planned.spec.layers))
    return Costs.of(planned.spec, TORCH_DTYPES[planned.dtype], kind, least)


def _in_catalog(name: str) -> CatalogEntry | None:
    names = ((one, (one.name.lower(), one.repository.lower())) for one in catalog().values())
    return next((one for one, known in names if name.lower() in known), None)


def from_config(
    config: Mapping[str, Any], name: str, settings: Settings, kind: str | None = None
) -> Planned:
    """From what stands in a config.json alone. Raises ModelError."""
    return _from_config(config, name, settings, _dtype(config, settings, kind), None)


def _from_config(
    config: Mapping[str, Any], name: str, settings: Settings, dtype: str, limit: float | None
) -> Planned:
    guess = parameters_of(config).bytes(DTYPE_BYTES[dtype], settings.weights)
    return Planned(_spec(config, name, dtype, guess, limit), dtype, "config")


def _from_path(
    path: Path, settings: Settings, kind: str | None, name: str | None = None
) -> Planned:
    file = path / "config.json" if path.is_dir() else path
    config = read_config(file)
    weighed = path.is_dir() and any(path.glob("*.safetensors"))
    dtype = _dtype(config, settings, kind)
    weight_bytes = _weighed(path, dtype, settings.weights) if weighed else None
    name = name or file.resolve().parent.name
    limit = _tokenizer_limit(file.parent)
    if weight_bytes is None:
        return _from_config(config, name, settings, dtype, limit)
    return Planned(_spec(config, name, dtype, weight_bytes, limit), dtype, "files")


def _spec(
    config: Mapping[str, Any],
    name: str,
    dtype: str,
    weight_bytes: int,
    tokenizer_limit: float | None,
) -> ModelSpec:
    return spec_from_config(
        config,
        name=name,
        weight_bytes=weight_bytes,
        dtype_bytes=DTYPE_BYTES[dtype],
        tokenizer_limit=tokenizer_limit,
    )


def _weighed(folder: Path, dtype: str, weights: str) -> int | None:
    """As the loaded model would measure itself; for a folder that cannot be loaded, by its
    headers.
    """
    try:
        return predicted_weight_bytes(folder, TORCH_DTYPES[dtype], weights)
    except ModelError:
        return folder_weight_bytes(folder, DTYPE_BYTES[dtype]) if weights == "as-is" else None


def read_config(file: Path) -> dict[str, Any]:
    """A config.json as it stands. Raises ModelError."""
    try:
        return read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError("config_missing", path=file, known=", ".join(catalog())) from None
    except (OSError, ValueError) as error:
        raise ModelError("config_unreadable", path=file, why=one_line(error)) from None


def _tokenizer_limit(folder: Path) -> float | None:
    try:
        limit = read_json(folder / "tokenizer_config.json")["model_max_length"]
    except (OSError, ValueError, KeyError):
        return None
    return limit if isinstance(limit, (int, float)) else None


def _dtype(config: Mapping[str, Any], settings: Settings, kind: str | None) -> str:
    """What it would be computed in: as set, else fp32 on a CPU, else the config's own."""
    if settings.dtype != "auto":
        return settings.dtype
    if (kind or pick_device().type) == "cpu":
        return "fp32"
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, Mapping)]
    named = [part.get(key) for part in parts for key in ("dtype", "torch_dtype")]
    return next((_DTYPE_NAMES[one] for one in named if one in _DTYPE_NAMES), "fp16")
