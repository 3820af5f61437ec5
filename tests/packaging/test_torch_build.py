"""Which torch a machine gets: tables of what a disk, a driver and an index may say."""

import re
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from time import monotonic

import pytest

from tests.packaging.checkout import REPO, load

torch_build = load("torch_build")
REQUIREMENTS = REPO / "packaging" / "requirements"


@pytest.mark.parametrize(
    ("platform", "there", "hardware"),
    [
        ("linux", set(), "cpu"),
        ("linux", {"/proc/driver/nvidia/version"}, "cuda"),
        ("linux", {"/dev/nvidiactl"}, "cuda"),
        ("linux", {"/usr/lib/wsl/lib/libcuda.so.1"}, "cuda"),
        ("linux", {"/usr/bin/nvidia-smi"}, "cpu"),  # the tool alone is no driver
        ("linux", {"/dev/kfd"}, "cpu"),  # an AMD processor's own graphics, without ROCm
        ("linux", {"/dev/kfd", "/opt/rocm"}, "rocm"),
        ("linux", {"/opt/rocm"}, "cpu"),
        ("darwin", {"/dev/nvidiactl"}, "apple"),
        ("win32", set(), "cpu"),
    ],
)
def test_hardware(platform: str, there: set[str], hardware: str) -> None:
    assert torch_build.hardware(there.__contains__, platform) == hardware


def test_hardware_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMROOT", "C:/Windows")
    asked: list[str] = []
    assert torch_build.hardware(lambda path: bool(asked.append(path)) or True, "win32") == "cuda"
    assert asked[0].startswith("C:/Windows")
    assert asked[0].endswith("nvcuda.dll")


@pytest.mark.parametrize(
    ("cards", "build"),
    [
        ("580.65.06, 8.6\n", "torch-cu130"),
        ("581.15, 12.0\n", "torch-cu130"),
        ("572.16, 12.0\n", "torch-cu130"),  # Blackwell: no other build has code for it
        ("560.94, 8.9\n", "torch-cu126"),
        ("580.65.06, 6.1\n", "torch-cu126"),
        ("580.65.06, 7.0\n581.00, 8.6\n", "torch-cu126"),
        ("[N/A], [N/A]\n580.65.06, 7.5\n", "torch-cu130"),
        ("", "torch-cu130"),
        ("NVIDIA-SMI has failed because it couldn't communicate", "torch-cu130"),
    ],
)
def test_cuda_build_follows_driver_and_card(cards: str, build: str) -> None:
    assert torch_build.cuda_build(cards) == build


@pytest.mark.parametrize(
    ("kept", "found", "forced", "build"),
    [
        (None, "cpu", None, "torch-cpu"),
        (None, "rocm", None, "torch-rocm"),
        (None, "apple", None, "torch"),
        ("torch-cu126", "cuda", None, "torch-cu126"),  # no driver is asked on a later start
        ("torch-cu130", "cpu", None, "torch-cu130"),  # the driver is away for a start
        ("torch-cpu", "rocm", None, "torch-rocm"),  # a card was added
        ("torch-cu130", "rocm", None, "torch-rocm"),
        ("torch-of-old", "cpu", None, "torch-cpu"),
        ("torch-cpu", "cpu", "cu126", "torch-cu126"),
        (None, "cuda", "plain", "torch"),
        (None, "cpu", "cuda", None),
    ],
)
def test_build_for(kept: str | None, found: str, forced: str | None, build: str | None) -> None:
    assert torch_build.build_for(kept, found, forced) == build


@pytest.mark.parametrize(
    ("build", "installed", "platform", "missed"),
    [
        ("torch-cu130", "torch-2.13.0+cu130.dist-info", "linux", False),
        ("torch-cu130", "torch-2.13.0.dist-info", "linux", False),
        ("torch-cu130", "torch-2.13.0.dist-info", "win32", True),
        ("torch-cu126", "torch-2.13.0+cpu.dist-info", "linux", True),
        ("torch-rocm", "torch-2.13.0.dist-info", "linux", True),
        ("torch-rocm", "torch-2.13.0+rocm7.2.dist-info", "linux", False),
        ("torch-cpu", "torch-2.13.0+cpu.dist-info", "linux", False),
        ("torch", "torch-2.13.0.dist-info", "darwin", False),
    ],
)
def test_missed(build: str, installed: str, platform: str, missed: bool) -> None:
    assert torch_build.missed(build, installed, platform) is missed


def test_every_build_pins_the_same_torch() -> None:
    """One version in all files, inside the range of pyproject.toml, from the index of its name."""
    pins = {build: _pin(build) for build in torch_build.HARDWARE}
    assert {pin.partition("+")[0] for pin in pins.values()} == {"torch==2.13.0"}
    for build, pin in pins.items():
        index = torch_build.index_of(REQUIREMENTS / f"{build}.txt")
        local = pin.partition("+")[2]
        assert (index or "").rpartition("/")[2] == local
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert "torch>=2.13,<2.15" in project["dependencies"]


def _pin(build: str) -> str:
    lines = (REQUIREMENTS / f"{build}.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def test_all_pins_are_exact_and_made_once() -> None:
    seen: dict[str, str] = {}
    for file in ("base.txt", "model.txt", "pins.txt", "test.txt"):
        for line in (REQUIREMENTS / file).read_text().splitlines():
            if line and not line.startswith(("#", "-c")):
                match = re.fullmatch(r"([a-z0-9-]+)==[0-9a-z.]+", line)
                assert match, f"{file}: {line}"
                assert match[1] not in seen, f"{match[1]} in {file} and {seen[match[1]]}"
                seen[match[1]] = file


def test_every_dependency_of_the_project_is_pinned() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[=<>]", one)[0] for one in project["dependencies"]} - {"torch"}
    base = (REQUIREMENTS / "base.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in base if line and line[0] not in "#-"}
    assert pinned == names


class _Index(BaseHTTPRequestHandler):
    release = Event()

    def do_GET(self) -> None:
        if self.path.startswith("/silent/"):
            self.release.wait(10)
        self.send_response(200 if self.path == "/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), _Index)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    _Index.release.set()
    server.shutdown()
    server.server_close()


def test_reachable(index: str) -> None:
    assert torch_build.reachable(f"{index}/cpu")
    assert not torch_build.reachable(f"{index}/rocm")
    assert not torch_build.reachable("http://127.0.0.1:9/cpu")


def test_a_silent_index_is_not_waited_for(index: str) -> None:
    begun = monotonic()
    assert not torch_build.reachable(f"{index}/silent", timeout_s=0.3)
    assert monotonic() - begun < 3
