"""NVIDIA's management library: who else uses a card, and how much. Optional, and not to be trusted
to answer.

It may be absent, refuse, or hang; it numbers cards in its own order. So a card is found by its
UUID or its place on the PCI bus, never by a number, every call runs in a thread of its own with a
time limit, and after one that never returned it is not asked again. A card cut into slices (MIG) is
left alone: its figures are the whole card's.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

try:
    import pynvml
except ImportError:
    pynvml = None

Result = TypeVar("Result")
TIME_LIMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Usage:
    """One process on a card. `bytes_used` is None where the driver does not tell (Windows)."""

    pid: int
    bytes_used: int | None


@dataclass(frozen=True, slots=True)
class CardUsage:
    """Who is on a card. `free` is None where the library does not say."""

    processes: tuple[Usage, ...]
    free: int | None


class Nvml:
    """The library behind a time limit. `library` is pynvml, or a stand-in of the same names."""

    def __init__(self, library: Any = pynvml, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._library = library
        self._time_limit_s = time_limit_s
        self.card_problem: str | None = None
        self.problem: str | None = None if library is not None else "absent"
        if self.problem is None and not self._ask(self._begin):
            self.problem = self.problem or "refuses"

    def _begin(self) -> bool:
        self._library.nvmlInit()
        return True

    def driver_version(self) -> str | None:
        """None where the library does not answer."""
        found = self._ask(lambda: self._library.nvmlSystemGetDriverVersion())
        return found.decode() if isinstance(found, bytes) else found

    def card(self, names: tuple[str, ...]) -> CardUsage | None:
        """The card of the first of these names that the library knows (UUIDs, PCI ids); None where
        it cannot be told, and `card_problem` says why.
        """
        return self._ask(lambda: self._card(names))

    def _card(self, names: tuple[str, ...]) -> CardUsage | None:
        library = self._library
        handle = self._handle(names)
        self.card_problem = "unknown_card" if handle is None else None
        if handle is None:
            return None
        if _is_sliced(library, handle):
            self.card_problem = "sliced"
            return None
        running = [
            *library.nvmlDeviceGetComputeRunningProcesses(handle),
            *library.nvmlDeviceGetGraphicsRunningProcesses(handle),
        ]
        # A program that computes and draws is in both lists.
        found = {p.pid: Usage(p.pid, p.usedGpuMemory) for p in running}
        return CardUsage(tuple(found.values()), self._free(handle))

    def _handle(self, names: tuple[str, ...]) -> Any:
        for name in names:
            by_uuid = name.startswith("GPU-")
            library = self._library
            find = (
                library.nvmlDeviceGetHandleByUUID
                if by_uuid
                else library.nvmlDeviceGetHandleByPciBusId
            )
            with suppress(library.NVMLError):
                return find(name)
        return None

    def _free(self, handle: Any) -> int | None:
        with suppress(self._library.NVMLError):
            return int(self._library.nvmlDeviceGetMemoryInfo(handle).free)
        return None

    def _ask(self, call: Callable[[], Result]) -> Result | None:
        """The call's result, or None if it failed or took too long; too long is remembered."""
        if self.problem is not None:
            return None
        result: list[Result] = []

        def ask() -> None:
            with suppress(self._library.NVMLError, OSError, AttributeError):
                result.append(call())

        thread = threading.Thread(target=ask, name="nvml", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no memory for a thread
            return None
        thread.join(self._time_limit_s)
        if thread.is_alive():
            self.problem = "hangs"
        return result[0] if result else None


def _is_sliced(library: Any, handle: Any) -> bool:
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0])
    except library.NVMLError:  # a card that knows no slices says "not supported"
        return False


def others_bytes(usages: list[Usage] | None, own_pid: int | None = None) -> int | None:
    """What the other processes take; None where it cannot be told.

    If this process is not in the list, pids are not ours (a container), and it might count itself
    twice.
    """
    own_pid = os.getpid() if own_pid is None else own_pid
    if usages is None or own_pid not in {one.pid for one in usages}:
        return None
    others = [one.bytes_used for one in usages if one.pid != own_pid]
    if any(used is None for used in others):
        return None
    return sum(used for used in others if used is not None)
