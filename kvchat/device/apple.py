"""The memory of an Apple chip's GPU, which is the computer's: torch tells its own part and a safe
most.

Written to torch's documentation; the figures beyond torch's own are estimates and marked so.
"""

import time
from typing import Protocol

import psutil
import torch

from kvchat.device.memory import DeviceMemory


class Mps(Protocol):
    """The three calls of `torch.mps` that are used here."""

    def recommended_max_memory(self) -> int: ...
    def driver_allocated_memory(self) -> int: ...
    def current_allocated_memory(self) -> int: ...


class AppleProbe:
    def __init__(self, mps: Mps | None = None) -> None:
        self._mps: Mps = torch.mps if mps is None else mps

    def read(self) -> DeviceMemory:
        """total is what Metal recommends as the most; free is what is left of it and of the RAM."""
        reserved = self._mps.driver_allocated_memory()
        total = self._mps.recommended_max_memory() or int(psutil.virtual_memory().total)
        free = max(0, min(total - reserved, int(psutil.virtual_memory().available)))
        return DeviceMemory(
            device="mps",
            total=total,
            free=free,
            reserved=reserved,
            allocated=self._mps.current_allocated_memory(),
            other_processes=max(0, total - free - reserved),
            at_s=time.time(),
            estimated=("total", "free", "other_processes"),
            shared=True,
        )
