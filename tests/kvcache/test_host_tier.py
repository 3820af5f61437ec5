"""Blocks move between device and host and between formats under the texts that hold them: a full
pool always has room to lower what it holds, and what is raised again is what it was.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.kvcache import slabs as slabs_module
from kvchat.kvcache.blocks import FP, Block, Geometry, shape_of
from kvchat.kvcache.pool import Pool, PoolFull, Storing
from kvchat.kvcache.sequence import Sequence
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, lower_of
from tests.kvcache.test_formats_in_sequences import check_reading, fed, feed, lost, opened, vectors

FULL = Geometry((0, 2), 2, 8, 16, None, torch.float32)
HALF = Geometry((0,), 1, 16, 16, None, torch.float32)
SLIDING = Geometry((1,), 1, 16, 8, 100, torch.float32)
LARGE = Geometry((3, 4, 5), 2, 32, 32, None, torch.float32)
GROUPS = ((FULL,), (FULL, SLIDING), (HALF, LARGE), (LARGE, SLIDING, FULL))
INT8, INT4 = FormatPair.parse("int8"), FormatPair.parse("int4")
IDS = list(range(100, 500))


def pool_of(*geometries: Geometry, host_bytes: int = 2**30, floor: FormatPair = FP) -> Pool:
    pool = Pool(geometries or (FULL,), torch.device("cpu"), b"root")
    pool.storing = Storing(FP, floor)
    pool.host_limit_bytes = host_bytes
    return pool


def by_age(pool: Pool) -> list[Block]:
    return sorted(pool.index.all(), key=lambda one: (one.depth, one.group))


def content(block: Block) -> bytes:
    return block.memory.numpy().tobytes()


# --- a full pool ----------------------------------------------------------------------------------


def fill_up(pool: Pool, chunk: int) -> list[Sequence]:
    """Texts side by side, until there is no room for a step of any of them."""
    texts: list[Sequence] = []
    try:
        for number in range(4):
            ids = [number, *range(3000)]
            texts.append(Sequence.begin(pool, ids, BLOCK_TOKENS + chunk))
            while texts[-1].num_cached < 150 * (number + 1):
                step(texts[-1], ids, chunk)
        while True:
            step(texts[0], [0, *range(3000)], chunk)
    except PoolFull:
        return texts


def step(text: Sequence, ids: list[int], chunk: int) -> None:
    new = ids[text.num_cached : text.num_cached + chunk]
    feed(text, [*text.token_ids, *new], chunk)


@given(
    geometries=st.sampled_from(GROUPS),
    blocks=st.floats(2.5, 12),
    chunk=st.sampled_from([20, 40, 64, 150]),
    slab_blocks=st.integers(1, 5),
    floor_tokens=st.sampled_from([0, 100]),
    pair=st.sampled_from(["int8", "int6/int4", "int4", "int2", "int8/fp"]),
)
@settings(max_examples=40, deadline=None)
def test_a_full_pool_always_has_room_to_lower_what_it_holds(
    geometries: tuple[Geometry, ...],
    blocks: float,
    chunk: int,
    slab_blocks: int,
    floor_tokens: int,
    pair: str,
) -> None:
    """At any limit, oldest first, and never beyond it; what is free then is what was told."""
    block_bytes = sum(one.block_bytes for one in geometries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slabs_module, "SLAB_BYTES", slab_blocks * geometries[0].block_bytes)
        pool = pool_of(*geometries)
        pool.limit_bytes = int(blocks * block_bytes)
        pool.hot_floor_bytes = floor_tokens * sum(one.bytes_per_token for one in geometries)
        texts = fill_up(pool, chunk)
        used, freed = pool.slab_bytes - pool.free_block_bytes, 0
        for block in by_age(pool):
            made = pool.geometries[block.group].served(FormatPair.parse(pair))
            freed += pool.requantize(block, made)
            assert block.pair == made
            assert pool.device_bytes <= pool.limit_bytes
            pool.check_integrity()
        for text in texts:
            check_reading(text)
        pool.pack()
        assert used - (pool.slab_bytes - pool.free_block_bytes) == freed
        assert freed == sum(
            pool.geometries[b.group].block_bytes - b.nbytes for b in pool.index.all()
        )


@given(
    dropped=st.sets(st.integers(0, 11), max_size=9),
    slab_blocks=st.integers(1, 4),
    pair=st.sampled_from([INT8, INT4]),
)
@settings(max_examples=60, deadline=None)
def test_without_memory_for_a_slab_what_is_stored_anew_lies_in_others(
    dropped: set[int], slab_blocks: int, pair: FormatPair
) -> None:
    """Under no limit but the device's own. A slab that is emptied so goes back, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slabs_module, "SLAB_BYTES", slab_blocks * FULL.block_bytes)
        patch.setattr(slabs_module, "SLAB_PART", 1)
        pool = pool_of()
        blocks = pool.reserve(0, [FP] * 12)
        for i, block in enumerate(blocks):
            pool.seal(block, bytes([i]), b"", (i,) * BLOCK_TOKENS, i)
        for i in sorted(dropped):
            pool.evict(blocks[i])

        def full(*_: object, **__: object) -> None:
            raise MemoryError

        patch.setattr(slabs_module, "Slab", full)
        left = [block for i, block in enumerate(blocks) if i not in dropped]
        for block in left:
            assert pool.requantize(block, pair) > 0
            pool.check_integrity()
        pool.pack()
        pool.check_integrity(sum(block.nbytes for block in left))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("slab_blocks", [1, 2, 3, 8])
def test_what_smaller_blocks_leave_is_given_back(
    monkeypatch: pytest.MonkeyPatch, slab_blocks: int, backwards: bool
) -> None:
    """Two int8 blocks are a little larger than one of fp16: what each leaves serves nobody."""
    geometry = Geometry((0,), 1, 64, 64, None, torch.float16)
    monkeypatch.setattr(slabs_module, "SLAB_BYTES", slab_blocks * geometry.block_bytes)
    pool = pool_of(geometry)
    blocks = pool.reserve(0, [FP] * 64)
    for i, block in enumerate(blocks):
        pool.seal(block, bytes([i]), b"", (i,) * BLOCK_TOKENS, i)
        block.memory.fill_(i)
    pool.limit_bytes = pool.device_bytes
    for block in reversed(blocks) if backwards else blocks:
        pool.requantize(block, INT8)
    told = [content(block) for block in blocks]
    pool.pack()
    pool.check_integrity()
    assert pool.free_block_bytes < pool.slab_bytes / 25
    assert [content(block) for block in blocks] == told
    more = pool.reserve(0, [INT8] * 50)
    assert pool.device_bytes <= pool.limit_bytes
    for block in (*blocks, *more):
        pool.release(block)


def test_a_block_that_cannot_be_stored_anew_stays_as_it_was() -> None:
    """There is no room for a larger one: neither bytes nor formats change."""
    pool = pool_of()
    text = fed(pool, IDS)
    for block in by_age(pool):
        pool.requantize(block, INT4)
    pool.pack()
    pool.limit_bytes = pool.device_bytes
    block = by_age(pool)[0]
    before = content(block), pool.device_bytes
    with pytest.raises(PoolFull):
        pool.requantize(block, FP)
    assert (content(block), pool.device_bytes) == before
    assert block.pair == INT4
    check_reading(text, lambda one: [one.pair])
    pool.check_integrity()


# --- tiers ----------------------------------------------------------------------------------------


def test_offloaded_blocks_are_still_read_and_come_back() -> None:
    pool = pool_of(FULL, SLIDING)
    text = fed(pool, IDS)
    blocks, used = by_age(pool), pool.slab_bytes - pool.free_block_bytes
    told = {id(block): content(block) for block in blocks}
    assert sum(pool.offload(block) for block in blocks) == used
    assert pool.slab_bytes == 0
    assert pool.host_bytes >= used
    check_reading(text)
    assert [pool.offload(block) for block in blocks] == [0] * len(blocks)
    feed(text, [*IDS, *range(150)])
    check_reading(text)
    assert {block.tier for block in by_age(pool)} == {"host", "device"}
    assert sum(pool.bring_back(block) for block in blocks) == used
    assert pool.host_bytes == 0
    assert all(content(block) == told[id(block)] for block in blocks)
    check_reading(text)
    text.close()
    pool.check_integrity(0)


def test_new_blocks_go_to_the_device_also_after_one_on_the_host() -> None:
    pool = pool_of()
    text = fed(pool, IDS)
    for block in by_age(pool):
        pool.offload(block)
    feed(text, [*IDS, *range(100)])
    assert by_age(pool)[-1].tier == "device"


def test_without_room_there_nothing_is_moved() -> None:
    pool = pool_of(host_bytes=2 * FULL.block_bytes)
    text = fed(pool, IDS)
    blocks = by_age(pool)
    for block in blocks[:2]:
        pool.offload(block)
    with pytest.raises(PoolFull):
        pool.offload(blocks[2])
    pool.limit_bytes = pool.device_bytes
    with pytest.raises(PoolFull):
        pool.bring_back(blocks[0])
    assert [block.tier for block in blocks[:3]] == ["host", "host", "device"]
    check_reading(text)
    pool.check_integrity()
    pool.host_limit_bytes = 0
    pool.trim_host()  # what a text holds stays
    assert blocks[0].tier == "host"
    check_reading(text)


def test_idle_blocks_go_to_the_host_and_the_oldest_leave_it_first() -> None:
    pool = pool_of(host_bytes=5 * FULL.block_bytes)
    for number in range(3):
        fed(pool, [number, *range(200)]).close(keep_tail=False)
    newest = [one.key for one in pool.index.all()][-3:]
    num_blocks, freed = pool.drop_idle(2**30, to_host=True)
    assert (num_blocks, freed) == (9, 9 * FULL.block_bytes)
    assert pool.device_bytes == 0
    left = [one.key for one in pool.index.all()]
    assert len(left) == 5
    assert set(newest) <= set(left)
    again = opened(pool, [2, *range(250)])
    assert again.num_cached == 3 * BLOCK_TOKENS
    check_reading(again)
    again.close()
    pool.check_integrity(0)


def test_a_lower_limit_gives_back_what_is_idle_there() -> None:
    pool = pool_of()
    fed(pool, IDS).close(keep_tail=False)
    pool.drop_idle(2**30, to_host=True)
    for blocks in (4, 1, 0):
        pool.host_limit_bytes = blocks * FULL.block_bytes
        pool.trim_host()
        assert pool.host_bytes == blocks * FULL.block_bytes
        assert [one.depth for one in by_age(pool)] == list(range(blocks))
        pool.check_integrity(0)


def test_what_is_idle_on_the_host_makes_room_for_what_texts_hold() -> None:
    pool = pool_of(host_bytes=3 * FULL.block_bytes)
    fed(pool, IDS[:200]).close(keep_tail=False)
    pool.drop_idle(2**30, to_host=True)
    text = fed(pool, list(range(200)))
    for block in [one for one in by_age(pool) if one.ref_count]:
        pool.offload(block)
    assert all(one.ref_count for one in pool.index.all())
    check_reading(text)


def test_the_copy_on_the_device_is_found_before_a_better_one_on_the_host() -> None:
    pool = pool_of(floor=INT4)
    pool.keep_originals = True
    fed(pool, IDS).close(keep_tail=False)
    for block in by_age(pool):
        pool.requantize(block, INT4)
    text = opened(pool, [*IDS, 1])
    assert {(b.tier, b.pair) for t in text.tables for b in t if b} == {("device", INT4)}
    text.close()
    pool.storing = Storing(FP, FP)
    text = opened(pool, [*IDS, 1])
    assert {(b.tier, b.pair) for t in text.tables for b in t if b} == {("host", FP)}
    text.close()


# --- originals ------------------------------------------------------------------------------------


def test_a_raised_block_is_what_it_was() -> None:
    pool = pool_of()
    pool.keep_originals = True
    text = fed(pool, IDS)
    blocks = by_age(pool)
    told = [content(block) for block in blocks]
    lowered = sum(pool.requantize(block, INT4) for block in blocks)
    assert pool.host_bytes >= len(blocks) * FULL.block_bytes
    check_reading(text)
    raised = sum(pool.raise_block(block, INT8) for block in blocks)
    assert {block.pair for block in blocks} == {INT8}
    check_reading(text)
    raised += sum(pool.raise_block(block, FP) for block in blocks)
    assert raised == lowered
    assert [content(block) for block in blocks] == told
    assert all(block.over == FP for block in blocks)
    assert [pool.raise_block(block, FP) for block in blocks] == [0] * len(blocks)
    text.close()
    assert opened(pool, [*IDS, 5]).num_cached == len(IDS)


def test_it_is_lowered_again_from_the_best_copy() -> None:
    """int8 and then int4 loses no more than int4 alone, where the original is held."""
    pool = pool_of()
    pool.keep_originals = True
    text = fed(pool, IDS)
    block = by_age(pool)[0]
    pool.requantize(block, INT8)
    pool.requantize(block, INT4)
    assert block.over == FP
    check_reading(text, lambda one: [one.pair])
    keys, values = vectors(IDS[:BLOCK_TOKENS], FULL)
    twice = lost(lost((keys, values), FULL, INT8), FULL, INT4)
    assert not torch.equal(lost((keys, values), FULL, INT4)[0], twice[0])


def test_without_room_on_the_host_it_is_lowered_all_the_same() -> None:
    pool = pool_of(host_bytes=FULL.block_bytes)
    pool.keep_originals = True
    text = fed(pool, IDS)
    blocks = by_age(pool)
    for block in blocks:
        assert pool.requantize(block, INT4) > 0
    assert len(list(pool.idle("host"))) == 1
    raised = [pool.raise_block(block, FP) for block in blocks]
    assert sum(taken > 0 for taken in raised) == 1
    check_reading(text)


def test_what_was_computed_over_a_lower_copy_stays_so() -> None:
    """The block is raised again; what was read after it is not taken for as computed."""
    pool = pool_of(floor=FP)
    pool.keep_originals = True
    text = fed(pool, IDS[:200])
    first = by_age(pool)[0]
    pool.requantize(first, INT4)
    feed(text, IDS)
    pool.raise_block(first, FP)
    assert first.over == FP
    assert text.over == INT4
    text.close()
    later = [one for one in pool.index.all() if one.depth > 3 and one.tier == "device"]
    assert later
    assert all(lower_of(one.pair, one.over) == INT4 for one in later)
    again = opened(pool, [*IDS, 5])
    assert again.num_cached <= 4 * BLOCK_TOKENS
    assert again.over == FP


def test_a_text_that_is_not_read_meanwhile_is_none_the_worse() -> None:
    pool = pool_of(floor=FP)
    pool.keep_originals = True
    text = fed(pool, IDS)
    for block in by_age(pool):
        pool.requantize(block, INT4)
    for block in [one for one in by_age(pool) if one.tier == "device"]:
        pool.raise_block(block, FP)
    feed(text, [*IDS, *range(100)])
    assert text.over == FP


def test_a_geometry_that_serves_no_format_is_left_as_it_is() -> None:
    odd = Geometry((0,), 1, 1, 1, None, torch.float32)
    pool = pool_of(odd)
    text = fed(pool, IDS)
    block = by_age(pool)[0]
    assert pool.requantize(block, odd.served(INT4)) == 0
    assert block.nbytes == shape_of(odd, FP).block_bytes
    check_reading(text)
