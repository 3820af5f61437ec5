"""What memory a device has now, and which device to use: plain values, whoever measured them.

total = free + other processes + what this process takes (reserved by torch, contexts, libraries)

Knows no budget and no model. The measuring is in cuda.py (NVIDIA, AMD, Intel), apple.py and
host.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from kvchat.units import GIB


@dataclass(frozen=True, slots=True)
class Program:
    """Another program on the device. `bytes_used` is None where the driver does not tell; `name` is
    empty where the system does not.
    """

    pid: int
    name: str
    bytes_used: int | None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One reading, in bytes. `reserved` and `allocated` are torch's; on a CPU torch does not
    count, so `allocated` is 0 and `reserved` is what this process has in memory.

    `estimated` names the fields that are inferred rather than told by the driver. `shared` says
    that the device has no memory of its own: it is the computer's, and must not be counted twice.
    `age_s` is not 0 where the device did not answer and this is what it last said. `programs`: the
    largest of the other programs, where they are known.
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
    age_s: float = 0.0
    programs: tuple[Program, ...] = ()

    @property
    def cached(self) -> int:
        """What torch's allocator keeps and nobody uses: new tensors take it, and where they do not
        fit into its pieces the allocator gives them back to the driver first. 0 where torch does
        not count.
        """
        return max(0, self.reserved - self.allocated) if self.allocated else 0


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


def device_name(device: torch.device) -> str:
    """As its maker calls it, where torch tells; else its kind."""
    same = (
        one for one in candidates() if (one.kind, one.index) == (device.type, device.index or 0)
    )
    return next((one.name for one in same), device.type)


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
