"""How much to leave free on a device that nobody set a headroom for, and why so much.

Arithmetic; measures nothing. What others leave, looked up in their sources in 2026:

    ollama      457 MiB on a card, whatever its size (discover/gpu.go, cudaMinimumMemory)
    ComfyUI     400 MB; 600 MB on Windows, "higher because of the shared vram issue"; 100 MB more
                from 16 GB on (comfy/model_management.py, EXTRA_RESERVED_VRAM); 12 % beside
    vLLM        10 % of the card (gpu_memory_utilization 0.9), which it takes to be its own

Ours, by device:

    card        max(512 MiB, total / 16): a desktop with a browser grows by some hundred MiB, and a
                larger card serves larger screens and more programs
    card on Windows     twice that. The driver (NVIDIA's since 536.40, "CUDA sysmem fallback
                policy") moves memory to the computer's before a card is full, without an error, and
                every step then crosses the bus
    shared      an integrated GPU or an Apple chip: max(1 GiB, total / 8), since what is left is all
                that the system and every other program have, and Metal's figure for the most that
                it recommends is about three quarters of the RAM already
    cpu         max(512 MiB, total / 16): the system swaps rather than fails, which is slow

and never more than a quarter of the total, so that a small container or card stays usable.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from kvchat.device.drivers import driver_system
from kvchat.device.guarded import GuardedProbe
from kvchat.device.memory import DeviceMemory, probe_for
from kvchat.units import GIB, MIB

Reason = Literal["card", "card_on_windows", "shared", "cpu"]


@dataclass(frozen=True, slots=True)
class Headroom:
    """`reason` names the sentence `headroom.REASON`."""

    num_bytes: int
    reason: Reason


def usual_headroom(device_type: str, total: int, system: str, shared: bool = False) -> Headroom:
    """`device_type` as torch names it, `system` as `driver_system` says it; `shared`: the device
    has no memory of its own.
    """
    reason = _reason(device_type, system, shared)
    least, parts = {
        "card": (512 * MIB, 16),
        "card_on_windows": (GIB, 8),
        "shared": (GIB, 8),
        "cpu": (512 * MIB, 16),
    }[reason]
    return Headroom(min(max(least, total // parts), total // 4), reason)


def _reason(device_type: str, system: str, shared: bool) -> Reason:
    if device_type == "cpu":
        return "cpu"
    if shared or device_type == "mps":
        return "shared"
    return "card_on_windows" if system == "Windows" else "card"


def may_spill(device_type: str, system: str) -> bool:
    """Whether the driver moves memory to the computer's instead of saying that it ran out."""
    return device_type == "cuda" and system == "Windows"


@cache
def headroom_of(device: torch.device) -> Headroom:
    """The usual one of a device here; read once, since its total stays. Raises ModelError where it
    cannot be read.
    """
    return headroom_here(GuardedProbe(probe_for(device)).read())


def headroom_here(now: DeviceMemory) -> Headroom:
    """The usual one of the device that was read, on this system."""
    return usual_headroom(now.device.partition(":")[0], now.total, driver_system(), now.shared)
