"""Probes that lie, each in a way of its own."""

import threading
from collections.abc import Callable
from dataclasses import replace

from kvchat.device.memory import DeviceMemory

Lie = Callable[[DeviceMemory], DeviceMemory]


def raises(true: DeviceMemory) -> DeviceMemory:
    raise RuntimeError("CUDA error: unspecified launch failure")


LIES: dict[str, Lie] = {
    "raises": raises,
    "total 0": lambda true: replace(true, total=0, free=0),
    "negative": lambda true: replace(true, free=-1),
    "more free than there is": lambda true: replace(true, free=true.total + 1),
    "others below nothing": lambda true: replace(true, other_processes=-5),
}


class Liar:
    """Tells the truth, until it is given a lie; `freeze` makes it answer nothing until `thaw`."""

    def __init__(self, true: DeviceMemory) -> None:
        self.true = true
        self.lie: Lie = lambda true: true
        self.asked = 0
        self._awake = threading.Event()
        self._awake.set()

    def read(self) -> DeviceMemory:
        self.asked += 1
        self._awake.wait(60)
        return self.lie(self.true)

    def freeze(self) -> None:
        self._awake.clear()

    def thaw(self) -> None:
        self._awake.set()
