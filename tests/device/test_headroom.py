"""The headroom that nobody set: by device and system, with the reason that is told."""

import pytest

from kvchat.device.drivers import driver_system
from kvchat.device.headroom import Headroom, headroom_here, usual_headroom
from kvchat.device.memory import DeviceMemory
from kvchat.units import GIB, MIB
from kvchat.wording import LANGUAGES, table


@pytest.mark.parametrize(
    ("device", "total", "system", "shared", "expected"),
    [
        ("cuda", 8 * GIB, "Linux", False, Headroom(512 * MIB, "card")),
        ("cuda", 24 * GIB, "Linux", False, Headroom(1536 * MIB, "card")),
        ("cuda", 8 * GIB, "Windows", False, Headroom(GIB, "card_on_windows")),
        ("cuda", 24 * GIB, "Windows", False, Headroom(3 * GIB, "card_on_windows")),
        ("xpu", 16 * GIB, "Linux", False, Headroom(GIB, "card")),
        ("xpu", 16 * GIB, "Linux", True, Headroom(2 * GIB, "shared")),
        ("mps", 12 * GIB, "Darwin", True, Headroom(1536 * MIB, "shared")),
        ("cpu", 16 * GIB, "Linux", True, Headroom(GIB, "cpu")),
        ("cpu", 1 * GIB, "Linux", True, Headroom(256 * MIB, "cpu")),
        ("cuda", 2 * GIB, "Windows", False, Headroom(512 * MIB, "card_on_windows")),
        ("cuda", 0, "Linux", False, Headroom(0, "card")),
    ],
)
def test_by_device_and_system(
    device: str, total: int, system: str, shared: bool, expected: Headroom
) -> None:
    assert usual_headroom(device, total, system, shared) == expected


def test_of_a_reading() -> None:
    now = DeviceMemory("mps", 12 * GIB, GIB, 0, 0, 0, 0.0, shared=True)
    assert headroom_here(now) == Headroom(1536 * MIB, "shared")


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [
        ("Linux", "6.8.0-generic", "Linux"),
        ("Linux", "5.15.167.4-microsoft-standard-WSL2", "Windows"),
        ("Windows", "11", "Windows"),
        ("Darwin", "24.1.0", "Darwin"),
    ],
)
def test_whose_driver_it_is(system: str, release: str, expected: str) -> None:
    assert driver_system(system, release) == expected


@pytest.mark.parametrize("reason", ["card", "card_on_windows", "shared", "cpu"])
def test_each_reason_is_said(reason: str) -> None:
    assert set(table()[f"headroom.{reason}"]) == set(LANGUAGES)
