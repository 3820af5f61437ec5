"""The built-in model: a GGUF file from a Python package, turned once into an ordinary folder.

The weights are dequantised straight into the state dict and the tokenizer is built from the file's
own tables: seconds, where the library's GGUF loading takes a minute and more. (It also leaves out
this tokenizer's rule that digits are split off first, so "\n\n1." would become other tokens than in
training.) The folder appears by one rename when it is complete; its manifest names every file's
SHA-256. Knows nothing of devices, nor of how a folder is loaded.
"""

import errno
import importlib.util
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from kvchat.errors import ModelError
from kvchat.models.catalog import Builtin, builtin, catalog
from kvchat.models.folder import one_line
from kvchat.models.gguf import GGUFModel
from kvchat.models.manifest import is_whole, sha256, write_manifest
from kvchat.models.progress import Report
from kvchat.units import MIB, format_size

# Against fp32, over 1,100 tokens of English: KL 2.4e-6 nats a token in fp16, 6.4e-5 in bf16.
# Computed in it, 2.2e-5 and 1.4e-3 (its largest activations, about 22,600, fit into fp16).
_STORED = torch.float16
_SMALL_FILES = 16 * MIB  # tokenizer and configs, generously


def builtin_folder(data_dir: Path, report: Report) -> Path:
    """The model's folder in the data folder, made first where it is missing, torn or altered.

    Two programs may make it at once: the one that is ready first wins. Raises ModelError: package
    or file missing, another file than the known one, no room, no right to write.
    """
    made_from = builtin()
    models = data_dir / "models"
    folder = models / made_from.name
    if not is_whole(folder, made_from.sha256):
        source = _source(made_from)
        _check(source, made_from, report)
        problem = _convert(source, folder, report)
        if problem is not None:
            raise problem
    return folder


def _source(made_from: Builtin) -> Path:
    """The file inside the package, which is not imported: its dependencies are not installed."""
    spec = importlib.util.find_spec(made_from.package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / made_from.file).is_file():
            return Path(place) / made_from.file
    raise ModelError("builtin_missing", requirement=made_from.requirement)


def _check(source: Path, made_from: Builtin, report: Report) -> None:
    report.begin("unpack", source.stat().st_size)
    found = sha256(source, report.add)
    if found != made_from.sha256:
        raise ModelError(
            "builtin_differs", path=source, requirement=made_from.requirement, found=found[:12]
        )


def _convert(source: Path, folder: Path, report: Report) -> ModelError | None:
    """Fills a temporary folder beside the final one and renames it. What failed is returned."""
    weight_bytes = catalog()[builtin().name].parameters * _STORED.itemsize
    needed = weight_bytes + _SMALL_FILES
    models = folder.parent
    part = models / f".{folder.name}-{os.getpid()}-{secrets.token_hex(4)}.part"
    try:
        part.mkdir(parents=True)
        _remove_leftovers(models, part)
        free = shutil.disk_usage(models).free
        if free < needed:
            return _no_room(models, needed, free)
        _write(source, part, weight_bytes, report)
        _put_in_place(part, folder)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return _no_room(models, needed, shutil.disk_usage(models).free)
        return ModelError("builtin_unwritable", folder=models, why=one_line(error))
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return None


def _write(source: Path, part: Path, weight_bytes: int, report: Report) -> None:
    entry = catalog()[builtin().name]
    gguf = GGUFModel(source)
    report.begin("convert", weight_bytes)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in gguf.tensors(entry.config):
        tensors[name] = tensor.to(_STORED)
        report.add(tensors[name].nbytes)
    save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
    gguf.tokenizer(entry.config).save_pretrained(part)
    _write_configs(part, dict(entry.config))
    write_manifest(part, builtin().sha256)


def _write_configs(part: Path, config: dict[str, Any]) -> None:
    from transformers import AutoConfig, GenerationConfig

    made = AutoConfig.for_model(config.pop("model_type"), **config)
    made.save_pretrained(part)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ends).save_pretrained(part)


def _put_in_place(part: Path, folder: Path) -> None:
    """A folder cannot be renamed onto another: what is there and not whole is moved aside first."""
    if folder.exists() and not is_whole(folder, builtin().sha256):
        aside = part.with_suffix(".old.part")
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    try:
        part.rename(folder)
    except OSError:
        # Another program was sooner; its folder is as good as ours.
        if not is_whole(folder, builtin().sha256):
            raise


def _remove_leftovers(models: Path, own: Path) -> None:
    for part in models.glob(".*.part"):
        if part != own and not _is_alive(part):
            shutil.rmtree(part, ignore_errors=True)


def _is_alive(part: Path) -> bool:
    """Whether the program whose number is in the name still runs."""
    number = part.name.split("-")[1] if part.name.count("-") >= 2 else ""
    return number.isdecimal() and psutil.pid_exists(int(number))


def _no_room(folder: Path, needed: int, free: int) -> ModelError:
    return ModelError(
        "builtin_no_room", folder=folder, needed=format_size(needed), free=format_size(free)
    )
