"""Which graphics drivers are installed, whatever torch thinks: by the files that they leave behind.

Tells apart a machine without a card from one whose torch cannot use it. Asks no program.
"""

import os
import platform
import sys
from collections.abc import Callable

_TRACES = {
    # The first is there inside containers as well, the last on Windows' Linux (WSL).
    "cuda": ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1"),
    "rocm": ("/opt/rocm", "/usr/bin/rocminfo"),
}


def installed_drivers(
    exists: Callable[[str], bool] = os.path.exists, platform: str = sys.platform
) -> frozenset[str]:
    """Of `cuda` and `rocm`, those whose driver is installed; `mps` on a Mac."""
    if platform == "darwin":
        return frozenset({"mps"})
    if platform == "win32":
        driver = os.path.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "nvcuda.dll")
        return frozenset({"cuda"} if exists(driver) else ())
    found = {kind for kind, paths in _TRACES.items() if any(exists(path) for path in paths)}
    # ROCm's programs without a card's kernel driver serve nobody.
    return frozenset(found if exists("/dev/kfd") else found - {"rocm"})


def driver_system(system: str = platform.system(), release: str = platform.release()) -> str:
    """Whose driver runs the cards, as platform.system() names it: Windows' own serves the Linux
    that runs inside it (WSL) too.
    """
    return "Windows" if "microsoft" in release.lower() else system
