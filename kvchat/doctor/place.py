"""Where kvchat keeps its things and what it needs around it: data folder, model, tools, port."""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kvchat.attention.choose import describe
from kvchat.cli_listen import DEFAULT_PORT, listening
from kvchat.cli_running import memory_of, running_on
from kvchat.device.memory import pick_device
from kvchat.device.peak import peak_of
from kvchat.doctor.findings import Finding, Problem
from kvchat.documents.recognise import languages
from kvchat.errors import KVChatError, ServeError
from kvchat.memory.formats import FormatPair
from kvchat.memory.verdicts import STEPS, judgement_of
from kvchat.models.calibrations import calibration_key, read_calibration
from kvchat.models.catalog import builtin
from kvchat.models.digest import weights_digest
from kvchat.models.fitting import does_not_fit, least_bytes
from kvchat.models.folder import examine
from kvchat.models.manifest import is_whole
from kvchat.models.planned import DTYPE_BYTES, TORCH_DTYPES, find
from kvchat.models.verdicts import verdict_key, verdicts
from kvchat.settings import Settings
from kvchat.units import GIB, format_least, format_size

LEAST_DISK = 1 * GIB
"""The built-in model takes a quarter of it; KV files and documents want the rest."""


def data_folder(folder: Path) -> Finding:
    """Whether it can be written to, and how much room its disk has. Makes nothing."""
    there = folder.is_dir()
    writable = _writable(folder)
    free = _free(folder)
    problems = []
    if not writable:
        problems.append(Problem("data_unwritable", {"folder": folder}, fatal=True))
    elif free is not None and free < LEAST_DISK:
        facts = {"folder": folder, "free": format_size(free), "least": format_size(LEAST_DISK)}
        problems.append(Problem("disk_full", facts, fatal=free < LEAST_DISK // 20))
    return Finding(
        {"folder": str(folder), "exists": there, "writable": writable, "free": free}, problems
    )


def _writable(folder: Path) -> bool:
    """By writing, where the folder is there: rights alone do not tell of a read-only disk."""
    if not folder.exists():
        parent = _existing(folder)
        return parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _existing(folder: Path) -> Path:
    return next((one for one in (folder, *folder.parents) if one.exists()), folder)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return None


def model(settings: Settings, folder: Path, usable: int | None) -> Finding:
    """Whether the model of the settings can be loaded, and whether one short answer fits beside
    it.
    """
    made_from = builtin()
    is_builtin = settings.model == made_from.name
    package = importlib.util.find_spec(made_from.package) is not None
    converted = is_whole(folder / "models" / made_from.name, made_from.sha256)
    facts: dict[str, Any] = {
        "model": settings.model,
        "builtin": "ready" if converted else "packed" if package else "missing",
    }
    if is_builtin and not (package or converted):
        facts_of = {"requirement": made_from.requirement}
        return Finding(facts, [Problem("builtin_missing", facts_of, fatal=True)])
    try:
        if not is_builtin:
            examine(Path(settings.model).expanduser())
        planned = find(settings, folder)
    except KVChatError as error:
        return Finding(facts, [Problem.of(error)])
    device = pick_device()
    needed = least_bytes(planned.spec, DTYPE_BYTES[planned.dtype], device)
    facts |= {"dtype": planned.dtype, "weights": planned.spec.weight_bytes, "needed": needed}
    if any(layer.kind in ("full", "sliding") for layer in planned.spec.layers):
        facts["formats"] = _formats(settings, folder)
    pairs = {FormatPair.parse(text) for text in (settings.seal_format, settings.floor_format)}
    dtype = TORCH_DTYPES[planned.dtype]
    facts["attention"] = describe(planned.spec, device, dtype, pairs)
    path = folder / "models" / made_from.name if is_builtin else Path(settings.model).expanduser()
    if peak_of(device) is not None and path.is_dir():
        digest = weights_digest(path, settings.weights)
        key = calibration_key(digest, device, dtype, facts["attention"])
        facts["calibrated_steps"] = len(read_calibration(folder, key).steps)
    if usable is None or needed <= usable:
        return Finding(facts)
    if path.is_dir():
        return Finding(
            facts, [Problem.of(does_not_fit(path, dtype, settings.weights, usable, device))]
        )
    short = {"needed": format_least(needed), "usable": format_size(usable)}
    return Finding(facts, [Problem("model_too_large", {"model": settings.model} | short, True)])


def _formats(settings: Settings, folder: Path) -> list[dict[str, Any]]:
    """What is known of the pairs that the planner steps down to, of the one that text is stored in,
    and of all that the model failed. `passed`: None where nothing is.
    """
    known = verdicts(folder, verdict_key(settings), settings.layer_formats)
    failed = (FormatPair.parse(one.pair) for one in known.values() if not one.passed)
    pairs = dict.fromkeys((*STEPS, FormatPair.parse(settings.seal_format), *failed))
    judged = {pair: judgement_of(pair, known) for pair in pairs if pair.hot_tokens}
    return [
        {
            "pair": str(pair),
            "passed": None if found is None else found.passed,
            "kl": None if found is None else found.kl,
            "same_percent": None if found is None else found.same_percent,
        }
        for pair, found in judged.items()
    ]


def tools() -> Finding:
    """Tesseract, which reads scanned pages; without it kvchat says page by page what it cannot
    read.
    """
    path = shutil.which("tesseract")
    return Finding({"tesseract": path, "languages": languages(path) if path else []})


def port(folder: Path) -> Finding:
    """The port that a start would take now, or the kvchat that runs already."""
    running = running_on(folder)
    if running is not None:
        frame = memory_of(running)
        about = {
            "budget": frame.get("device", {}).get("budget"),
            "headroom": frame.get("device", {}).get("headroom"),
            "fits": frame.get("fits"),
        }
        return Finding({"running": running.url, "port": None, "runs_with": about})
    try:
        with listening("127.0.0.1", None) as listener:
            taken = int(listener.getsockname()[1])
    except ServeError as error:
        return Finding({"running": None, "port": None}, [Problem.of(error)])
    return Finding({"running": None, "port": taken, "usual": taken == DEFAULT_PORT})
