"""What layers read during a forward: tiles of the prefix, and tables that stay where they are."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kvchat.attention import flash, forward, reference
from kvchat.attention.backend import Scoring
from kvchat.attention.triton_paged.standing import StandingTables
from kvchat.engine.local import Text
from kvchat.kvcache.pool import Storing
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from tests.attention.test_mixed_formats import made, random_ids, read

INT8 = FormatPair.parse("int8")


def mixed(length: int) -> Text:
    """A text in three formats, whose blocks of one format do not all lie side by side."""
    local = made("llama", Storing(INT8, FormatPair.parse("int4"), 64))
    text = read(local, random_ids(length, 1), 100)
    for block in text.sequence.tables[0][2::3]:
        assert block is not None
        local.pool.requantize(block, FormatPair.parse("int6/int4"))
    return text


@pytest.mark.parametrize("tile_blocks", [1, 2, 3, 16])
def test_tiles_are_the_prefix_and_no_longer_than_said(
    tile_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "TILE_BLOCKS", tile_blocks)
    text = mixed(550)
    sequence = text.sequence
    sequence.reserve(9)
    text.forward.begin()
    whole = text.forward.gathered(0, 1)
    found, places = [], set()
    for keys, values in text.forward.tiles(0, 1):
        assert keys.shape[1] <= max(tile_blocks * BLOCK_TOKENS, sequence.num_hot)
        places.add(keys.data_ptr())
        found.append((keys.clone(), values.clone()))
    for part in (0, 1):
        assert torch.equal(torch.cat([tile[part] for tile in found], dim=1), whole[part])
    assert len(places) == 2  # the one workspace, and the hot window where it lies
    assert len(found) == -(-len(sequence.keys) // tile_blocks) + 1


@pytest.mark.parametrize("tile_blocks", [1, 3])
def test_a_chunk_over_tiles_is_the_reference(
    tile_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "TILE_BLOCKS", tile_blocks)
    text = mixed(550)
    text.sequence.reserve(40)
    text.forward.begin()
    layer = text.cache.layers[1]
    random = torch.Generator().manual_seed(2)
    keys, values = (torch.randn(1, 2, 40, 16, generator=random) for _ in range(2))
    layer.update(keys, values, kwargs={})
    query = torch.randn(1, 4, 40, 16, generator=random)
    scoring = Scoring(0.25)
    found = flash.attend_cpu(query, layer, scoring)
    assert (found - reference.attend(query, layer, scoring)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_tiles_are_as_near_as_one_piece_in_narrow_dtypes(dtype: torch.dtype) -> None:
    """What is summed over the tiles is not rounded at each of them."""
    num_old, num_new, dim = 4096, 16, 32
    random = torch.Generator().manual_seed(4)
    query = (1.5 * torch.randn(1, 2, num_new, dim, generator=random)).to(dtype)
    keys = torch.randn(1, num_old + num_new, dim, generator=random).to(dtype)
    values = (1 + torch.randn(1, num_old + num_new, dim, generator=random)).to(dtype)

    class Tiled:
        window = None
        new = keys[:, num_old:], values[:, num_old:]

        def tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
            for start in range(0, num_old, 64):
                yield keys[:, start : start + 64], values[:, start : start + 64]

    scoring = Scoring(dim**-0.5)
    right = reference.attend_dense(query.float(), keys, values, scoring, None)
    whole = flash.attend_joined(query, keys, values, scoring, None)
    found = flash.attend_cpu(query, Tiled(), scoring)  # type: ignore[arg-type]
    assert found.dtype == dtype
    assert (found.float() - right).norm() < 1.2 * (whole.float() - right).norm()


def test_tables_stay_where_they_are_while_blocks_are_sealed() -> None:
    """What a captured step would read: the same tensors in every step, with new numbers in them."""
    local = made("llama", Storing(INT8, INT8))
    text = read(local, random_ids(300, 3), 100)
    sequence, tables = text.sequence, StandingTables(text.sequence)
    numbers, counts, first = [], [], None
    for step in range(70):
        sequence.reserve(1)
        tables.begin()
        table = tables.of(0, 1)
        first = first or table
        assert table is first
        numbers.append([*table.query_position.tolist(), *table.hot.span.tolist()])
        counts.append(int(table.sealed[0].count))
        row = torch.full((2, 1, 16), float(step))
        tables.write(0, 1, row, -row)
        position, start, stop, at = numbers[-1]
        assert position == at + stop - start - 1 == sequence.num_cached
        assert torch.equal(table.hot.keys[:, stop - 1 : stop], row)
        assert torch.equal(table.hot.values[:, stop - 1 : stop], -row)
        sequence.commit([5])
    assert counts[0] + 1 == counts[-1] == len(sequence.keys)
    (blocks,) = first.sealed
    lying = [(block.address, 64 * i) for i, block in enumerate(sequence.tables[0]) if block]
    assert (
        list(zip(blocks.addresses.tolist(), blocks.positions.tolist(), strict=True))[: counts[-1]]
        == lying
    )
