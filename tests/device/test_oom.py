"""Every shape of running out of memory, and what looks like one and is not."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from kvchat.device.oom import is_out_of_memory, release
from kvchat.errors import ModelError

OUT = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError(
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":838, please report'
    ),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory:"
        " you tried to allocate 4000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4000000000 bytes."),
    RuntimeError("HIP error: hipErrorOutOfMemory"),
    RuntimeError("HIPBLAS_STATUS_ALLOC_FAILED"),
    RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
    RuntimeError("XPU out of memory. Tried to allocate 1.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.98 GB, max allowed: 18.13 GB)."),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
    OSError(12, "Cannot allocate memory"),
    OSError("Cannot allocate memory (os error 12)"),  # safetensors, whose errors have no number
    OSError("The paging file is too small for this operation to complete. (os error 1455)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
]
NOT = [
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    RuntimeError("size mismatch, m1: [2 x 3], m2: [4 x 5]"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("expected scalar type Float but found Half"),
    OSError(28, "No space left on device"),
    OSError("No such file or directory: out of sight (os error 2)"),
    ValueError("out of memory"),
    KeyError("memory"),
    ModelError("config_field_missing", field="out of memory"),
]


@pytest.mark.parametrize("error", OUT, ids=lambda e: str(e)[:40])
def test_these_are_out_of_memory(error: BaseException):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", NOT, ids=lambda e: str(e)[:40])
def test_these_are_not(error: BaseException):
    assert not is_out_of_memory(error)


def test_the_stated_cause_of_another_error_counts():
    wrapped = ValueError("loading failed")
    wrapped.__cause__ = RuntimeError("CUDA out of memory")
    assert is_out_of_memory(wrapped)


def test_torch_really_says_it_so_and_stays_healthy():
    """A real refusal: more than any address space has."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert torch.ones(10).sum() == 10


@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits are Linux's")
def test_a_limit_set_by_the_system_is_recognised():
    code = (
        "import resource, torch\n"
        "from kvchat.device.oom import is_out_of_memory, release\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "found = False\n"
        "try:\n"
        "    torch.ones(2**29, dtype=torch.uint8)\n"
        "except RuntimeError as error:\n"
        "    found = is_out_of_memory(error)\n"
        "release(torch.device('cpu'))\n"
        "print(found, int(torch.ones(1000).sum()))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.split() == ["True", "1000"]


def test_release_frees_what_only_a_cycle_held():
    class Node:
        pass

    gc.disable()
    try:
        node = Node()
        node.itself = node
        node.tensor = torch.ones(1000)
        gone = weakref.ref(node.tensor)
        del node
        assert gone() is not None
        release(torch.device("cpu"))
        assert gone() is None
    finally:
        gc.enable()


def test_release_lets_go_of_the_traceback_an_interactive_python_keeps():
    sys.last_traceback = sys.last_exc = None
    release(torch.device("cpu"))
    assert not hasattr(sys, "last_traceback")
    assert not hasattr(sys, "last_exc")
