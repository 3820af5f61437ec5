"""What is written is what is read: every pair of formats and the newest tokens, bit for bit."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.kvcache.blocks import FP, Geometry
from kvchat.kvcache.disk import KVFolder
from kvchat.kvcache.pool import Pool, Storing
from kvchat.kvcache.sequence import Sequence
from kvchat.kvcache.tiers import DiskPlace, DiskTier
from kvchat.memory.formats import BLOCK_TOKENS, FORMATS, FormatPair
from kvchat.units import GIB

CPU = torch.device("cpu")
FULL = Geometry((0, 2), 2, 64, 80, None, torch.float32)
HALF = Geometry((0, 1, 2), 1, 32, 32, None, torch.bfloat16)
SLIDING = Geometry((1,), 1, 16, 8, 100, torch.float32)
LEAST = FormatPair.parse("int2")
PAIRS = [FormatPair(key, value) for key in FORMATS.values() for value in FORMATS.values()]


def pool_of(geometries: tuple[Geometry, ...], storing: Storing) -> Pool:
    pool = Pool(geometries, CPU, b"root")
    pool.storing = storing
    return pool


def tier_of(pool: Pool, folder: Path, formats: FormatPair = FP) -> DiskTier:
    tier = DiskTier(pool, DiskPlace(KVFolder(folder), b"weights"))
    tier.quota_bytes, tier.formats = GIB, formats
    return tier


def fed(pool: Pool, ids: list[int], seed: int = 0) -> Sequence:
    """A text of random keys and values."""
    generator = torch.Generator().manual_seed(seed)
    sequence = Sequence.begin(pool, ids, 400)
    while sequence.num_cached < len(ids):
        piece = ids[sequence.num_cached : sequence.num_cached + 100]
        sequence.reserve(len(piece))
        for group in range(len(pool.geometries)):
            start = sequence.num_hot
            for part in sequence.hot_views(group, start, start + len(piece)):
                part.copy_(torch.randn(part.shape, generator=generator))
        sequence.commit(piece)
    return sequence


def kept(pool: Pool, sequence: Sequence, folder: Path, chat: str = "c") -> None:
    tier = tier_of(pool, folder)
    tier.keep(chat, sequence)
    tier.close(20)


def held(pool: Pool) -> dict[tuple[bytes, int], tuple[str, str, bytes]]:
    """Every sealed block's formats and bytes."""
    return {
        (block.key or b"", block.group): (
            str(block.pair),
            str(block.over),
            block.slab.memory[block.start : block.stop].numpy().tobytes(),
        )
        for block in pool.index.all()
    }


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("geometry", [FULL, HALF], ids=["fp32", "bf16"])
def test_blocks_and_tail_come_back_as_they_were(
    tmp_path: Path, pair: FormatPair, geometry: Geometry
) -> None:
    storing = Storing(pair, LEAST, 64)
    ids = list(range(500))
    pool = pool_of((geometry,), storing)
    sequence = fed(pool, ids)
    tier = tier_of(pool, tmp_path, pair)
    tier.keep("c", sequence)
    tier.close(20)
    again = pool_of((geometry,), storing)
    found = tier_of(again, tmp_path).restore([*ids, 7])
    assert found is not None
    assert found.num_tokens == len(ids)
    assert held(again) == held(pool)
    other = Sequence.begin(again, [*ids, 7], 400)
    assert other.num_cached == len(ids)
    assert other.over == sequence.over
    num = sequence.num_hot
    for mine, theirs in zip(other.hot_views(0, 0, num), sequence.hot_views(0, 0, num), strict=True):
        assert torch.equal(mine, theirs)
    other.close()
    again.check_integrity(0)


@given(
    first=st.lists(st.integers(0, 2), min_size=1, max_size=400),
    second=st.lists(st.integers(0, 2), min_size=1, max_size=400),
    seal=st.sampled_from(["fp", "int8", "int6/int4"]),
    sinks=st.sampled_from([0, 64]),
)
@settings(max_examples=40, deadline=None)
def test_a_restored_text_reuses_what_one_that_stayed_would(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[int],
    second: list[int],
    seal: str,
    sinks: int,
) -> None:
    """Whatever the second text has in common with the first: as many tokens as in a pool that was
    never emptied, less what only a block that is as computed could give in part.
    """
    folder = tmp_path_factory.mktemp("kv")
    storing = Storing(FormatPair.parse(seal), LEAST, sinks)
    second = first[: len(second) // 2] + second
    pool = pool_of((FULL, SLIDING), storing)
    sequence = fed(pool, first)
    kept(pool, sequence, folder)
    sequence.close()
    stayed = pool.index.match(second, storing.floor, storing.hot_tokens).num_tokens
    again = pool_of((FULL, SLIDING), storing)
    tier_of(again, folder).restore(second)
    restored = again.index.match(second, storing.floor, storing.hot_tokens).num_tokens
    assert stayed - BLOCK_TOKENS < restored <= stayed
    one = held(pool)
    assert all(one[name] == block for name, block in held(again).items())
    again.check_integrity(0)


def test_a_longer_text_leaves_no_file_of_its_shorter_tail(tmp_path: Path) -> None:
    pool = pool_of((FULL,), Storing())
    ids = list(range(100))
    for stop in (70, 90, 100):
        sequence = fed(pool, ids[:stop])
        kept(pool, sequence, tmp_path)
        sequence.close()
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2  # one block; one tail


def test_a_file_that_no_chat_needs_goes_at_the_start(tmp_path: Path) -> None:
    """Nobody could delete it: so it is with all where the names of chats were lost."""
    pool = pool_of((FULL,), Storing())
    kept(pool, fed(pool, list(range(200))), tmp_path)
    (tmp_path / "chats.json").write_text("[")
    again = pool_of((FULL,), Storing())
    assert tier_of(again, tmp_path).restore(list(range(201))) is None
    assert list(tmp_path.glob("*/*")) == []
