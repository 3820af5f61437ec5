"""C26: NVML numbers cards by their places, torch by CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. The
other programs of the right card are shown, or none at all.
"""

import os
from dataclasses import dataclass
from types import SimpleNamespace

import psutil
import pytest
import torch

from kvchat.device.cuda import AcceleratorProbe
from kvchat.device.memory import Program
from kvchat.device.nvml import Nvml
from kvchat.device.others import OtherPrograms
from kvchat.units import GIB
from tests.device.fake_nvml import FakeNvml, Process


@dataclass(frozen=True)
class Card:
    uuid: str
    bus: int
    speed: int
    others: int


SLOW = Card("11111111-aaaa", 1, 10, 1 * GIB)
FAST = Card("22222222-bbbb", 65, 90, 5 * GIB)
BY_PLACE = (SLOW, FAST)


def visible_to_torch(visible: str | None, order: str) -> list[Card]:
    """As CUDA numbers cards: by these two variables of the environment."""
    numbered = list(BY_PLACE)
    if order == "FASTEST_FIRST":
        numbered.sort(key=lambda card: -card.speed)
    if visible is None:
        return numbered
    chosen = []
    for name in filter(None, visible.split(",")):
        if name.startswith("GPU-"):
            chosen += [card for card in BY_PLACE if f"GPU-{card.uuid}".startswith(name)]
        else:
            chosen.append(numbered[int(name)])
    return chosen


def library() -> FakeNvml:
    return FakeNvml(
        {f"GPU-{one.uuid}": [Process("own", 0), Process(7, one.others)] for one in BY_PLACE},
        places={f"00000000:{one.bus:02X}:00.0": f"GPU-{one.uuid}" for one in BY_PLACE},
    )


class Backend:
    def __init__(self, cards: list[Card], told: str) -> None:
        self.cards, self.told = cards, told

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 8 * GIB, 16 * GIB

    def memory_reserved(self, device: torch.device) -> int:
        return 0

    memory_allocated = memory_reserved

    def get_device_properties(self, device: torch.device) -> object:
        card = self.cards[device.index or 0]
        place = {"pci_domain_id": 0, "pci_bus_id": card.bus, "pci_device_id": 0}
        known = (
            {"uuid": card.uuid} if self.told == "uuid" else place if self.told == "place" else {}
        )
        return SimpleNamespace(name="Card", **known)


@pytest.mark.parametrize("told", ["uuid", "place", "neither"])
@pytest.mark.parametrize("order", ["FASTEST_FIRST", "PCI_BUS_ID"])
@pytest.mark.parametrize("visible", [None, "0", "1", "1,0", "0,1", "GPU-1111", "GPU-2222", ""])
def test_the_right_card_whatever_the_environment_says(
    visible: str | None, order: str, told: str
) -> None:
    cards = visible_to_torch(visible, order)
    assert len(cards) == (0 if visible == "" else 2 if visible in (None, "1,0", "0,1") else 1)
    for index, card in enumerate(cards):
        device = torch.device("cuda", index)
        found = AcceleratorProbe(device, Backend(cards, told), Nvml(library())).read()
        if told == "neither":
            assert found.estimated == ("other_processes",)
            assert found.programs == ()
        else:
            assert found.estimated == ()
            assert found.other_processes == card.others
            assert [one.bytes_used for one in found.programs] == [card.others]


def test_a_cards_programs_have_names_the_largest_first() -> None:
    parent = psutil.Process(os.getppid())
    processes = [
        Process("own", 9),
        Process(parent.pid, 5),
        Process(2**22 + 5, 50),
        Process(3, None),
    ]
    nvml = Nvml(FakeNvml({"GPU-a": processes}))
    told = OtherPrograms(nvml, ("GPU-a",)).told()
    assert told is not None
    assert told.num_bytes is None  # one of them does not say
    assert told.programs[:2] == (
        Program(2**22 + 5, "", 50),
        Program(parent.pid, parent.name(), 5),
    )
    assert told.programs[2].bytes_used is None


def test_no_more_programs_are_shown_than_fit() -> None:
    processes = [Process("own", 9), *[Process(2**22 + i, i) for i in range(1, 30)]]
    told = OtherPrograms(Nvml(FakeNvml({"GPU-a": processes})), ("GPU-a",)).told()
    assert told is not None
    assert told.num_bytes == sum(range(1, 30))
    assert [one.bytes_used for one in told.programs] == list(range(29, 21, -1))
