"""The first start for real: a copy of the checkout, no environment, killed in the middle, repaired.

Takes minutes and a gigabyte and a half of disk, and needs a package index.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.checkout import REPO, load

bootstrap = load("bootstrap")
resource = pytest.importorskip("resource", reason="measures and kills as POSIX does")

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a clone holds, without an environment."""
    root = tmp_path_factory.mktemp("first") / "kvchat"
    for name in ("kvchat", "packaging", "settings"):
        shutil.copytree(REPO / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(REPO / "app.py", root)
    yield root
    shutil.rmtree(root)


def environ() -> dict[str, str]:
    """As in a terminal of its own: nothing of the environment that these tests run in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVCHAT_")}
    return kept | {"LC_ALL": "C.UTF-8"}


def start(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [_base_python(), str(root / "app.py"), *words],
        capture_output=True,
        text=True,
        env=environ(),
        cwd=root.parent,
    )


def _base_python() -> str:
    """A Python outside of any environment, as a person has it."""
    return getattr(sys, "_base_executable", sys.executable)


def test_killed_first_start_is_repaired_by_the_next(checkout: Path) -> None:
    place = bootstrap.Place(checkout)
    killed = subprocess.Popen(
        [_base_python(), str(checkout / "app.py"), "--help"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ(),
        start_new_session=True,
    )
    until = time.monotonic() + 600
    while not list(place.folder.glob("lib/*/site-packages/torch/nn")):
        assert killed.poll() is None, "ended before torch was half there"
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert bootstrap.read_record(place)["running"] == "torch"

    repaired = start(checkout, "--help")
    assert repaired.returncode == 0, repaired.stderr[-2000:]
    assert "[1/4]" in repaired.stderr
    assert "[4/4] done" in repaired.stderr
    assert repaired.stdout.startswith("usage: kvchat")
    record = bootstrap.read_record(place)
    assert record["running"] is None
    assert set(record["done"]) == {"venv", "torch", "base", "model"}


def test_second_start_adds_a_tenth_of_a_second_and_asks_nobody(checkout: Path) -> None:
    place = bootstrap.Place(checkout)
    log = place.log.read_bytes()
    outside = [_base_python(), str(checkout / "app.py"), "--version"]
    inside = [str(place.python), str(checkout / "app.py"), "--version"]
    pairs = [(_seconds(outside), _seconds(inside)) for _ in range(9)]
    # Processor time, and the least of each: what else the machine does only ever adds.
    added_s = min(pair[0] for pair in pairs) - min(pair[1] for pair in pairs)
    assert added_s < 0.1
    assert place.log.read_bytes() == log
    traced = start(checkout, "--version")
    assert (traced.stdout, traced.stderr) == ("kvchat 0.1.0\n", "")


def _seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env=environ())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.skipif(
    bootstrap.torch_build.hardware() != "cpu", reason="this machine has a GPU's driver"
)
def test_without_a_gpu_the_cpu_build_is_installed(checkout: Path) -> None:
    code = "import torch; assert torch.version.cuda is None and torch.version.hip is None"
    subprocess.run([bootstrap.Place(checkout).python, "-c", code], check=True, env=environ())


def test_doctor_runs_in_the_new_environment(checkout: Path) -> None:
    ran = start(checkout, "doctor", "--json", "--data-dir", str(checkout.parent / "data"))
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.lstrip().startswith("{")


def test_a_changed_requirement_is_followed(checkout: Path) -> None:
    model = bootstrap.Place(checkout).requirements / "model.txt"
    model.write_text(model.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    ran = start(checkout, "--version")
    assert ran.returncode == 0
    assert "[1/1]" in ran.stderr
    assert "[2/" not in ran.stderr
