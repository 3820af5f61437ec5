"""A stand-in for pynvml: the same names over a table of cards."""

import os
from dataclasses import dataclass
from types import SimpleNamespace


@dataclass(frozen=True)
class Process:
    """`pid` "own" is this process."""

    pid: int | str
    used: int | None


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(
        self,
        cards: dict[str, list[Process]],
        sliced: bool = False,
        refuses: bool = False,
        places: dict[str, str] | None = None,
        free: int | None = None,
    ) -> None:
        """`places`: the cards' PCI ids, each with its UUID."""
        self.cards, self.sliced, self.refuses = cards, sliced, refuses
        self.places, self.free = places or {}, free

    def nvmlInit(self) -> None:
        if self.refuses:
            raise self.NVMLError("driver not loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.cards:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetHandleByPciBusId(self, place: str) -> str:
        if place not in self.places:
            raise self.NVMLError("not found")
        return self.places[place]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        if self.free is None:
            raise self.NVMLError("not supported")
        return SimpleNamespace(free=self.free)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if not self.sliced:
            raise self.NVMLError("not supported")
        return [1, 1]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        if handle not in self.cards:
            raise self.NVMLError("lost")
        return [
            SimpleNamespace(pid=os.getpid() if p.pid == "own" else p.pid, usedGpuMemory=p.used)
            for p in self.cards[handle]
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return self.nvmlDeviceGetComputeRunningProcesses(handle)[:1]

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.1"
