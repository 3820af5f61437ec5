"""The most that was allocated on a device while something ran, by torch's own counters.

They are kept by the allocator on the computer's side, so that reading them waits for nothing. torch
counts so on CUDA, ROCm and Intel's cards; elsewhere nothing is measured. Knows no step.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Counters(Protocol):
    """The calls of `torch.cuda` and `torch.xpu` that are used here."""

    def memory_stats_as_nested_dict(self, device: Any) -> dict[str, Any]: ...
    def reset_peak_memory_stats(self, device: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes beyond those at the beginning: the most that were, and those that stay."""

    peak_bytes: int
    left_bytes: int


class Peak(Protocol):
    """What is taken between `begin` and `end`."""

    def begin(self) -> None: ...
    def end(self) -> Taken: ...


class TorchPeak:
    def __init__(self, device: torch.device, counters: Counters) -> None:
        self._device, self._counters = device, counters
        self._before = 0

    def begin(self) -> None:
        self._counters.reset_peak_memory_stats(self._device)
        self._before = self._allocated()["current"]

    def end(self) -> Taken:
        found = self._allocated()
        return Taken(found["peak"] - self._before, found["current"] - self._before)

    def _allocated(self) -> dict[str, int]:
        # One call for both figures; `max_memory_allocated` sorts all of them, each time.
        found = self._counters.memory_stats_as_nested_dict(self._device)
        allocated: dict[str, int] = found["allocated_bytes"]["all"]
        return allocated


def peak_of(device: torch.device) -> Peak | None:
    """None for a device whose allocator torch does not count."""
    counters = {"cuda": torch.cuda, "xpu": torch.xpu}.get(device.type)
    return None if counters is None else TorchPeak(device, counters.memory)
