"""Watches a device in a thread of its own, about twice a second, while somebody runs a model on it.

Who reads what:

    the engine, when it must decide     `read`: the driver, now (microseconds to a millisecond; a
                                        thread more where the driver hangs)
    frames while a step takes long      `newest`: what this thread last read
    NVML                                this thread alone, for it may take two seconds

Knows no budget and no model.
"""

import threading

import torch

from kvchat.device.cuda import AcceleratorProbe
from kvchat.device.guarded import GuardedProbe
from kvchat.device.memory import DeviceMemory, Probe, probe_for
from kvchat.device.others import OtherPrograms
from kvchat.errors import ModelError

INTERVAL_S = 0.5


class Monitor(GuardedProbe):
    """Samples between `start` and `close`; any thread may read at any time."""

    def __init__(
        self, probe: Probe, others: OtherPrograms | None = None, interval_s: float = INTERVAL_S
    ) -> None:
        super().__init__(probe)
        self._others = others
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.newest: DeviceMemory | None = None

    def read(self) -> DeviceMemory:
        """What the device says now, or last said. Raises ModelError where it never did."""
        self.newest = super().read()
        return self.newest

    def start(self) -> None:
        """Once; what was closed stays closed."""
        if self._thread is None:
            if self._others is not None:
                self._others.kept_by_monitor = True
            self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._interval_s):
            if self._others is not None:
                self._others.ask()
            try:
                self.read()
            except ModelError:  # who runs the model is told so
                continue


def monitor_for(device: torch.device) -> Monitor:
    """Not started yet."""
    probe = probe_for(device)
    return Monitor(probe, probe.others if isinstance(probe, AcceleratorProbe) else None)
