"""How fast bytes come from the host to the device, and what blocks on the host cost each step.

Measured once a run. On a CPU the host's memory is the device's own: nothing is copied, and blocks
of either tier are read alike. Knows no block.
"""

import time
from functools import cache

import torch

_COPIED_BYTES = 64 * 1024**2
_TIMES = 4


@cache
def host_to_device_per_s(device: torch.device) -> float | None:
    """Bytes a second from pinned memory, the fastest of a few copies; None on a CPU.

    Takes 64 MiB on both sides for some milliseconds, so it may run out of memory.
    """
    if device.type == "cpu":
        return None
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    fastest_s = float("inf")
    for _ in range(_TIMES):
        torch.accelerator.synchronize(device)
        before_s = time.perf_counter()
        target.copy_(source)
        torch.accelerator.synchronize(device)
        fastest_s = min(fastest_s, time.perf_counter() - before_s)
    return _COPIED_BYTES / fastest_s


def host_seconds_per_step(num_bytes: int, bytes_per_s: float | None) -> float:
    """How much longer a step takes with so many bytes of its blocks on the host: each step reads
    them all, so num_bytes / bytes_per_s. 0 where nothing is copied (`host_to_device_per_s` None).
    """
    return 0.0 if bytes_per_s is None else num_bytes / bytes_per_s
