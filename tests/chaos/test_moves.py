"""Memory that runs out at any call of torch while blocks are stored otherwise, moved between tiers
or moved together: a block is as it was, or as it was to be, and no byte is lost track of.
"""

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from kvchat.kvcache import slabs as slabs_module
from kvchat.kvcache.blocks import FP, Block, Geometry
from kvchat.kvcache.pool import Pool, PoolFull
from kvchat.kvcache.sequence import Sequence
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from tests.faults import Failing, RecordFaults, count_faults

CPU = torch.device("cpu")
INT8, INT4 = FormatPair.parse("int8"), FormatPair.parse("int4/int4")
GEOMETRY = Geometry((0, 1), 2, 16, 8, None, torch.float32)
NUM_BLOCKS = 3


def filled_pool(keep_originals: bool = False) -> tuple[Pool, list[Block], Sequence]:
    """A text of a few blocks in a pool, each of them held."""
    pool = Pool((GEOMETRY,), CPU, b"root")
    pool.host_limit_bytes, pool.keep_originals = 2**30, keep_originals
    sequence = Sequence.begin(pool, range(NUM_BLOCKS * BLOCK_TOKENS), NUM_BLOCKS * BLOCK_TOKENS)
    sequence.reserve(NUM_BLOCKS * BLOCK_TOKENS)
    generator = torch.Generator().manual_seed(3)
    for part in sequence.hot_views(0, 0, NUM_BLOCKS * BLOCK_TOKENS):
        part.copy_(torch.randn(part.shape, generator=generator))
    sequence.commit(range(NUM_BLOCKS * BLOCK_TOKENS))
    blocks = [block for block in sequence.tables[0] if block is not None]
    assert len(blocks) == NUM_BLOCKS
    return pool, blocks, sequence


def no_room_left(pool: Pool) -> None:
    """What is stored anew must find its place in what it leaves."""
    pool.limit_bytes = pool.device_bytes


def less(pool: Pool, blocks: list[Block]) -> None:
    for block in blocks:
        pool.requantize(block, INT8)


def still_less(pool: Pool, blocks: list[Block]) -> None:
    for block in blocks:
        pool.requantize(block, INT4)


def to_host(pool: Pool, blocks: list[Block]) -> None:
    for block in blocks:
        pool.offload(block)


def and_back(pool: Pool, blocks: list[Block]) -> None:
    for block in blocks:
        pool.bring_back(block)


def better(pool: Pool, blocks: list[Block]) -> None:
    for block in blocks:
        pool.raise_block(block, FP)


def together(pool: Pool, blocks: list[Block]) -> None:
    pool.pack()


def nothing(pool: Pool, blocks: list[Block]) -> None:
    """Nothing comes before."""


def less_in_place(pool: Pool, blocks: list[Block]) -> None:
    """Leaves slabs of which much stands free."""
    no_room_left(pool)
    less(pool, blocks)
    pool.limit_bytes = None


Do = Callable[[Pool, list[Block]], None]
# What comes before, whether originals are kept, what fails.
CASES: dict[str, tuple[Do, bool, Do]] = {
    "requantize": (nothing, False, less),
    "requantize again": (less, False, still_less),
    "requantize without room": (lambda pool, _: no_room_left(pool), False, less),
    "requantize, originals kept": (nothing, True, less),
    "raise": (less, True, better),
    "offload": (nothing, False, to_host),
    "bring back": (to_host, False, and_back),
    "offload what is in less": (less, False, to_host),
    "requantize on the host": (to_host, False, less),
    "pack": (less_in_place, False, together),
}


def contents(pool: Pool, blocks: list[Block]) -> list[tuple[FormatPair, FormatPair, Tensor]]:
    return [(one.pair, one.over, one.memory.clone()) for one in blocks]


def same(
    one: tuple[FormatPair, FormatPair, Tensor], other: tuple[FormatPair, FormatPair, Tensor]
) -> bool:
    return one[:2] == other[:2] and torch.equal(one[2], other[2])


def prepared(case: str) -> tuple[Pool, list[Block], Sequence]:
    before, keep_originals, _ = CASES[case]
    pool, blocks, sequence = filled_pool(keep_originals)
    before(pool, blocks)
    return pool, blocks, sequence


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "slab_blocks",
    [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow)],
)
@torch.inference_mode()
def test_a_block_is_as_it_was_or_as_it_was_to_be(
    case: str, slab_blocks: int, monkeypatch: pytest.MonkeyPatch, record_property: RecordFaults
) -> None:
    monkeypatch.setattr(slabs_module, "SLAB_BYTES", slab_blocks * GEOMETRY.block_bytes)
    do = CASES[case][2]
    pool, blocks, _ = prepared(case)
    before = contents(pool, blocks)
    with Failing(0, 0) as counted:
        do(pool, blocks)
    after = contents(pool, blocks)
    assert counted.calls or slab_blocks == 1  # then each slab was as small as could be
    survived = 0
    for at in range(1, counted.calls + 1):
        pool, blocks, sequence = prepared(case)
        num_moved = pool.num_moved
        with Failing(at) as failing, suppress(PoolFull):
            do(pool, blocks)
        found = contents(pool, blocks)
        for one, old, new in zip(found, before, after, strict=True):
            assert same(one, old) or same(one, new), at
        live = sum(block.nbytes for block in blocks)
        pool.check_integrity(live)
        if any(not same(one, old) for one, old in zip(found, before, strict=True)):
            assert pool.num_moved > num_moved, "whoever holds the blocks must look again"
        do(pool, blocks)
        assert all(map(same, contents(pool, blocks), after)), at
        sequence.close(keep_tail=False)
        pool.check_integrity(0)
        pool.drop_idle(2**60)
        pool.host_limit_bytes = 0
        pool.trim_host()
        assert pool.device_bytes == pool.host_bytes == 0, at
        survived += failing.num_failed
    count_faults(record_property, f"blocks: {case}", survived)
