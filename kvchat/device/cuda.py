"""The memory of a card that torch drives: NVIDIA and AMD as `cuda`, Intel as `xpu`, by the same
calls.

The driver's own figure (`mem_get_info`) is the truth; NVML adds whose the rest is.
"""

import time
from functools import cache
from typing import Any, Protocol

import torch

from kvchat.device.host import HostProbe
from kvchat.device.memory import DeviceMemory
from kvchat.device.nvml import Nvml, others_bytes

# Asking NVML for its processes takes milliseconds; a frame is drawn ten times a second.
_OTHERS_EVERY_S = 1.0


class Backend(Protocol):
    """The calls of `torch.cuda` and `torch.xpu` that are used here."""

    def mem_get_info(self, device: Any) -> tuple[int, int]: ...
    def memory_reserved(self, device: Any) -> int: ...
    def memory_allocated(self, device: Any) -> int: ...
    def get_device_properties(self, device: Any) -> Any: ...


class AcceleratorProbe:
    """`nvml` None: other programs are told from the driver's figure and torch's alone."""

    def __init__(self, device: torch.device, backend: Backend, nvml: Nvml | None) -> None:
        self._device = device
        self._backend = backend
        self._nvml = nvml
        properties = backend.get_device_properties(device)
        self._uuid = nvml_uuid(properties)
        self._shared = bool(getattr(properties, "is_integrated", False))
        self._others: int | None = None
        self._asked_s = -_OTHERS_EVERY_S

    @classmethod
    def of(cls, device: torch.device) -> "AcceleratorProbe":
        if device.type == "xpu":
            return cls(device, torch.xpu, None)
        return cls(device, torch.cuda, None if torch.version.hip else Nvml())

    def read(self) -> DeviceMemory:
        free, total = self._backend.mem_get_info(self._device)
        if total <= 0:
            return self._of_the_computer()
        reserved = self._backend.memory_reserved(self._device)
        used_elsewhere = max(0, total - free - reserved)
        others = self._told_others()
        return DeviceMemory(
            device=str(self._device),
            total=total,
            free=free,
            reserved=reserved,
            allocated=self._backend.memory_allocated(self._device),
            # Without a word from NVML our own context (some hundred MiB) counts as the others'.
            other_processes=used_elsewhere if others is None else min(others, used_elsewhere),
            at_s=time.time(),
            estimated=() if others is not None else ("other_processes",),
            shared=self._shared,
        )

    def _told_others(self) -> int | None:
        if self._nvml is None or self._uuid is None:
            return None
        now = time.monotonic()
        if now - self._asked_s >= _OTHERS_EVERY_S:
            self._asked_s = now
            self._others = others_bytes(self._nvml.usages(self._uuid))
        return self._others

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


def nvml_uuid(properties: Any) -> str | None:
    """The card's UUID as NVML writes it; None where torch does not tell one, or it is a slice's."""
    uuid = str(getattr(properties, "uuid", "") or "")
    if not uuid or "MIG" in str(getattr(properties, "name", "")):
        return None
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


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
