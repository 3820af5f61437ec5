"""Whether an error means that memory ran out, in all the shapes it takes, and giving memory back.

PyTorch, its libraries and the drivers say it in many ways (unsloth-zoo#1235, vllm#39874); a
program that knows one class of error only dies of the others.
"""

import errno
import gc
import sys

import torch

from kvchat.device.heap import trim

# Parts of the messages, in lower case.
_TEXTS = (
    "out of memory",  # CUDA, HIP, MPS, the CUDA driver under expandable segments
    "out_of_device_memory",  # Level Zero, SYCL (Intel)
    "out_of_host_memory",
    "out_of_resources",
    "status_alloc_failed",  # cuBLAS, cuDNN, cuSOLVER, cuSPARSE, hipBLAS
    "cublas_status_not_initialized",  # no room for the workspace that a handle comes with
    "rocblas_status_memory_error",
    "outofmemory",  # hipErrorOutOfMemory, cudaErrorOutOfMemory
    "nvml_success == r",  # how it shows on a slice of a card (MIG)
    "can't allocate memory",  # torch's CPU allocator on Linux and macOS
    "not enough memory: you tried to allocate",  # and on Windows
    "cannot allocate memory",
    "paging file is too small",
    "bad_alloc",
)
# ERROR_NOT_ENOUGH_MEMORY, ERROR_OUTOFMEMORY, ERROR_COMMITMENT_LIMIT
_WINDOWS_CODES = (8, 14, 1455)


def is_out_of_memory(error: BaseException) -> bool:
    """True for every way in which memory can run out, also as the stated cause of another error."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError) and _is_lack(error):
        return True
    # Libraries written in Rust raise an OSError without a number: "... (os error 12)".
    if isinstance(error, RuntimeError) or (isinstance(error, OSError) and error.errno is None):
        text = str(error).lower()
        if any(part in text for part in _TEXTS):
            return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def _is_lack(error: OSError) -> bool:
    return error.errno == errno.ENOMEM or getattr(error, "winerror", None) in _WINDOWS_CODES


def release(device: torch.device) -> None:
    """Collects what nobody holds and returns the allocator's free memory to the device.

    Call it outside the `except` block: the traceback keeps the failed call's tensors alive.
    """
    for name in ("last_exc", "last_value", "last_traceback"):  # an interactive Python keeps these
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "xpu":
        torch.xpu.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    else:
        trim()
