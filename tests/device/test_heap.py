"""One heap for all threads, and giving back what it holds; nothing where there is no such call."""

import ctypes
import subprocess
import sys

import pytest

from kvchat.device import heap

GLIBC = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")

THREADS = """
import threading
from ctypes import CDLL, c_size_t, c_void_p
from kvchat.device.heap import keep_one_heap

if {kept}:
    keep_one_heap()
libc = CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = c_void_p, [c_size_t]
met = threading.Barrier(6)
def take():
    libc.malloc(1000)
    met.wait()
threads = [threading.Thread(target=take) for _ in range(6)]
[one.start() for one in threads]
[one.join() for one in threads]
libc.malloc_info.argtypes = [__import__("ctypes").c_int, c_void_p]
libc.fdopen.restype = c_void_p
libc.malloc_info(0, libc.fdopen(1, b"w"))
libc.fflush(None)
"""


@pytest.mark.skipif(not GLIBC, reason="no glibc")
def test_threads_share_one_heap() -> None:
    counts = []
    for kept in (False, True):
        code = THREADS.format(kept=kept)
        told = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        counts.append(told.stdout.count("<heap nr="))
    assert counts[0] > 1
    assert counts[1] == 1


def test_other_systems_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    heap.keep_one_heap()
    heap.trim()
