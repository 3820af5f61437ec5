"""The transaction and the reuse of prefixes, over random text: what is in the cache is what was
fed.
"""

from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.kvcache import slabs as slabs_module
from kvchat.kvcache.blocks import FP, Block, Geometry, chain, copy_tokens
from kvchat.kvcache.pool import Pool, PoolFull, Storing
from kvchat.kvcache.prefix_index import PrefixIndex
from kvchat.kvcache.sequence import Sequence
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair

CPU = torch.device("cpu")
FULL = Geometry((0, 2), 2, 8, 8, None, torch.float32)
SLIDING = Geometry((1,), 1, 16, 8, 100, torch.float32)


def pool_of(*geometries: Geometry, limit_bytes: int | None = None) -> Pool:
    return Pool(geometries, CPU, b"root", limit_bytes)


def feed(sequence: Sequence, ids: list[int]) -> None:
    """A forward whose keys and values say which id at which position they came from."""
    sequence.reserve(len(ids))
    for group in range(len(sequence.pool.geometries)):
        start = sequence.num_hot
        keys, values = sequence.hot_views(group, start, start + len(ids))
        for layer in range(len(keys)):
            for i, token in enumerate(ids):
                keys[layer, :, i] = token + layer / 10
                values[layer, :, i] = -token - layer / 10
    sequence.commit(ids)


def held_ids(sequence: Sequence, group: int, layer: int) -> list[int]:
    """What attention would read: blocks through the runs, then the hot window."""
    found: list[int] = []
    for run in sequence.runs(group):
        keys, _ = run.read(layer)
        found.extend(round(x - layer / 10) for x in keys[:, 0, :, 0].flatten().tolist())
    found = found[sequence.first_seen(group)[1] :]
    geometry = sequence.pool.geometries[group]
    skip = max(0, geometry.first_visible(sequence.num_cached) - sequence.start)
    keys, _ = sequence.hot_views(group, skip, sequence.num_hot)
    found.extend(round(x - layer / 10) for x in keys[layer, 0, :, 0].tolist())
    return found


@pytest.mark.parametrize("chunk", [1, 7, 63, 64, 65, 130, 300])
def test_what_is_fed_is_what_attention_reads(chunk: int) -> None:
    pool = pool_of(FULL, SLIDING)
    ids = list(range(1000, 1300))
    sequence = Sequence.begin(pool, ids, BLOCK_TOKENS + chunk)
    for start in range(0, len(ids), chunk):
        feed(sequence, ids[start : start + chunk])
    assert held_ids(sequence, 0, 0) == held_ids(sequence, 0, 1) == ids
    assert held_ids(sequence, 1, 0) == ids[-99:]  # the next query sees 100 with itself
    pool.check_integrity()
    sequence.close(keep_tail=False)
    pool.check_integrity(0)


@given(
    first=st.lists(st.integers(0, 3), min_size=1, max_size=300),
    second=st.lists(st.integers(0, 3), min_size=1, max_size=300),
    chunk=st.sampled_from([1, 5, 64, 100]),
    keep=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_second_text_reuses_exactly_the_common_ids(
    first: list[int], second: list[int], chunk: int, keep: bool
) -> None:
    pool = pool_of(FULL)
    one = Sequence.begin(pool, first, BLOCK_TOKENS + chunk)
    for start in range(0, len(first), chunk):
        feed(one, first[start : start + chunk])
    one.close(keep_tail=keep)
    two = Sequence.begin(pool, second, BLOCK_TOKENS + chunk)
    common = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    sealed = len(first) // BLOCK_TOKENS * BLOCK_TOKENS
    expected = min(common, len(second) - 1)
    assert two.num_cached == (expected if keep else min(expected, sealed))
    assert held_ids(two, 0, 1) == second[: two.num_cached]
    feed(two, second[two.num_cached :])
    assert held_ids(two, 0, 0) == second
    two.close()
    pool.check_integrity(0)


def test_a_window_that_was_left_is_read_again() -> None:
    """A sliding layer keeps only its window: going back behind it needs what is gone."""
    pool = pool_of(FULL, SLIDING)
    ids = list(range(2000, 2500))
    one = Sequence.begin(pool, ids, BLOCK_TOKENS + 50)
    for start in range(0, len(ids), 50):
        feed(one, ids[start : start + 50])
    one.close()
    while_idle = Sequence.begin(pool, [*ids[:300], 7, 8], BLOCK_TOKENS + 50)
    assert while_idle.num_cached == 300  # its blocks are idle, not gone
    while_idle.close()
    idle = sorted(
        (b for b in pool.index.all() if b.group == 1 and b.depth < 5), key=lambda b: b.depth
    )
    for block in idle:
        pool.index.remove(block)
        pool._free(block)
    gone = Sequence.begin(pool, [*ids[:300], 7, 8], BLOCK_TOKENS + 50)
    assert gone.num_cached == 0
    gone.close()
    kept = Sequence.begin(pool, [*ids, 7], BLOCK_TOKENS + 50)
    assert kept.num_cached == 500
    kept.close()
    pool.check_integrity(0)


def test_a_window_that_is_gone_is_not_looked_for_in_every_block_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is asked of the index grows with the text, not with its square: at 65,536 tokens that
    was the difference between 10 ms and 5 s at each message.
    """
    pool = pool_of(FULL, SLIDING)
    ids = list(range(150 * BLOCK_TOKENS))
    blocks = [pool.reserve(group, [FP] * 150) for group in range(2)]
    parent = pool.index.root
    for i, (key, piece) in enumerate(chain(parent, ids)):
        for of_group in blocks:
            pool.seal(of_group[i], key, parent, piece, i)
        parent = key
    for block in blocks[1]:
        pool.evict(block)
    right, num_asked = PrefixIndex.find, 0

    def find(*asked: object) -> Block | None:
        nonlocal num_asked
        num_asked += 1
        return right(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(PrefixIndex, "find", find)
    match = pool.index.match([*ids, 1])
    assert (match.num_tokens, match.lost_tokens) == (0, len(ids))
    assert num_asked < 5 * 150


def test_rollback_leaves_no_trace() -> None:
    pool = pool_of(FULL, SLIDING)
    ids = list(range(100, 290))
    sequence = Sequence.begin(pool, [*ids, *[5] * 150], BLOCK_TOKENS + 200)
    feed(sequence, ids)
    before, bytes_before = list(sequence.token_ids), pool.device_bytes
    sequence.reserve(150)
    sequence.rollback()
    assert sequence.token_ids == before
    assert held_ids(sequence, 0, 0) == ids
    assert pool.device_bytes == bytes_before
    feed(sequence, [5] * 150)
    assert held_ids(sequence, 0, 1) == [*ids, *[5] * 150]


def test_a_full_pool_takes_nothing() -> None:
    """Reserving for one group succeeds, for the next it does not: neither holds anything then."""
    limit = FULL.block_bytes * 2 + (FULL.bytes_per_token + SLIDING.bytes_per_token) * 200
    pool = pool_of(FULL, SLIDING, limit_bytes=limit)
    sequence = Sequence.begin(pool, [1] * 200, 200)
    held = pool.device_bytes
    with pytest.raises(PoolFull) as caught:
        sequence.reserve(140)
    assert caught.value.needed_bytes > 0
    assert pool.device_bytes == held
    pool.check_integrity(0)
    feed(sequence, [1] * 60)
    assert sequence.num_cached == 60


def test_idle_blocks_go_leaf_first_and_free_what_was_asked() -> None:
    pool = pool_of(FULL)
    ids = list(range(640))
    sequence = Sequence.begin(pool, ids, BLOCK_TOKENS + 640)
    feed(sequence, ids)
    assert pool.idle_bytes == 0
    sequence.close()
    assert pool.idle_bytes == 10 * FULL.block_bytes
    num_blocks, freed = pool.drop_idle(3 * FULL.block_bytes - 1)
    assert (num_blocks, freed) == (3, 3 * FULL.block_bytes)
    again = Sequence.begin(pool, ids, BLOCK_TOKENS + 640)
    assert again.num_cached == 7 * BLOCK_TOKENS
    again.close()
    pool.drop_idle(10**9)
    assert pool.device_bytes == 0  # empty slabs went back
    pool.check_integrity(0)


def test_equal_blocks_are_held_once() -> None:
    """Two texts computed side by side end up with one copy of what they share."""
    pool = pool_of(FULL)
    ids = list(range(128))
    one = Sequence.begin(pool, ids, BLOCK_TOKENS + 128)
    two = Sequence.begin(pool, ids, BLOCK_TOKENS + 128)
    feed(one, ids)
    feed(two, ids)
    assert one.tables[0] == two.tables[0]
    assert all(block is not None and block.ref_count == 2 for block in two.tables[0])
    one.close()
    assert held_ids(two, 0, 0) == ids
    two.close()
    pool.check_integrity(0)


def test_a_hash_collision_is_no_hit() -> None:
    """A block of the same name with other ids is not reused."""
    pool = pool_of(FULL)
    ids = list(range(65))
    sequence = Sequence.begin(pool, ids, BLOCK_TOKENS + 65)
    feed(sequence, ids)
    sequence.close(keep_tail=False)
    next(iter(pool.index.all())).token_ids = tuple(range(1, 65))
    again = Sequence.begin(pool, ids, BLOCK_TOKENS + 65)
    assert again.num_cached == 0


def test_a_step_that_grows_twice_and_fails_gives_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slab that was made for it and would stay empty counts for no one else."""
    monkeypatch.setattr(slabs_module, "SLAB_BYTES", 64 * FULL.block_bytes)
    pool = pool_of(FULL)
    sequence = Sequence.begin(pool, [1] * 400, 400)
    pool.limit_bytes = pool.device_bytes + 70 * FULL.block_bytes
    pool.hot_floor_bytes = pool.hot_bytes
    held = pool.device_bytes
    with pytest.raises(PoolFull):
        pool.reserve(0, [FP] * 90)
    assert pool.device_bytes == held
    sequence.close()


def test_a_seal_that_fails_is_done_again() -> None:
    """A device error while blocks are copied: nothing is committed, the same step then is."""
    pool = pool_of(FULL, SLIDING)
    ids = list(range(100, 300))
    sequence = Sequence.begin(pool, ids, BLOCK_TOKENS + 200)
    feed(sequence, ids[:70])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvchat.kvcache.sequence.write_block", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            feed(sequence, ids[70:])
    sequence.rollback()
    assert sequence.token_ids == ids[:70]
    feed(sequence, ids[70:])
    assert held_ids(sequence, 0, 1) == ids
    assert held_ids(sequence, 1, 0) == ids[-99:]


@pytest.mark.parametrize("at", range(1, 11))
@pytest.mark.parametrize("then", ["again", "closed"])
def test_a_move_that_fails_half_way_is_brought_to_its_end(at: int, then: str) -> None:
    """Many hot tokens move by fewer than they are, in pieces: none may be moved twice. Steps are
    computed in torch's inference mode, texts closed outside of it.
    """
    pool = pool_of(FULL, SLIDING)
    pool.storing = Storing(FormatPair.parse("int4"), FormatPair.parse("int4"))
    ids = list(range(1000, 1320))
    sequence = Sequence.begin(pool, [*ids, *range(40)], 320)
    with torch.inference_mode():
        sequence.resize_hot(400)
        feed(sequence, ids)
    assert len(sequence.keys) == 1  # 256 tokens stay, and move by 64
    right, calls = copy_tokens, 0

    def failing(*places: object) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise MemoryError
        right(*places)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvchat.kvcache.sequence.copy_tokens", failing)
        with suppress(MemoryError), torch.inference_mode():
            sequence.reserve(20)
    sequence.rollback()
    if then == "closed":
        sequence.close()
        sequence = Sequence.begin(pool, [*ids, *range(40)], 400)
        assert sequence.num_cached == len(ids)
    feed(sequence, list(range(20)))
    for group in range(2):
        keys, values = sequence.hot_views(group, 0, sequence.num_hot)
        expected = torch.tensor([*ids, *range(20)][sequence.start :]).float()
        assert torch.equal(keys[0, 0, :, 0], expected)
        assert torch.equal(values[0, 0, :, 0], -expected)
