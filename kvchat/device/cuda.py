"""The memory of a card that torch drives: NVIDIA and AMD as `cuda`, Intel as `xpu`, by the same
calls.

The driver's own figure (`mem_get_info`) is the truth; NVML adds whose the rest is. On Windows the
driver may count as free what it would have to move to the computer's memory: there the smaller of
both counts.
"""

import time
from functools import cache
from typing import Any, Protocol

import torch

from kvchat.device.drivers import driver_system
from kvchat.device.host import HostProbe
from kvchat.device.memory import DeviceMemory
from kvchat.device.nvml import Nvml
from kvchat.device.others import OtherPrograms


class Backend(Protocol):
    """The calls of `torch.cuda` and `torch.xpu` that are used here."""

    def mem_get_info(self, device: Any) -> tuple[int, int]: ...
    def memory_reserved(self, device: Any) -> int: ...
    def memory_allocated(self, device: Any) -> int: ...
    def get_device_properties(self, device: Any) -> Any: ...


class AcceleratorProbe:
    """`nvml` None: other programs are told from the driver's figure and torch's alone."""

    def __init__(
        self,
        device: torch.device,
        backend: Backend,
        nvml: Nvml | None,
        system: str | None = None,
    ) -> None:
        self._device = device
        self._backend = backend
        self._system = system or driver_system()
        properties = backend.get_device_properties(device)
        self._total = int(getattr(properties, "total_memory", 0) or 0)
        names = nvml_names(properties)
        self.others = OtherPrograms(nvml, names) if nvml is not None and names else None
        self._shared = bool(getattr(properties, "is_integrated", False))

    @classmethod
    def of(cls, device: torch.device) -> "AcceleratorProbe":
        if device.type == "xpu":
            return cls(device, torch.xpu, None)
        return cls(device, torch.cuda, None if torch.version.hip else Nvml())

    def read(self) -> DeviceMemory:
        """Raises what the driver raises, but for Intel's, of which some cannot say what is free."""
        free, total, told_free = self._driver()
        if total <= 0:
            return self._of_the_computer()
        told = self.others.told() if self.others is not None else None
        if told is not None and told.free is not None and self._system == "Windows":
            free = min(free, told.free)
        reserved = self._backend.memory_reserved(self._device)
        used_elsewhere = max(0, total - free - reserved)
        others = told.num_bytes if told is not None else None
        return DeviceMemory(
            device=str(self._device),
            total=total,
            free=free,
            reserved=reserved,
            allocated=self._backend.memory_allocated(self._device),
            # Without a word from NVML our own context (some hundred MiB) counts as the others'.
            other_processes=used_elsewhere if others is None else min(others, used_elsewhere),
            at_s=time.time(),
            estimated=(
                *(() if told_free else ("free",)),
                *(() if others is not None else ("other_processes",)),
            ),
            shared=self._shared,
            programs=told.programs if told is not None else (),
        )

    def _driver(self) -> tuple[int, int, bool]:
        """Free, total, and whether the first was told: else it is all that torch does not hold."""
        try:
            return *self._backend.mem_get_info(self._device), True
        except RuntimeError:
            if self._device.type != "xpu":
                raise
        total = 0 if self._shared else self._total
        return max(0, total - self._backend.memory_reserved(self._device)), total, False

    def _of_the_computer(self) -> DeviceMemory:
        """An integrated device that reports no memory: the computer's figures, marked as shared."""
        host = HostProbe().read()
        return DeviceMemory(
            device=str(self._device),
            total=host.total,
            free=host.free,
            reserved=self._backend.memory_reserved(self._device),
            allocated=self._backend.memory_allocated(self._device),
            other_processes=host.other_processes,
            at_s=host.at_s,
            estimated=("total", "free", "other_processes"),
            shared=True,
        )


def nvml_names(properties: Any) -> tuple[str, ...]:
    """What NVML may know the card as: its UUID, its place on the PCI bus. None for a slice (MIG),
    whose figures are not the card's, and where torch tells nothing, as for other makers' cards.
    """
    if "MIG" in str(getattr(properties, "name", "")):
        return ()
    names = []
    uuid = str(getattr(properties, "uuid", "") or "")
    if uuid:
        names.append(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    found = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    place = [part for part in found if isinstance(part, int)]
    if len(place) == 3 and any(place):
        names.append("{:08X}:{:02X}:{:02X}.0".format(*place))
    return tuple(names)


def nvidia_capability(device: torch.device) -> tuple[int, int] | None:
    """An NVIDIA card's generation, which decides what kernels it runs; None for anything else."""
    if device.type != "cuda" or torch.version.hip:
        return None
    return torch.cuda.get_device_capability(device)


@cache
def num_processors(device: torch.device) -> int | None:
    """Multiprocessors of a card; None where torch tells of none."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
