"""Memory of the device over the last minutes, kept by the program, so that a reload has it too.

One point a slot of time: of the frames in it the one with the least free memory, since what was
short is what people look for. Values in, values out; may be asked by any thread.
"""

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

SLOT_S, KEPT_S = 2.0, 1800.0
CLOCK_SET_S = 60.0  # a frame is never so late: the computer's clock was set back
COLUMNS = ("at_s", "other", "weights", "runtime", "activations", "kv", "free")
Point = tuple[float, int, int, int, int, int, int]


def point_of(frame: Mapping[str, Any]) -> Point:
    """A frame (kvcache/frame.py) in bytes by `COLUMNS`; all but the time sum to the device's."""
    device, kv = frame["device"], frame["kv"]
    return (
        float(frame["at_s"]),
        int(device["other_processes"]),
        int(frame["weights_bytes"]),
        int(frame["runtime_bytes"]),
        int(frame["activations_bytes"]),
        int(kv["device_bytes"]) + int(frame["library_bytes"]),
        int(device["free"]),
    )


class Timeline:
    def __init__(self, slot_s: float = SLOT_S, kept_s: float = KEPT_S) -> None:
        self._slot_s = slot_s
        self._points: deque[Point] = deque(maxlen=max(1, int(kept_s / slot_s)))
        self._lock = threading.Lock()

    def add(self, frame: Mapping[str, Any]) -> None:
        """A frame may come twice, or late: a slot that is over stays as it is."""
        point = point_of(frame)
        with self._lock:
            last = self._points[-1] if self._points else None
            if last is not None and point[0] < last[0] - CLOCK_SET_S:
                self._points.clear()
                last = None
            if last is None or self._slot(point) > self._slot(last):
                self._points.append(point)
            elif self._slot(point) == self._slot(last) and point[-1] < last[-1]:
                self._points[-1] = point

    def points(self) -> list[Point]:
        """Oldest first."""
        with self._lock:
            return list(self._points)

    def _slot(self, point: Point) -> int:
        return int(point[0] // self._slot_s)
