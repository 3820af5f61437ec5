"""Readings of every kind of device, the headroom, and which device is chosen."""

import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from kvchat.device.apple import AppleProbe
from kvchat.device.cuda import AcceleratorProbe, nvml_names
from kvchat.device.fake import FakeProbe
from kvchat.device.host import ContainerLimit, HostProbe, container_limits
from kvchat.device.memory import (
    Candidate,
    DeviceMemory,
    best,
    candidates,
    pick_device,
    probe_for,
)
from kvchat.device.nvml import Nvml
from kvchat.units import GIB, MIB
from tests.device.fake_nvml import FakeNvml, Process

CUDA = torch.device("cuda", 0)


class FakeBackend:
    """torch.cuda's calls over fixed figures."""

    def __init__(self, free: int, total: int, reserved: int = 0, **properties: object) -> None:
        self.free, self.total, self.reserved = free, total, reserved
        self.properties = SimpleNamespace(**{"name": "Card", "uuid": "aaaa"} | properties)

    def mem_get_info(self, device: object) -> tuple[int, int]:
        return self.free, self.total

    def memory_reserved(self, device: object) -> int:
        return self.reserved

    def memory_allocated(self, device: object) -> int:
        return self.reserved // 2

    def get_device_properties(self, device: object) -> object:
        return self.properties


def test_this_computer_sums_to_its_total():
    found = HostProbe().read()
    assert found.device == "cpu"
    assert 0 < found.free < found.total <= psutil.virtual_memory().total
    rss = psutil.Process().memory_info().rss
    assert abs(found.reserved - rss) < 64 * MIB
    assert found.total - found.free == found.reserved + found.other_processes
    assert "allocated" in found.estimated
    assert found.shared


def test_own_memory_shows_where_it_is_taken():
    before = HostProbe().read()
    held = bytearray(200 * MIB)
    after = HostProbe().read()
    assert 190 * MIB < after.reserved - before.reserved < 260 * MIB
    assert len(held) == 200 * MIB


def group(root: Path, line: str, folder: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(line + "\n")
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)
    return root


V2 = {"memory.max": "1073741824\n", "memory.current": "629145600\n"}
V1 = {"memory.limit_in_bytes": "1073741824\n", "memory.usage_in_bytes": "629145600\n"}


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        ("0::/", "sys/fs/cgroup", V2 | {"memory.stat": "anon 1\ninactive_file 104857600\n"}),
        ("0::/box", "sys/fs/cgroup/box", V2 | {"memory.stat": "inactive_file 104857600\n"}),
        ("0::/not/seen/inside", "sys/fs/cgroup", V2 | {"memory.stat": "inactive_file 104857600"}),
        (
            "4:memory,cpu:/docker/abc",
            "sys/fs/cgroup/memory/docker/abc",
            V1 | {"memory.stat": "cache 1\ntotal_inactive_file 104857600\n"},
        ),
        (
            "4:memory:/docker/abc",
            "sys/fs/cgroup/memory",
            V1 | {"memory.stat": "total_inactive_file 104857600\n"},
        ),
    ],
)
def test_a_container_limits_what_is_there(
    tmp_path: Path, line: str, folder: str, files: dict[str, str]
):
    root = group(tmp_path, line, folder, files)
    assert container_limits(root) == [ContainerLimit(1 * GIB, 500 * MIB)]
    found = HostProbe(root).read()
    assert found.total == 1 * GIB
    assert found.free <= 524 * MIB


def test_the_narrowest_of_nested_limits_counts(tmp_path: Path):
    root = group(tmp_path, "0::/outer/inner", "sys/fs/cgroup/outer/inner", {"memory.max": "max"})
    group(root, "0::/outer/inner", "sys/fs/cgroup/outer", {"memory.max": str(2 * GIB)})
    group(root, "0::/outer/inner", "sys/fs/cgroup", {"memory.max": str(3 * GIB)})
    assert [limit.most for limit in container_limits(root)] == [2 * GIB, 3 * GIB]
    assert HostProbe(root).read().total == min(2 * GIB, psutil.virtual_memory().total)


@pytest.mark.parametrize("text", ["max", "9223372036854771712", "", "x"])
def test_no_limit_is_no_limit(tmp_path: Path, text: str):
    root = group(tmp_path, "0::/", "sys/fs/cgroup", {"memory.max": text})
    assert container_limits(root) == []
    assert container_limits(tmp_path / "nowhere") == []


def test_a_card_is_read_from_its_driver_and_others_from_nvml():
    library = FakeNvml({"GPU-aaaa": [Process("own", 3 * GIB), Process(77, 2 * GIB)]})
    backend = FakeBackend(free=10 * GIB, total=16 * GIB, reserved=2 * GIB)
    found = AcceleratorProbe(CUDA, backend, Nvml(library)).read()
    assert (found.total, found.free, found.reserved) == (16 * GIB, 10 * GIB, 2 * GIB)
    assert found.other_processes == 2 * GIB
    assert found.estimated == ()
    assert not found.shared


@pytest.mark.parametrize(
    "library",
    [
        None,
        FakeNvml({}),
        FakeNvml({"GPU-aaaa": [Process("own", None), Process(7, None)]}),
        FakeNvml({"GPU-aaaa": [Process(1, 3 * GIB), Process(7, 1 * GIB)]}),
        FakeNvml({"GPU-aaaa": [Process("own", 0), Process(7, 1 * GIB)]}, sliced=True),
        FakeNvml({"GPU-aaaa": [Process("own", 0)]}, refuses=True),
    ],
    ids=["absent", "unknown card", "Windows", "pids of another namespace", "MIG", "refuses"],
)
def test_without_a_word_from_nvml_the_rest_is_an_estimate(library: FakeNvml | None):
    backend = FakeBackend(free=10 * GIB, total=16 * GIB, reserved=2 * GIB)
    found = AcceleratorProbe(CUDA, backend, Nvml(library)).read()
    assert found.other_processes == 4 * GIB
    assert found.estimated == ("other_processes",)


def test_what_others_take_is_never_more_than_what_is_gone():
    library = FakeNvml({"GPU-aaaa": [Process("own", 0), Process(7, 40 * GIB)]})
    backend = FakeBackend(free=10 * GIB, total=16 * GIB, reserved=2 * GIB)
    assert AcceleratorProbe(CUDA, backend, Nvml(library)).read().other_processes == 4 * GIB


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({"name": "Card", "uuid": "aaaa"}, ("GPU-aaaa",)),
        ({"name": "Card", "uuid": "GPU-aaaa"}, ("GPU-aaaa",)),
        (
            {"uuid": "aaaa", "pci_domain_id": 0, "pci_bus_id": 65, "pci_device_id": 0},
            ("GPU-aaaa", "00000000:41:00.0"),
        ),
        ({"pci_domain_id": 1, "pci_bus_id": 2, "pci_device_id": 3}, ("00000001:02:03.0",)),
        ({"pci_domain_id": 0, "pci_bus_id": 0, "pci_device_id": 0}, ()),
        ({"name": "AMD Radeon"}, ()),
        ({"name": "NVIDIA A100 MIG 1g.5gb", "uuid": "aaaa", "pci_bus_id": 65}, ()),
    ],
)
def test_what_a_card_may_be_known_as(properties: dict[str, object], names: tuple[str, ...]):
    assert nvml_names(SimpleNamespace(**properties)) == names


def test_on_windows_the_smaller_figure_for_free_counts():
    library = FakeNvml({"GPU-aaaa": [Process("own", None)]}, free=3 * GIB)
    backend = FakeBackend(free=10 * GIB, total=16 * GIB, reserved=2 * GIB)
    for system, free in (("Windows", 3 * GIB), ("Linux", 10 * GIB)):
        assert AcceleratorProbe(CUDA, backend, Nvml(library), system).read().free == free
    backend.free = 1 * GIB
    assert AcceleratorProbe(CUDA, backend, Nvml(library), "Windows").read().free == 1 * GIB


def test_a_hanging_nvml_costs_the_reader_its_time_limit_once():
    class Hanging(FakeNvml):
        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
            threading.Event().wait(30)
            return uuid

    nvml = Nvml(Hanging({}), time_limit_s=0.1)
    probe = AcceleratorProbe(CUDA, FakeBackend(free=GIB, total=2 * GIB), nvml)
    for _ in range(5):
        assert probe.read().estimated == ("other_processes",)
    assert probe.others is not None
    assert probe.others.problem == "hangs"


def test_what_torch_keeps_unused_is_told_where_it_counts():
    backend = FakeBackend(free=10 * GIB, total=16 * GIB, reserved=2 * GIB)
    assert AcceleratorProbe(CUDA, backend, None).read().cached == 1 * GIB
    assert HostProbe().read().cached == 0


def test_an_integrated_device_without_memory_shows_the_computers():
    backend = FakeBackend(free=0, total=0, is_integrated=True)
    found = AcceleratorProbe(torch.device("xpu", 0), backend, None).read()
    assert found.total == psutil.virtual_memory().total
    assert found.shared
    assert "total" in found.estimated


@pytest.mark.parametrize(
    ("properties", "total", "free"),
    [({"total_memory": 8 * GIB}, 8 * GIB, 6 * GIB), ({"is_integrated": True}, None, None)],
)
def test_a_card_whose_driver_cannot_say_what_is_free_is_an_estimate(
    properties: dict[str, object], total: int | None, free: int | None
):
    """Some of Intel's; on another maker's card a failure is one."""

    class Mute(FakeBackend):
        def mem_get_info(self, device: object) -> tuple[int, int]:
            raise RuntimeError("The device doesn't support querying the available free memory.")

    backend = Mute(free=0, total=0, reserved=2 * GIB, **properties)
    found = AcceleratorProbe(torch.device("xpu", 0), backend, None).read()
    assert found.total == (psutil.virtual_memory().total if total is None else total)
    assert free is None or found.free == free
    assert "free" in found.estimated
    with pytest.raises(RuntimeError):
        AcceleratorProbe(CUDA, backend, None).read()


def test_an_apple_chip_shares_the_computers_memory():
    mps = SimpleNamespace(
        recommended_max_memory=lambda: 2 * GIB,
        driver_allocated_memory=lambda: 1 * GIB,
        current_allocated_memory=lambda: 700 * MIB,
    )
    found = AppleProbe(mps).read()
    assert (found.total, found.reserved, found.allocated) == (2 * GIB, 1 * GIB, 700 * MIB)
    assert found.free <= 1 * GIB
    assert found.shared


def test_a_fake_repeats_its_last_reading():
    one = DeviceMemory("cuda:0", 2, 2, 0, 0, 0, 0.0)
    two = DeviceMemory("cuda:0", 2, 1, 0, 0, 1, 1.0)
    probe = FakeProbe([one, two])
    assert [probe.read() for _ in range(3)] == [one, two, two]
    with pytest.raises(ValueError, match="at least one"):
        FakeProbe([])


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([], "cpu"),
        ([Candidate("mps", 0, "Apple", 0, True)], "mps:0"),
        (
            [Candidate("cuda", 0, "a", 8, False), Candidate("cuda", 1, "b", 24, False)],
            "cuda:1",
        ),
        (
            [Candidate("cuda", 0, "iGPU", 64, True), Candidate("xpu", 0, "Arc", 16, False)],
            "xpu:0",
        ),
        (
            [Candidate("xpu", 0, "iGPU", 0, True), Candidate("cuda", 0, "card", 8, False)],
            "cuda:0",
        ),
    ],
)
def test_a_card_comes_before_an_integrated_one(found: list[Candidate], chosen: str):
    assert str(best(found)) == chosen


def test_what_is_picked_here_can_be_read_and_used():
    device = pick_device()
    assert device.type in {one.kind for one in candidates()} | {"cpu"}
    assert probe_for(device).read().total > 0
    assert torch.ones(2, device=device).sum().item() == 2


COMPUTER = 16 * GIB


@pytest.mark.parametrize(
    ("properties", "integrated"),
    [
        ({"total_memory": 0}, True),
        ({"total_memory": 512 * MIB}, True),
        ({"total_memory": COMPUTER}, True),
        ({"total_memory": COMPUTER - 200 * MIB}, True),
        ({"total_memory": 8 * GIB}, False),
        ({"total_memory": 8 * GIB, "is_integrated": 1}, True),
        ({"total_memory": COMPUTER, "is_integrated": 0}, False),
        ({}, True),
    ],
)
def test_a_device_without_memory_of_its_own_is_known(
    properties: dict[str, object], integrated: bool, monkeypatch: pytest.MonkeyPatch
):
    offered(monkeypatch, properties)
    (found,) = [one for one in candidates() if one.kind == "cuda"]
    assert found.integrated is integrated


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize("shared", [0, 512 * MIB, COMPUTER])
def test_the_discrete_card_is_chosen_beside_an_integrated_one(
    order: list[int], shared: int, monkeypatch: pytest.MonkeyPatch
):
    cards = [{"total_memory": shared}, {"total_memory": 4 * GIB}]
    offered(monkeypatch, *[cards[i] for i in order])
    assert pick_device() == torch.device("cuda", order.index(1))


def offered(monkeypatch: pytest.MonkeyPatch, *cards: dict[str, object]) -> None:
    """As if torch had these cards, in a computer of 16 GiB."""
    properties = [SimpleNamespace(**card) for card in cards]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    ram = SimpleNamespace(total=COMPUTER)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: ram)
