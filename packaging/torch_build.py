"""Which build of torch a machine should have, and whether its index can be reached.

Loaded by path from bootstrap.py; standard library only. A build is a file of requirements/ by name.
Which CUDA serves which card: PyTorch's release matrix for 2.13 (CUDA 12.6, 13.0; ROCm 7.2).
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

# What a driver leaves behind on Linux: the first also inside containers, the last on WSL.
NVIDIA = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1")
ROCM = ("/opt/rocm", "/usr/bin/rocminfo")
HARDWARE = {
    "torch-cpu": "cpu",
    "torch-cu130": "cuda",
    "torch-cu126": "cuda",
    "torch-rocm": "rocm",
    "torch": "apple",
}
_INDEX_TIMEOUT_S = 5.0


def hardware(exists: Callable[[str], bool] = os.path.exists, platform: str = sys.platform) -> str:
    """cuda, rocm, apple or cpu, from what drivers left on the disk. Quick: asks no program."""
    if platform == "darwin":
        return "apple"
    if platform == "win32":
        driver = os.path.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "nvcuda.dll")
        return "cuda" if exists(driver) else "cpu"
    if any(exists(path) for path in NVIDIA):
        return "cuda"
    if exists("/dev/kfd") and any(exists(path) for path in ROCM):
        return "rocm"
    return "cpu"


def build_for(kept: str | None, found: str, forced: str | None = None) -> str | None:
    """The build to have; None if `forced` (of KVCHAT_TORCH) names none.

    A build that is installed is kept while a GPU's driver is away: it computes on a CPU as well.
    """
    if forced:
        build = "torch" if forced == "plain" else f"torch-{forced}"
        return build if build in HARDWARE else None
    if kept in HARDWARE and found in ("cpu", HARDWARE[kept]):
        return kept
    if found == "cuda":
        return cuda_build(_ask_nvidia())
    return {"cpu": "torch-cpu", "rocm": "torch-rocm", "apple": "torch"}[found]


def forced_names() -> str:
    """What KVCHAT_TORCH may be."""
    return ", ".join(
        "plain" if build == "torch" else build.removeprefix("torch-") for build in HARDWARE
    )


def cuda_build(cards: str) -> str:
    """From lines such as `580.65.06, 8.6`: driver, compute capability. The first card decides.

    CUDA 13 wants Turing (7.5) and driver 580; Blackwell (10 and up) has no build for 12.6.
    """
    for line in cards.splitlines():
        driver, _, capability = line.partition(",")
        try:
            major, ability = int(driver.split(".")[0]), float(capability)
        except ValueError:
            continue
        renewed = ability >= 10 or (ability >= 7.5 and major >= 580)
        return "torch-cu130" if renewed else "torch-cu126"
    return "torch-cu130"


def _ask_nvidia() -> str:
    import subprocess

    command = ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def index_of(requirements: Path) -> str | None:
    """The index that a requirements file names beside the one that pip is set up for."""
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if line.startswith("--extra-index-url"):
            return line.split()[1]
    return None


def reachable(index: str, timeout_s: float = _INDEX_TIMEOUT_S) -> bool:
    """Whether the index answers soon. In a thread: looking up a name has no timeout of its own."""
    from threading import Thread
    from urllib.request import urlopen

    answered: list[bool] = []

    def ask() -> None:
        try:
            with urlopen(f"{index}/torch/", timeout=timeout_s) as answer:
                answered.append(answer.status == 200)
        except (OSError, ValueError):
            answered.append(False)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s + 1)
    return answered == [True]


def missed(build: str, installed: str, platform: str = sys.platform) -> bool:
    """Whether the version installed computes on a CPU only, though the build was for a GPU.

    A version without a local part comes from a common index: for Windows that is a CPU build, for
    Linux the newest CUDA build.
    """
    if HARDWARE[build] not in ("cuda", "rocm"):
        return False
    plain_lacks_it = platform == "win32" or build == "torch-rocm"
    return "+cpu" in installed or ("+" not in installed and plain_lacks_it)
