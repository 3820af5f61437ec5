"""Models to choose from: those on this computer and those of the catalog, and how each would fit.

Arithmetic on configs and on the headers of weights files; nothing is loaded. Knows what is allowed,
not why.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from kvchat.engine.foretold import Fits, costs_under, fitting
from kvchat.engine.limits import limits_for
from kvchat.errors import KVChatError, ModelError, SettingsError
from kvchat.memory.formats import FormatPair, layer_pairs
from kvchat.memory.verdicts import STEPS, unjudged_steps
from kvchat.models.catalog import CatalogEntry, builtin, catalog
from kvchat.models.fitting import least_bytes
from kvchat.models.folder import examine, path_of
from kvchat.models.planned import DTYPE_BYTES, Planned, costs_of, find
from kvchat.models.verdicts import verdict_key, verdicts
from kvchat.planner.costs import Costs
from kvchat.settings import Settings, changed

MOST_IN_A_FOLDER = 200


@dataclass(frozen=True, slots=True)
class Way:
    """A precision that a model can be loaded in, and how it fits. `longest`: how long a text fits
    then; `hoped_tokens`: the most once the formats that nobody measured with this model yet turn
    out to be exact enough, 0 where that is no more. `dtype`: by name, what `auto` comes to here.
    """

    dtype: str
    weights: str
    weight_bytes: int
    needed_bytes: int
    short_by_bytes: int
    longest: Fits
    hoped_tokens: int = 0

    @property
    def fits(self) -> bool:
        return self.short_by_bytes == 0


@dataclass(frozen=True, slots=True)
class Offered:
    """`ref`: what the setting `model` is to say; None where it is not on this computer.
    `languages`: None where nothing is known of them.
    """

    name: str
    ref: str | None
    repository: str
    parameters: int | None
    languages: tuple[str, ...] | None
    licence: str

    @property
    def serves_korean(self) -> bool | None:
        return None if self.languages is None else "ko" in self.languages


def offered(data_dir: Path, folders: Iterable[str], running: str) -> list[Offered]:
    """On this computer first, then the rest of the catalog, each the smallest first."""
    names = {one.name.lower(): one for one in catalog().values()}
    names |= {one.repository.rpartition("/")[2].lower(): one for one in catalog().values()}
    here = {builtin().name: _known(catalog()[builtin().name], builtin().name)}
    for path in _folders(data_dir, [*folders, running]):
        entry = names.get(path.name.lower())
        known = _known(entry, str(path)) if entry else None
        here[str(path)] = known or Offered(path.name, str(path), "", None, None, "")
    found = {one.name for one in here.values()}
    rest = (_known(one, None) for one in catalog().values() if one.name not in found)
    return [*here.values(), *rest]


def _known(entry: CatalogEntry, ref: str | None) -> Offered:
    about = (entry.repository, entry.parameters, entry.languages, entry.licence)
    return Offered(entry.name, ref, *about)


def _folders(data_dir: Path, named: Iterable[str]) -> Iterator[Path]:
    """Folders with a model in them, once each: of the data folder, and of those that are named."""
    seen = {(data_dir / "models" / builtin().name).resolve()}
    for folder in (data_dir / "models", *_paths(named)):
        inside = [folder] if _is_model(folder) else _subfolders(folder)
        for path in inside[:MOST_IN_A_FOLDER]:
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def _paths(named: Iterable[str]) -> Iterator[Path]:
    for one in named:
        with suppress(ModelError):
            yield path_of(one)


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir() and _is_model(one))
    except OSError:
        return []


def check_folder(text: str) -> Path:
    """A folder that holds a model, or models. Raises ModelError."""
    path = path_of(text)
    if _is_model(path):
        return examine(path).path.absolute()
    if not path.is_dir() or not _subfolders(path):
        examine(path)  # says best what is not there
        raise ModelError("model_no_config", path=path)
    return path.absolute()


def ways(
    ref: str,
    settings: Settings,
    data_dir: Path,
    allowed: int,
    device: torch.device,
    measured: Mapping[tuple[str, str], Costs] = MappingProxyType({}),
) -> Iterator[Way]:
    """The most exact first. `settings`: that hold for this model. `measured`: by dtype and weights
    what it costs as it runs. Raises ModelError for a model that cannot be loaded.
    """
    first = _planned(ref, "auto", "as-is", data_dir, _stamp(ref))
    half = "bf16" if first.dtype == "fp32" else first.dtype
    for dtype, weights in dict.fromkeys(
        ((first.dtype, "as-is"), (half, "as-is"), (first.dtype, "int8"), (half, "int8"))
    ):
        planned = _planned(ref, dtype, weights, data_dir, _stamp(ref))
        layers = layers_of(planned, settings.layer_formats)
        costs = measured.get((dtype, weights)) or costs_of(planned, layers, device.type)
        asked = replace(settings, model=ref, weights=weights, layer_formats=layers, headroom=0)
        needed = least_bytes(planned.spec, DTYPE_BYTES[dtype], device)
        found = longest_texts(costs, allowed, asked, data_dir, device)
        size = planned.spec.weight_bytes
        yield Way(dtype, weights, size, needed, max(0, needed - allowed), *found)


def layers_of(planned: Planned, layers: str) -> str:
    """Nothing where the model has not these layers: it is refused when it is loaded."""
    try:
        layer_pairs(layers, len(planned.spec.layers))
    except SettingsError:
        return ""
    return layers


def longest_texts(
    costs: Costs, allowed: int, settings: Settings, data_dir: Path, device: torch.device
) -> tuple[Fits, int]:
    """How long a text fits with the settings' model, and `hoped_tokens`."""
    known = verdicts(data_dir, verdict_key(settings), settings.layer_formats)
    limits = limits_for(settings, device, known)
    found = fitting(costs_under(costs, limits), allowed, limits)
    floor, unjudged = FormatPair.parse(settings.floor_format), unjudged_steps(known)
    lower = tuple(one for one in STEPS if one in limits.lower or one in unjudged)
    hoped = replace(limits, lower=tuple(one for one in lower if one.at_least(floor)))
    if hoped == limits:
        return found, 0
    most = fitting(costs_under(costs, hoped), allowed, hoped).most_tokens
    return found, most if most > found.most_tokens else 0


@lru_cache(maxsize=256)
def _planned(ref: str, dtype: str, weights: str, data_dir: Path, stamp: float) -> Planned:
    """`stamp`: of the files that it was counted from, so that others are counted anew."""
    del stamp
    about: dict[str, Any] = {"model": ref, "dtype": dtype, "weights": weights}
    return find(changed(Settings(), about), data_dir)


def _stamp(ref: str) -> float:
    try:
        return (path_of(ref) / "config.json").stat().st_mtime
    except OSError:
        return 0.0


def why_not(ref: str) -> KVChatError | None:
    """Why a folder cannot be loaded, as far as its names and config tell; None where it can."""
    if ref in catalog():
        return None
    try:
        examine(path_of(ref))
    except KVChatError as error:
        return error
    return None
