"""A probe that reads from a list: to try without a card what kvchat does when memory runs short."""

from collections.abc import Iterable
from typing import ClassVar

from kvchat.device.memory import DeviceMemory


class FakeProbe:
    """Gives the readings in order, then the last one for ever. Needs at least one."""

    cannot_hang: ClassVar[bool] = True

    def __init__(self, readings: Iterable[DeviceMemory]) -> None:
        self._readings = list(readings)
        if not self._readings:
            raise ValueError("a FakeProbe needs at least one reading")

    def read(self) -> DeviceMemory:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
