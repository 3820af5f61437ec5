"""The frame's items: never negative, always summing to the device, whatever the probe says."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kvchat.device.memory import DeviceMemory
from kvchat.kvcache.blocks import Geometry
from kvchat.kvcache.chats import MOST_CHATS, ChatBlocks
from kvchat.kvcache.frame import Measured, make_frame
from kvchat.kvcache.pool import Pool
from kvchat.kvcache.sequence import Sequence
from kvchat.kvcache.spans import Span
from tests.kvcache.test_sequence import feed

CPU = torch.device("cpu")
FULL = Geometry((0,), 1, 4, 4, None, torch.float32)
TOTAL = 2**20


@given(
    free=st.integers(0, TOTAL // 2),
    others=st.integers(0, TOTAL // 2),
    weights=st.integers(0, TOTAL // 2),
    activations=st.integers(0, TOTAL),
)
def test_the_items_sum_to_the_device(
    free: int, others: int, weights: int, activations: int
) -> None:
    """Also where weights are mapped from a file and not in memory, or the device is all free."""
    pool = Pool((FULL,), CPU, b"root")
    sequence = Sequence.begin(pool, [1] * 100, 200)
    feed(sequence, [1] * 100)
    device = DeviceMemory("cpu", TOTAL, free, 0, 0, others, 0.0)
    measured = Measured(device, None, 0, weights, 0, activations, 1)
    frame = make_frame(pool, sequence, [Span("turn", "t", 1, 0, 100)], measured)
    items = [
        frame["weights_bytes"],
        frame["library_bytes"],
        frame["kv"]["device_bytes"],
        frame["activations_bytes"],
        frame["runtime_bytes"],
        frame["device"]["other_processes"],
        frame["device"]["free"],
    ]
    assert min(items) >= 0
    assert sum(items) == TOTAL
    assert frame["kv"]["capacity_tokens"] == 1, "as it was foretold, whatever is there"


def test_chats_are_told_of_while_they_have_blocks() -> None:
    pool = Pool((FULL,), CPU, b"root")
    chats = ChatBlocks(pool)
    for number in range(MOST_CHATS + 50):
        sequence = Sequence.begin(pool, [number] * 200, 300)
        feed(sequence, [number] * 200)
        chats.remember(f"chat {number}", tuple(sequence.keys))
        sequence.close(keep_tail=False)
    told = chats.num_bytes()
    assert list(told) == [f"chat {number}" for number in range(50, MOST_CHATS + 50)]
    assert set(told.values()) == {3 * FULL.block_bytes}
    pool.drop_idle(pool.idle_bytes - 4 * FULL.block_bytes)
    assert list(chats.num_bytes().values()) == [FULL.block_bytes, 3 * FULL.block_bytes]
    pool.drop_idle(2**60)
    assert chats.num_bytes() == {}
