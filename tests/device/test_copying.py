"""What blocks on the host cost: arithmetic, and where nothing is copied."""

import pytest
import torch

from kvchat.device.copying import host_seconds_per_step, host_to_device_per_s
from kvchat.units import GIB


def test_a_cpu_reads_its_own_memory_and_nothing_is_added() -> None:
    rate = host_to_device_per_s(torch.device("cpu"))
    assert rate is None
    assert host_seconds_per_step(10 * GIB, rate) == 0


def test_an_8b_model_over_pcie_4_as_designed() -> None:
    """32,768 tokens of int4 for 8B: 32 layers, 8 heads, 128 + 128 values of 4 bits, 2 scales of 2
    bytes; at 24 GB/s about 46 ms a step.
    """
    num_bytes = 32768 * 32 * 8 * (256 // 2 + 4)
    assert host_seconds_per_step(num_bytes, 24e9) == pytest.approx(0.046, rel=0.02)


@pytest.mark.gpu
def test_a_card_tells_a_rate() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA card")
    assert 1e9 < (host_to_device_per_s(torch.device("cuda", 0)) or 0) < 1e12
