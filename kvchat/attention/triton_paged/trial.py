"""The smallest kernel, run once to see that Triton works on a device. Imports Triton."""

import torch
from triton.errors import TritonError

from kvchat.attention.triton_paged import kernels


def run(device: torch.device) -> None:
    """Raises RuntimeError, or what the system raises, where Triton cannot compile, load or launch a
    kernel.
    """
    unit = torch.eye(16, device=device)
    out = torch.empty(1, 16, device=device)
    try:
        kernels.rotate[(1,)](unit[:1], out, unit, dim=16, wide=16)
    except TritonError as error:
        raise RuntimeError(str(error)) from error
    if not torch.equal(out, unit[:1]):
        raise RuntimeError("a kernel of Triton gave another result")
