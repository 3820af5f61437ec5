"""The machine and what is installed on it: Python, packages, torch's build, devices, drivers,
memory.
"""

import platform
import sys
import tomllib
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from kvchat import __version__
from kvchat.device.cuda import AcceleratorProbe
from kvchat.device.drivers import installed_drivers
from kvchat.device.guarded import GuardedProbe
from kvchat.device.headroom import headroom_here
from kvchat.device.memory import DeviceMemory, candidates, pick_device, probe_for
from kvchat.device.nvml import Nvml
from kvchat.doctor.findings import Finding, Problem
from kvchat.errors import ModelError
from kvchat.settings import Settings
from packaging.requirements import InvalidRequirement, Requirement

# Without these kvchat runs all the same: figures of other programs are estimated.
_OPTIONAL = ("nvidia-ml-py",)


def system() -> Finding:
    return Finding(
        {
            "kvchat": __version__,
            "system": platform.platform(),
            "python": platform.python_version(),
            "interpreter": sys.executable,
        }
    )


def packages(required: list[Requirement]) -> Finding:
    """Each required package: the version that is installed, and the range that was tested."""
    rows, problems = [], []
    for requirement in required:
        version = _version(requirement.name)
        tested = str(requirement.specifier)
        # Versions such as 2.13.0+cpu count as the release that they are a build of.
        fits = version is not None and requirement.specifier.contains(version, prereleases=True)
        rows.append(
            {"package": requirement.name, "version": version, "tested": tested, "fits": fits}
        )
        facts = {"package": requirement.name, "version": version, "tested": tested}
        if version is None:
            fatal = requirement.name not in _OPTIONAL
            problems.append(Problem("package_missing", facts, fatal))
        elif not fits:
            problems.append(Problem("package_untested", facts, fatal=False))
    return Finding({"packages": rows}, problems)


def requirements() -> list[Requirement]:
    """What kvchat requires, from its installation or else from the checkout that it runs in."""
    try:
        lines = metadata.requires("kvchat") or []
    except metadata.PackageNotFoundError:
        file = Path(__file__).resolve().parents[2] / "pyproject.toml"
        try:
            lines = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["dependencies"]
        except (OSError, KeyError, tomllib.TOMLDecodeError):
            return []
    return [found for found in map(_requirement, lines) if found is not None]


def _requirement(line: str) -> Requirement | None:
    try:
        found = Requirement(line)
    except InvalidRequirement:
        return None
    needed = found.marker is None or found.marker.evaluate({"extra": ""})
    return found if needed else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_build() -> str:
    """`cuda 13.0`, `rocm 7.2`, `mps` or `cpu`: what this torch was built for."""
    if torch.version.hip:
        return f"rocm {torch.version.hip}"
    if torch.version.cuda:
        return f"cuda {torch.version.cuda}"
    return "mps" if torch.backends.mps.is_built() else "cpu"


def compute(drivers: frozenset[str] | None = None) -> Finding:
    """torch's build against the hardware, and every device that it offers."""
    drivers = installed_drivers() if drivers is None else drivers
    build, nvml = torch_build(), Nvml()
    found = candidates()
    device = pick_device()
    facts = {
        "torch": torch.__version__,
        "build": build,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "drivers": sorted(drivers),
        "nvidia_driver": nvml.driver_version(),
        "nvml": nvml.problem or "ready",
        "device": str(device),
        "devices": [
            {"device": f"{c.kind}:{c.index}", "name": c.name, "integrated": c.integrated}
            | {"memory": _memory(torch.device(c.kind, c.index))}
            for c in found
        ],
    }
    return Finding(facts, list(_mismatch(build, {c.kind for c in found}, drivers)))


def _mismatch(build: str, kinds: set[str], drivers: frozenset[str]) -> list[Problem]:
    """A card that lies idle: wrong build of torch, or a driver that it cannot work with."""
    wanted = next((kind for kind in ("cuda", "rocm", "mps") if kind in drivers), None)
    if wanted is None or kinds:
        return []
    facts = {"driver": wanted, "build": build}
    code = "driver_unusable" if build.startswith(wanted) else "torch_build"
    return [Problem(code, facts, fatal=False)]


def _memory(device: torch.device) -> dict[str, Any]:
    """One of the devices; where it cannot be read, as one without memory."""
    try:
        now = GuardedProbe(probe_for(device)).read()
    except ModelError:
        now = DeviceMemory(str(device), 0, 0, 0, 0, 0, 0.0, ("total", "free", "other_processes"))
    return {
        "total": now.total,
        "free": now.free,
        "other_processes": now.other_processes,
        "estimated": list(now.estimated),
        "shared": now.shared,
    }


def memory(settings: Settings) -> Finding:
    """The chosen device's memory now, who else is on it, the headroom and why it is so much, the
    budget: what kvchat may use.
    """
    device = pick_device()
    probe = probe_for(device)
    others = probe.others if isinstance(probe, AcceleratorProbe) else None
    facts: dict[str, Any] = {"device": str(device), "budget": settings.memory_budget}
    try:
        now = GuardedProbe(probe).read()
    except ModelError as error:
        return Finding(facts | {"usable": 0, "total": 0}, [Problem.of(error)])
    usual = headroom_here(now)
    headroom = usual.num_bytes if settings.headroom is None else settings.headroom
    reason = usual.reason if settings.headroom is None else "setting"
    usable = max(0, now.free - headroom)
    if settings.memory_budget is not None:
        usable = min(usable, settings.memory_budget)
    return Finding(
        facts
        | {
            "total": now.total,
            "free": now.free,
            "other_processes": now.other_processes,
            "programs": [asdict(one) for one in now.programs],
            "nvml": None if others is None else others.problem or "ready",
            "estimated": list(now.estimated),
            "shared": now.shared,
            "headroom": headroom,
            "headroom_reason": reason,
            "usable": usable,
        }
    )
