"""The other programs on one NVIDIA card, as NVML knows them: who they are, what they take, and what
NVML holds to be free.

NVML is slow and may hang (nvml.py), so what it last said is kept here, for whoever reads the card.
Who asks it: the monitor, in its own thread, where there is one; else the reader, once a second.
"""

import os
import threading
import time
from dataclasses import dataclass

import psutil

from kvchat.device.memory import Program
from kvchat.device.nvml import CardUsage, Nvml, others_bytes

ASKED_EVERY_S = 1.0
# What was said longer ago is not shown any more.
BELIEVED_S = 5.0
MOST_PROGRAMS = 8


@dataclass(frozen=True, slots=True)
class Others:
    """`num_bytes` None where it cannot be told; `free` is NVML's figure, None where it has none."""

    num_bytes: int | None
    programs: tuple[Program, ...]
    free: int | None


class OtherPrograms:
    """`names`: what the card may be known as, the best first (see `nvml_names`)."""

    def __init__(self, nvml: Nvml, names: tuple[str, ...]) -> None:
        self._nvml, self._names = nvml, names
        self._lock = threading.Lock()
        self._said: Others | None = None
        self._said_s = self._asked_s = float("-inf")
        self.kept_by_monitor = False

    @property
    def problem(self) -> str | None:
        """Why NVML says nothing: `absent`, `refuses`, `hangs`, `unknown_card`, `sliced`."""
        return self._nvml.problem or self._nvml.card_problem

    def told(self) -> Others | None:
        """What NVML last said, not too long ago; None where that is nothing."""
        if not self.kept_by_monitor:
            self.ask()
        return self._said if time.monotonic() - self._said_s < BELIEVED_S else None

    def ask(self) -> None:
        """Asks NVML if it was not asked just now. Takes milliseconds, or once its time limit."""
        with self._lock:
            now = time.monotonic()
            if now - self._asked_s < ASKED_EVERY_S:
                return
            self._asked_s = now
            usage = self._nvml.card(self._names)
            if usage is not None:
                self._said, self._said_s = _others(usage), time.monotonic()


def _others(usage: CardUsage) -> Others:
    own_pid = os.getpid()
    others = [one for one in usage.processes if one.pid != own_pid]
    others.sort(key=lambda one: -(one.bytes_used or 0))
    shown = tuple(Program(o.pid, _name(o.pid), o.bytes_used) for o in others[:MOST_PROGRAMS])
    return Others(others_bytes(list(usage.processes)), shown, usage.free)


def _name(pid: int) -> str:
    """Empty where the system does not tell: another user's, another container's, just ended."""
    try:
        return str(psutil.Process(pid).name())
    except (psutil.Error, OSError, ValueError):
        return ""
