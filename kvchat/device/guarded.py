"""The one way in which the engine reads a device: a reading that can be believed, whatever the
probe does.

A probe may raise, never return, or say what cannot be. Then the last good reading stands, with its
age, and what else it may say is asked for again next time. Each reading is taken in a thread of its
own: a driver that hangs keeps that thread, not the chat. (A probe that says that it `cannot_hang`,
since no driver is behind it, is read at once: a thread takes longer than all planning of a step.)
Too much free memory is cut to what torch itself leaves of the total; a lie beyond that shows when
an allocation fails, and the engine's guard takes it from there. Too little is believed: it costs
room, not an answer that is lost.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from kvchat.device.memory import DeviceMemory, Probe
from kvchat.errors import ModelError

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 0.5
# A driver makes its context at the first reading.
FIRST_TIME_LIMIT_S = 20.0


class GuardedProbe:
    """Any thread may read. `problem`: why the newest reading is not the device's: `fails`, `hangs`,
    `impossible`; None where it is.
    """

    def __init__(
        self,
        probe: Probe,
        time_limit_s: float = TIME_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe, self._time_limit_s, self._clock = probe, time_limit_s, clock
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._said: list[tuple[DeviceMemory, float]] = []
        self._good: DeviceMemory | None = None
        self._good_s = 0.0
        self.problem: str | None = None

    def read(self) -> DeviceMemory:
        """Raises ModelError only where the device never gave a good reading."""
        with self._lock:
            found = self._asked()
            if found is not None:
                return found
            if self._good is None:
                raise ModelError("device_unreadable", why=self.problem or "")
            age_s = max(self._clock() - self._good_s, 1e-3)
            estimated = tuple(dict.fromkeys((*self._good.estimated, "free", "other_processes")))
            return replace(self._good, age_s=age_s, estimated=estimated)

    def _asked(self) -> DeviceMemory | None:
        """A reading taken now; None where there is none to be believed."""
        if self._asking is not None and self._asking.is_alive():
            return None  # it hangs still, and one thread is enough to wait for it
        self._taken()  # what came too late for whoever asked is newer than what stands
        self._begin()
        said = bool(self._said)
        found = self._taken()
        problem = None if found else "impossible" if said else self._why_nothing()
        if problem is not None and problem != self.problem:
            logger.warning("the device's memory cannot be read")
        self.problem = problem
        return found

    def _taken(self) -> DeviceMemory | None:
        """What the probe said, if that can be: it stands from now on."""
        said, self._said = self._said, []
        found = believable(said[0][0]) if said else None
        if found is not None:
            self._good, self._good_s = found, said[0][1]
        return found

    def _begin(self) -> None:
        """Asks, and waits as long as it may take."""
        if getattr(self._probe, "cannot_hang", False):
            self._ask()
            return
        asking = threading.Thread(target=self._ask, name="probe", daemon=True)
        try:
            asking.start()
        except RuntimeError:  # no memory for a thread: a probe that hangs is rarer than that
            self._ask()
            return
        self._asking = asking
        asking.join(FIRST_TIME_LIMIT_S if self._good is None else self._time_limit_s)

    def _why_nothing(self) -> str:
        return "hangs" if self._asking is not None and self._asking.is_alive() else "fails"

    def _ask(self) -> None:
        try:
            found = self._probe.read()
        except Exception:  # noqa: BLE001 - drivers and their libraries raise anything
            return
        self._said.append((found, self._clock()))


def believable(found: DeviceMemory) -> DeviceMemory | None:
    """The reading, with no more free than torch leaves of the total; None where it cannot be."""
    figures = (found.total, found.free, found.reserved, found.allocated, found.other_processes)
    if min(figures) < 0 or found.total == 0 or found.free > found.total:
        return None
    if found.allocated and not found.shared:  # torch counts here, and all of it is on the device
        free = min(found.free, max(0, found.total - found.reserved))
        others = min(found.other_processes, found.total - free)
        return replace(found, free=free, other_processes=others)
    return found
