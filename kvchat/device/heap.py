"""The C library's heap, on Linux with glibc; other systems have nothing to be told.

glibc gives threads heaps of their own, up to eight for each processor, and each keeps what was let
go of in it. Answers run on threads of their own, so a long chat grew by 70 KB a turn.
"""

import ctypes
import sys
from typing import Any

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def keep_one_heap() -> None:
    """All threads share one heap. Call it before any thread allocates: glibc decides then, once."""
    mallopt = _call("mallopt")
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def trim() -> None:
    """Free memory goes back to the system."""
    malloc_trim = _call("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _call(name: str) -> Any:
    """None where the C library has no such call (musl, macOS, Windows)."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
