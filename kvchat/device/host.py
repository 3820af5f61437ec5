"""The computer's own memory: what is installed, what a container allows, what this process takes.

Serves the CPU as a device. Knows nothing of torch: its CPU allocator keeps no count, so the pool's
and the weights' bytes are known to the caller only.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from kvchat.device.memory import DeviceMemory

_NO_LIMIT = 2**60  # cgroup v1 writes a number near 2**63 where there is no limit


class HostProbe:
    """RAM, or what the container leaves of it. `root` is where /proc and /sys are found (tests)."""

    cannot_hang: ClassVar[bool] = True

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._process = psutil.Process()

    def read(self) -> DeviceMemory:
        """`free` is what could be had without swapping: the system's own caches count as free."""
        ram = psutil.virtual_memory()
        total, free = int(ram.total), int(ram.available)
        for limit in container_limits(self._root):
            total = min(total, limit.most)
            free = min(free, max(0, limit.most - limit.used))
        own = int(self._process.memory_info().rss)
        return DeviceMemory(
            device="cpu",
            total=total,
            free=free,
            reserved=own,
            allocated=0,
            other_processes=max(0, total - free - own),
            at_s=time.time(),
            estimated=("free", "allocated", "other_processes"),
            shared=True,
        )


@dataclass(frozen=True, slots=True)
class ContainerLimit:
    """A control group's limit and what it uses of it, file caches that it can drop not counted."""

    most: int
    used: int


def container_limits(root: Path = Path("/")) -> list[ContainerLimit]:
    """The limits that this process is under, from its own control group up; most have none."""
    found = []
    for folder, files in _groups(root):
        most = _number(folder / files[0])
        if most is None or most >= _NO_LIMIT:
            continue
        used = _number(folder / files[1]) or 0
        found.append(ContainerLimit(most, max(0, used - _droppable(folder, files[2]))))
    return found


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The folders of the process's groups, version 2 or 1, each with the names of its three
    figures.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            base, files = "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        top = root / base
        folder = top / path.strip("/")
        # Inside a container the path may be the outer one, which is not there: the top is ours.
        while folder != top:
            if folder.is_dir():
                yield folder, files
            folder = folder.parent
        yield top, files


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent, or `max`
        return None


def _droppable(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(x.split()[1]) for x in lines if x.startswith(name + " ")), 0)
