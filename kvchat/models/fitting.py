"""What a model must be allowed at least, and what would fit where that is too much: the same model
in a smaller precision, another one.

Arithmetic on configs and on the headers of weights files; no weight is read, nothing is allocated.
Knows what is allowed, not why.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kvchat.arch.from_hf import parameters_of, spec_from_config
from kvchat.arch.spec import ModelSpec
from kvchat.errors import OutOfMemory
from kvchat.models.catalog import CatalogEntry, catalog
from kvchat.models.weights import predicted_weight_bytes
from kvchat.planner.costs import Costs
from kvchat.planner.plan import LEAST_CHUNK, LEAST_REPLY
from kvchat.units import format_least, format_size

# The least reply, and as much for a short question with its system text and template.
LEAST_TEXT = 2 * LEAST_REPLY
# Weights of 8 bits on disk, computed in fp32.
LARGEST_GROWTH = 4
MOST_PROPOSED = 3
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def least_bytes(spec: ModelSpec, dtype_bytes: int, device: torch.device) -> int:
    """What a model must be allowed: its weights, and one short question with its answer."""
    costs = _costs(spec, dtype_bytes, device)
    return costs.needed_bytes(min(LEAST_TEXT, spec.max_positions), LEAST_CHUNK)


def _costs(spec: ModelSpec, dtype_bytes: int, device: torch.device) -> Costs:
    return Costs.of(spec, torch.float32 if dtype_bytes == 4 else torch.bfloat16, device.type)


def refuse_too_large(
    folder: Path, dtype: torch.dtype, weights: str, allowed: int, device: torch.device
) -> None:
    """Raises OutOfMemory, before any weight is read, with what would fit. Exact bytes, computed
    only where the files come near the limit.
    """
    on_disk = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if LARGEST_GROWTH * on_disk > allowed:
        foretold = predicted_weight_bytes(folder, dtype, weights)
        needed = least_bytes(spec_of_folder(folder, dtype, foretold), dtype.itemsize, device)
        if needed > allowed:
            raise does_not_fit(folder, dtype, weights, allowed, device)


def does_not_fit(
    folder: Path, dtype: torch.dtype, weights: str, allowed: int, device: torch.device
) -> OutOfMemory:
    """One sentence with the numbers; its remedy names what would fit, if anything would."""
    foretold = predicted_weight_bytes(folder, dtype, weights)
    needed = least_bytes(spec_of_folder(folder, dtype, foretold), dtype.itemsize, device)
    ways = list(ways_to_fit(folder, dtype, weights, allowed, device))[:MOST_PROPOSED]
    others = [one for one in models_that_fit(allowed, device) if one.name != folder.name]
    facts = {
        "allowed": format_size(max(0, allowed)),
        "weights": format_size(foretold),
        "needed": format_least(needed),
        "ways": ", ".join(str(one) for one in ways),
        "precisions": ", ".join(f"{one.precision} ({one.size})" for one in ways),
        "tokens": ways[0].tokens if ways else 0,
        "models": ", ".join(str(one) for one in others[:MOST_PROPOSED]),
    }
    if ways and others:
        return OutOfMemory("budget_fits_otherwise", **facts)
    if ways:
        return OutOfMemory("budget_fits_smaller", **facts)
    if others:
        return OutOfMemory("budget_fits_another", **facts)
    return OutOfMemory("budget_below_weights", **facts)


@dataclass(frozen=True, slots=True)
class Fitting:
    """Something that fits: flags or a model, what it needs at least, and the longest text that fits
    with it, as computed and read in the smallest steps. `precision`: what the flags come to.
    """

    name: str
    needed_bytes: int
    tokens: int
    precision: str = ""

    @property
    def size(self) -> str:
        return format_least(self.needed_bytes)

    def __str__(self) -> str:
        return f"{self.name} ({self.size})"


def ways_to_fit(
    folder: Path, dtype: torch.dtype, weights: str, allowed: int, device: torch.device
) -> Iterator[Fitting]:
    """Smaller precisions of the same model, the most exact first: half the bits, then int8."""
    half = dtype if dtype.itemsize <= 2 else torch.bfloat16
    for tried, stored in dict.fromkeys(((half, weights), (dtype, "int8"), (half, "int8"))):
        if (tried, stored) == (dtype, weights):
            continue
        spec = spec_of_folder(folder, tried, predicted_weight_bytes(folder, tried, stored))
        needed = least_bytes(spec, tried.itemsize, device)
        if needed <= allowed:
            flags = ["--dtype bf16"] if tried != dtype else []
            flags += ["--weights int8"] if stored != weights else []
            costs = _costs(spec, tried.itemsize, device)
            tokens = costs.largest_tokens(allowed, LEAST_CHUNK)
            precision = f"INT8 + {_NAMES[tried]}" if stored == "int8" else _NAMES[tried]
            yield Fitting(" ".join(flags), needed, tokens, precision)


def models_that_fit(allowed: int, device: torch.device) -> list[Fitting]:
    """Models of the catalog, the largest first, as they would be loaded here."""
    dtype_bytes = 4 if device.type == "cpu" else 2
    found = []
    for entry in catalog().values():
        spec = spec_of_entry(entry, dtype_bytes)
        needed = least_bytes(spec, dtype_bytes, device)
        if needed <= allowed:
            costs = _costs(spec, dtype_bytes, device)
            tokens = costs.largest_tokens(allowed, LEAST_CHUNK)
            found.append(Fitting(entry.name, needed, tokens))
    return found[::-1]


def spec_of_entry(entry: CatalogEntry, dtype_bytes: int, weights: str = "as-is") -> ModelSpec:
    """A model of the catalog; its weights are what its publishers counted."""
    shapes = parameters_of(entry.config)
    published = replace(shapes, in_layers=entry.parameters - shapes.embedded)
    return spec_from_config(
        entry.config,
        name=entry.name,
        weight_bytes=published.bytes(dtype_bytes, weights),
        dtype_bytes=dtype_bytes,
    )


def spec_of_folder(folder: Path, dtype: torch.dtype, weight_bytes: int = 0) -> ModelSpec:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return spec_from_config(
        config, name=folder.name, weight_bytes=weight_bytes, dtype_bytes=dtype.itemsize
    )
