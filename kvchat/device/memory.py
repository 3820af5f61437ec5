"""What memory a device has now, and which device to use: plain values, whoever measured them.

total = free + other processes + what this process takes (reserved by torch, contexts, libraries)

Knows no budget and no model. The measuring is in cuda.py (NVIDIA, AMD, Intel), apple.py and
host.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from kvchat.units import GIB, MIB


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One reading, in bytes. `reserved` and `allocated` are torch's; on a CPU torch does not
    count, so `allocated` is 0 and `reserved` is what this process has in memory.

    `estimated` names the fields that are inferred rather than told by the driver. `shared` says
    that the device has no memory of its own: it is the computer's, and must not be counted twice.
    """

    device: str
    total: int
    free: int
    reserved: int
    allocated: int
    other_processes: int
    at_s: float
    estimated: tuple[str, ...] = ()
    shared: bool = False


class Probe(Protocol):
    """Reads one device's memory. Cheap enough for ten times a second; never raises for a missing
    part.
    """

    def read(self) -> DeviceMemory: ...


def probe_for(device: torch.device) -> Probe:
    """The probe of a device. A kind that nothing here measures is watched through the computer's
    memory.
    """
    if device.type in ("cuda", "xpu"):
        from kvchat.device.cuda import AcceleratorProbe

        return AcceleratorProbe.of(device)
    if device.type == "mps":
        from kvchat.device.apple import AppleProbe

        return AppleProbe()
    from kvchat.device.host import HostProbe

    return HostProbe()


def default_headroom(total: int, system: str) -> int:
    """Bytes to leave free on a device of `total` bytes; `system` as platform.system() says it.

    max(512 MiB, total / 16): room for a browser, a desktop and the driver's own growth. Twice that
    on Windows, whose driver moves memory to the computer's without a word once the card is nearly
    full, and everything then crawls. Never more than a quarter, so that a small container or card
    stays usable.
    """
    times = 2 if system == "Windows" else 1
    return min(max(512 * MIB * times, total * times // 16), total // 4)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that torch offers. `integrated`: it uses the computer's memory."""

    kind: str
    index: int
    name: str
    total: int
    integrated: bool


_ORDER = ("cuda", "xpu", "mps", "cpu")


def pick_device() -> torch.device:
    """The device to run on: a real card before an integrated one, then by kind, then by size."""
    return best(candidates())


def best(found: Iterable[Candidate]) -> torch.device:
    """The first choice of some candidates; the CPU where there is none."""
    ranked = sorted(found, key=lambda c: (c.integrated, _ORDER.index(c.kind), -c.total, c.index))
    return torch.device(ranked[0].kind, ranked[0].index) if ranked else torch.device("cpu")


def candidates() -> list[Candidate]:
    """Every accelerator that torch can use here."""
    found: list[Candidate] = []
    for kind, backend in (("cuda", torch.cuda), ("xpu", torch.xpu)):
        if backend.is_available():
            found += [
                _candidate(kind, i, backend.get_device_properties(i))
                for i in range(backend.device_count())
            ]
    if torch.backends.mps.is_available():
        found.append(Candidate("mps", 0, "Apple", 0, integrated=True))
    return found


def _candidate(kind: str, index: int, properties: object) -> Candidate:
    total = int(getattr(properties, "total_memory", 0) or 0)
    integrated = getattr(properties, "is_integrated", None)
    if integrated is None:
        # Nothing says it: a device that reports no memory or nearly all of the computer's has none
        # of its own, and one of less than 1 GiB is the slice that a BIOS lends.
        integrated = total < GIB or total >= 0.9 * _computer_bytes()
    name = str(getattr(properties, "name", kind))
    return Candidate(kind, index, name, total, bool(integrated))


def _computer_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)
