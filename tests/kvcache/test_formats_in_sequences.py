"""Texts whose blocks are stored in less than was computed: what attention reads is what the formats
kept of what was fed, the newest tokens exactly; and nobody reuses less than was allowed.

The fed vectors tell the whole text before them. A group of vectors too short to be stored otherwise
than as computed carries what each token was computed over, so that it can be read back from any
block, tail and copy.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from kvchat.arch.spec import ModelSpec
from kvchat.kvcache import slabs as slabs_module
from kvchat.kvcache.blocks import FP, Block, Geometry, Tier, read_block, shape_of
from kvchat.kvcache.frame import kv_row, span_rows
from kvchat.kvcache.pool import Pool, PoolFull, Storing
from kvchat.kvcache.quantize import (
    dequantize_keys,
    dequantize_values,
    quantize_keys,
    quantize_values,
)
from kvchat.kvcache.sequence import Sequence
from kvchat.kvcache.spans import Span
from kvchat.memory.formats import BLOCK_TOKENS, FORMATS, FormatPair, lower_of
from kvchat.planner.costs import Costs

CPU = torch.device("cpu")
FULL = Geometry((0, 2), 2, 8, 16, None, torch.float32)
SLIDING = Geometry((1,), 1, 16, 8, 100, torch.float32)
TOLD = Geometry((3,), 1, 1, 1, None, torch.float32)  # what each token was computed over
GROUPS = (FULL, SLIDING, TOLD)
_LOSS = {name: float(place) for place, name in enumerate(FORMATS)}
_PLACES = [FORMATS[name] for name in _LOSS]
_PRIMES = np.array([7919 * (i + 1) + 104729 * i * i for i in range(64)], np.int64)


def pair(text: str) -> FormatPair:
    return FormatPair.parse(text)


def storing(seal: str, floor: str = "int2", sink_tokens: int = 0) -> Storing:
    return Storing(pair(seal), pair(floor), sink_tokens)


def pool_with(stored: Storing, *geometries: Geometry) -> Pool:
    pool = Pool(geometries or GROUPS, CPU, b"root")
    pool.storing = stored
    return pool


# --- what is fed, and what it becomes -------------------------------------------------------------


def vectors(ids: list[int], geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Keys and values [layers, kv_heads, tokens, dim] of a text: a hash of the text up to there,
    the layer, the head and the dimension.
    """
    found, number = [], 17
    for token in ids:
        number = (number * 1_000_003 + token + 1) % (2**31 - 1)
        found.append(number)
    told = np.array(found, np.int64)
    parts = []
    for dim, sign in ((geometry.key_dim, 1), (geometry.value_dim, 3)):
        rows = []
        for layer in geometry.layers:
            for head in range(geometry.num_kv_heads):
                salt = sign + 10 * layer + 100 * head
                mixed = (told[:, None] * (_PRIMES[:dim] + salt)) % 65_537
                rows.append(mixed / 65_537 - 0.5)
        shape = (len(geometry.layers), geometry.num_kv_heads, len(ids), dim)
        parts.append(torch.tensor(np.array(rows), dtype=torch.float32).reshape(shape))
    return parts[0], parts[1]


def lost(
    values: tuple[Tensor, Tensor], geometry: Geometry, stored: FormatPair
) -> tuple[Tensor, Tensor]:
    """One block's keys and values after they were stored in these formats."""
    keys, values_ = values
    key, value = stored.key, stored.value
    return (
        dequantize_keys(quantize_keys(keys, key), key, geometry.key_dim, torch.float32),
        dequantize_values(
            quantize_values(values_, value), value, geometry.value_dim, torch.float32
        ),
    )


def read(sequence: Sequence, group: int) -> tuple[Tensor, Tensor]:
    """What the next query sees, [layers, kv_heads, tokens, dim]: runs, then the hot window."""
    geometry = sequence.pool.geometries[group]
    layers: tuple[list[Tensor], list[Tensor]] = ([], [])
    visible = geometry.first_visible(sequence.num_cached)
    hot = sequence.hot_views(group, max(0, visible - sequence.start), sequence.num_hot)
    _, skip = sequence.first_seen(group)
    for layer in range(len(geometry.layers)):
        for into, which in ((layers[0], 0), (layers[1], 1)):
            parts = [run.read(layer)[which] for run in sequence.runs(group)]
            sealed = [part.transpose(0, 1).flatten(1, 2) for part in parts]
            into.append(torch.cat([*sealed, hot[which][layer]], dim=1)[:, skip:])
    return torch.stack(layers[0]), torch.stack(layers[1])


def over_now(sequence: Sequence) -> FormatPair:
    """The lowest formats of what the next token would be computed over, as the told group says."""
    group = len(sequence.pool.geometries) - 1
    lowest = FP
    for table in sequence.tables:
        for block in table:
            if block is not None:
                lowest = lower_of(lowest, block.pair)
    keys, values = read(sequence, group)
    return lower_of(lowest, told_in(keys, values)) if keys.numel() else lowest


def told_in(keys: Tensor, values: Tensor) -> FormatPair:
    """The lowest formats that a piece of the told group's keys and values names."""
    return FormatPair(_PLACES[int(keys.max())], _PLACES[int(values.max())])


def fill(sequence: Sequence, new_ids: list[int]) -> None:
    """What a forward writes into the reserved places."""
    over = over_now(sequence)
    ids = [*sequence.token_ids, *new_ids]
    start = sequence.num_hot
    for group, geometry in enumerate(sequence.pool.geometries):
        keys, values = sequence.hot_views(group, start, start + len(new_ids))
        if geometry is TOLD:
            keys.fill_(_LOSS[over.key.name])
            values.fill_(_LOSS[over.value.name])
        else:
            told = vectors(ids, geometry)
            keys.copy_(told[0][:, :, -len(new_ids) :])
            values.copy_(told[1][:, :, -len(new_ids) :])


def feed(sequence: Sequence, ids: list[int], chunk: int = 64) -> None:
    """Reads up to the end of the ids, which begin with what is cached."""
    while sequence.num_cached < len(ids):
        new = ids[sequence.num_cached : sequence.num_cached + chunk]
        sequence.reserve(len(new))
        fill(sequence, new)
        sequence.commit(new)


def opened(pool: Pool, ids: list[int], chunk: int = 64) -> Sequence:
    """As an engine opens a text."""
    return Sequence.begin(pool, ids, pool.storing.hot_tokens + BLOCK_TOKENS + chunk)


def fed(pool: Pool, ids: list[int], chunk: int = 64) -> Sequence:
    sequence = opened(pool, ids, chunk)
    feed(sequence, ids, chunk)
    return sequence


def blocks(sequence: Sequence, group: int = 0) -> list[Block]:
    return [block for block in sequence.tables[group] if block is not None]


Stored = Callable[[Block], list[FormatPair]]


def only_sealed(block: Block) -> list[FormatPair]:
    return [block.pair]


def check_reading(sequence: Sequence, stored: Stored = only_sealed) -> None:
    """Sealed blocks are what their formats kept of what was fed; the hot window is as fed.

    `stored`: the formats that a block went through.
    """
    for group, geometry in enumerate(sequence.pool.geometries):
        if geometry is TOLD:
            continue
        keys, values = vectors(sequence.token_ids, geometry)
        for i, block in enumerate(sequence.tables[group]):
            if block is not None:
                tokens = slice(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS)
                kept = keys[:, :, tokens].clone(), values[:, :, tokens].clone()
                for one in stored(block):
                    kept = lost(kept, geometry, one)
                keys[:, :, tokens], values[:, :, tokens] = kept
        visible = geometry.first_visible(sequence.num_cached)
        found = read(sequence, group)
        for part, told in zip(found, (keys, values), strict=True):
            assert part.shape == told[:, :, visible:].shape
            assert torch.allclose(part, told[:, :, visible:], atol=1e-6, rtol=0)
            hot = min(sequence.num_hot, part.shape[2])
            assert torch.equal(part[:, :, part.shape[2] - hot :], told[:, :, told.shape[2] - hot :])


def check_lists(sequence: Sequence) -> None:
    """Block lists name the same blocks as the tables, each in the list of its formats."""
    for group in range(len(sequence.pool.geometries)):
        first, skip = sequence.first_seen(group)
        told = {}
        for one in sequence.lists(group):
            told[one.pair, one.tier] = one.addresses[: one.num_blocks].tolist()
            assert one.count.tolist() == [one.num_blocks]
            where = [
                place * BLOCK_TOKENS
                for place, block in enumerate(sequence.tables[group])
                if place >= first and block is not None
                if (block.pair, block.tier) == (one.pair, one.tier)
            ]
            assert sorted(one.positions[: one.num_blocks].tolist()) == where
        expected: dict[tuple[FormatPair, Tier], list[int]] = {}
        for block in sequence.tables[group][first:]:
            assert block is not None
            expected.setdefault((block.pair, block.tier), []).append(block.address)
        assert told == (expected or {(FP, "device"): []})
        skips = [one.skip for one in sequence.lists(group)]
        assert skips == [skip, *[0] * (len(skips) - 1)]
        oldest = sequence.tables[group][first:]
        if oldest and oldest[0] is not None:
            assert sequence.lists(group)[0].addresses[0] == oldest[0].address


STORED = (
    storing("int8"),
    storing("int6/int4"),
    storing("int4", sink_tokens=1),
    storing("fp/int8", sink_tokens=64),
    storing("int2", sink_tokens=130),
    storing("fp", floor="fp"),
)


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("chunk", [1, 50, 64, 200])
def test_what_is_read_is_what_was_fed_as_far_as_it_was_kept(stored: Storing, chunk: int) -> None:
    pool = pool_with(stored)
    ids = list(range(100, 600 if chunk > 1 else 420))
    sequence = opened(pool, ids, chunk)
    least = stored.hot_tokens
    num_sinks = -(-stored.sink_tokens // BLOCK_TOKENS)
    while sequence.num_cached < len(ids):
        sealed = len(sequence.keys)
        feed(sequence, ids[: sequence.num_cached + chunk], chunk)
        assert sequence.num_hot >= min(least, sequence.num_cached)
        assert sequence.num_hot < least + BLOCK_TOKENS
        if len(sequence.keys) > sealed or sequence.num_cached == len(ids):
            check_reading(sequence)
            check_lists(sequence)
    for group in (0, 1):
        for i, block in enumerate(sequence.tables[group]):
            assert block is None or block.pair == (FP if i < num_sinks else stored.seal)
    assert all(block.pair == FP for block in blocks(sequence, 2))
    pool.check_integrity()
    sequence.close(keep_tail=False)
    pool.check_integrity(0)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_a_next_turn_recomputes_nothing_and_a_crop_little(stored: Storing) -> None:
    """The tail is taken whole. After a cut at any place at most 64 + R tokens are read again."""
    ids = list(range(100, 720))
    for cut in (620, 619, 600, 577, 576, 575, 500, 400, 321, 320, 319, 200, 65, 64, 63, 1):
        pool = pool_with(stored)
        fed(pool, ids).close()
        again = opened(pool, [*ids[:cut], 7, 8, 9])
        read_again = cut - again.num_cached
        if cut == len(ids):
            assert read_again == 0
        assert read_again <= BLOCK_TOKENS + stored.hot_tokens
        check_reading(again)
        feed(again, [*ids[:cut], 7, 8, 9])
        check_reading(again)
        check_lists(again)
        again.close()
        pool.check_integrity(0)


def test_a_crop_to_nothing_and_a_text_beyond_the_end() -> None:
    pool = pool_with(storing("int8"))
    ids = list(range(100, 500))
    fed(pool, ids).close()
    for text, expected in (([5], 0), (ids[:1], 0), (ids, 399), ([*ids, *range(300)], 400)):
        again = opened(pool, text)
        assert again.num_cached == expected
        feed(again, text)
        check_reading(again)
        again.close()
    pool.check_integrity(0)


# --- what may be reused ---------------------------------------------------------------------------


@pytest.mark.parametrize("seal", ["int8", "int6/int4", "int4", "fp/int8", "int8/fp"])
def test_a_text_as_computed_reuses_only_what_is_computed_over_it(seal: str) -> None:
    """Sinks, and the tail where nothing was sealed before it; else all is read again."""
    pool = pool_with(storing(seal, sink_tokens=64))
    ids = list(range(100, 700))
    fed(pool, ids).close()
    pool.storing = storing("fp", floor="fp")
    plain = opened(pool, [*ids, 5])
    assert plain.num_cached == 64
    feed(plain, [*ids, 5])
    assert over_now(plain) == plain.over == FP
    check_reading(plain)
    plain.close()
    pool.storing = storing(seal, floor=seal)
    best = opened(pool, [*ids, 5])
    assert best.num_cached == 600
    assert {block.pair for block in blocks(best)} == {FP}, "the better copies"
    check_reading(best)
    best.close()
    pool.check_integrity(0)


def test_a_floor_between() -> None:
    """A text that allows int8 takes no int4, takes int8, and keys count apart from values."""
    pool = pool_with(storing("int6/int4"))
    ids = list(range(100, 700))
    fed(pool, ids).close()
    for floor, reused in (("int8", 0), ("int6", 0), ("fp/int4", 0), ("int6/int4", 600)):
        pool.storing = storing("int6/int4", floor=floor)
        again = opened(pool, [*ids, 5])
        assert again.num_cached == reused
        again.close()
    pool.storing = storing("int8", floor="int8")
    fed(pool, ids).close()
    pool.storing = storing("int4", floor="int6")
    again = opened(pool, [*ids, 5])
    assert {str(block.pair) for block in blocks(again)} == {"int8/int8"}
    check_reading(again)
    feed(again, [*ids, *range(500)])
    check_reading(again)
    check_lists(again)
    again.close()
    pool.check_integrity(0)


def test_a_long_tail_fits_a_text_with_a_short_hot_window() -> None:
    """Under int4 up to 319 tokens are as computed; a text as computed takes over all of them."""
    pool = pool_with(storing("int4"))
    ids = list(range(100, 400))
    fed(pool, ids).close()
    pool.storing = storing("fp", floor="fp")
    plain = Sequence.begin(pool, [*ids, 5], BLOCK_TOKENS + 32)
    assert plain.num_cached == 300
    check_reading(plain)
    feed(plain, [*ids, 5], 32)
    check_reading(plain)
    assert plain.num_hot < BLOCK_TOKENS
    plain.close()
    pool.check_integrity(0)


def test_a_tail_brings_along_what_it_was_computed_over() -> None:
    """Its blocks are there in a better copy, too: what follows it is not computed over that."""
    pool = pool_with(storing("fp", floor="fp"))
    ids = list(range(100, 300))
    fed(pool, ids[:130]).close(keep_tail=False)
    pool.storing = storing("int8", floor="int8")
    for block in list(pool.index.all()):
        pool.requantize(block, pool.geometries[block.group].served(pair("int8")))
    fed(pool, ids).close()
    pool.storing = storing("fp", floor="fp")
    fed(pool, ids[:130]).close(keep_tail=False)
    pool.storing = storing("fp", floor="int8")
    mixed = opened(pool, [*ids, *range(200)])
    assert {block.pair for block in blocks(mixed)} == {FP}
    assert mixed.num_cached == 200
    feed(mixed, [*ids, *range(200)])
    assert not mixed.over.at_least(FP)
    mixed.close()
    pool.storing = storing("fp", floor="fp")
    plain = opened(pool, [*ids, *range(200)])
    assert plain.num_cached == 128
    plain.close()


def test_a_block_stored_anew_under_two_texts_is_read_so_by_both() -> None:
    pool = pool_with(storing("fp", floor="fp"))
    ids = list(range(100, 500))
    one, two = fed(pool, ids), fed(pool, [*ids, 5])
    shared = blocks(one)[2]
    assert shared.ref_count == 2
    before = pool.device_bytes - pool.free_block_bytes
    freed = pool.requantize(shared, pair("int6/int4"))
    assert freed == FULL.block_bytes - shape_of(FULL, pair("int6/int4")).block_bytes
    assert before - (pool.device_bytes - pool.free_block_bytes) == freed
    for text in (one, two):
        check_reading(text)
        check_lists(text)
    pool.check_integrity()
    one.close()
    two.close()
    pool.check_integrity(0)


def test_what_is_computed_over_a_block_stored_anew_is_not_as_computed() -> None:
    """The text's older block is lowered while it grows; another text has it as computed again."""
    pool = pool_with(storing("fp", floor="fp"))
    ids = list(range(100, 700))
    one = fed(pool, ids[:200])
    pool.requantize(blocks(one)[0], pair("int4"))
    feed(one, ids)
    assert not one.over.at_least(FP)
    one.close()
    two = opened(pool, ids[:201])
    assert two.num_cached == 0
    feed(two, ids[:201])
    two.close()
    plain = opened(pool, [*ids, 5])
    assert over_now(plain) == FP
    assert plain.num_cached <= 201
    plain.close()


def test_a_block_that_is_raised_stays_what_it_lost() -> None:
    """Stored as computed after int4, it still is no better than int4 for those who ask."""
    pool = pool_with(storing("fp", floor="fp"))
    ids = list(range(100, 300))
    one = fed(pool, ids)
    block = blocks(one)[0]
    pool.requantize(block, pair("int4"))
    pool.requantize(block, FP)
    check_reading(one, lambda b: [pair("int4"), FP] if b is block else [b.pair])
    one.close()
    assert opened(pool, [*ids, 5]).num_cached == 0
    pool.storing = storing("fp", floor="int4")
    assert opened(pool, [*ids, 5]).num_cached == 200


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 63, 64, 300, 319, 320, 321, 448, 700])
def test_costs_are_what_the_pool_allocates(stored: Storing, num_tokens: int) -> None:
    """Full layers to the byte; with sliding ones at least what is used, at every step."""
    spec = ModelSpec.__new__(ModelSpec)
    ids, chunk = list(range(num_tokens)), 50
    for geometries in ((FULL,), (SLIDING,), (FULL, SLIDING)):
        pool = pool_with(stored, *geometries)
        costs = Costs(spec, pool.geometries, 4, 0, "cpu", stored)
        sequence = opened(pool, ids, min(chunk, num_tokens))
        while sequence.num_cached < num_tokens:
            new = ids[sequence.num_cached : sequence.num_cached + chunk]
            sequence.reserve(len(new))
            sequence.commit(new)
            used = pool.slab_bytes - pool.free_block_bytes - pool.idle_bytes
            planned = costs.blocks_bytes(sequence.num_cached, chunk)
            assert used <= planned
            assert used == planned or SLIDING in geometries
            assert pool.hot_bytes == costs.hot_bytes(num_tokens, min(chunk, num_tokens))


# --- anything in any order ------------------------------------------------------------------------

STORINGS = st.builds(
    storing,
    st.sampled_from(["fp", "int8", "int6/int4", "int4", "fp/int8", "int8/fp"]),
    st.sampled_from(["fp", "int8", "int4", "int2", "fp/int4"]),
    st.sampled_from([0, 0, 64, 100]),
)


class FormatMachine(RuleBasedStateMachine):
    """Texts begin under any way of storing; blocks are stored anew, moved and dropped."""

    @initialize(stored=STORINGS, originals=st.booleans(), on_host=st.sampled_from([0, 5, 2**30]))
    def make(self, stored: Storing, originals: bool, on_host: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(slabs_module, "SLAB_BYTES", 3 * FULL.block_bytes)
        self.pool = pool_with(stored)
        self.pool.keep_originals = originals
        self.pool.host_limit_bytes = on_host * FULL.block_bytes
        self.open: list[Sequence] = []
        self.texts: list[list[int]] = [[]]
        # A block by its identity: the formats that it went through. Kept, so that ids stay apart.
        self.stored: dict[Block, list[FormatPair]] = {}

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for sequence in self.open:
            sequence.close()
        self.pool.check_integrity(0)
        self.pool.drop_idle(2**60)
        self.pool.host_limit_bytes = 0
        self.pool.trim_host()
        self.patch.undo()
        assert self.pool.device_bytes == self.pool.host_bytes == 0

    @rule(stored=STORINGS)
    def store_otherwise(self, stored: Storing) -> None:
        self.pool.storing = stored

    @precondition(lambda self: len(self.open) < 3)
    @rule(
        text=st.integers(0, 9),
        cut=st.sampled_from([0, 0, 0, 1, 64, 100, 330]),
        token=st.integers(0, 1),
        count=st.sampled_from([1, 70, 200, 400]),
        chunk=st.sampled_from([1, 32, 100]),
        is_read=st.booleans(),
    )
    def begin(self, text: int, cut: int, token: int, count: int, chunk: int, is_read: bool) -> None:
        earlier = self.texts[text % len(self.texts)]
        ids = [*earlier[: max(0, len(earlier) - cut)], *[token] * count]
        sequence = opened(self.pool, ids, chunk)
        floor = sequence.storing.floor
        assert over_now(sequence).at_least(floor)
        assert sequence.over.at_least(floor)
        assert sequence.token_ids == ids[: sequence.num_cached]
        self.open.append(sequence)
        self.texts = [*self.texts[-8:], ids]
        if is_read:
            feed(sequence, ids, max(20, chunk))
            assert sequence.num_hot < sequence.storing.hot_tokens + BLOCK_TOKENS

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 3), token=st.integers(0, 1), count=st.sampled_from([1, 64, 150]))
    def feed(self, which: int, token: int, count: int) -> None:
        sequence = self.open[which % len(self.open)]
        sealed = len(sequence.keys)
        feed(sequence, [*sequence.token_ids, *[token] * count], count)
        least = sequence.storing.hot_tokens
        assert sequence.num_hot < least + BLOCK_TOKENS
        assert len(sequence.keys) == sealed or sequence.num_hot >= least
        self.texts = [*self.texts[-8:], list(sequence.token_ids)]

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 3), keep=st.booleans())
    def close(self, which: int, keep: bool) -> None:
        self.open.pop(which % len(self.open)).close(keep_tail=keep)

    @rule(which=st.integers(0, 99), to=st.sampled_from(["int8", "int4", "int2/int8", "fp"]))
    def requantize(self, which: int, to: str) -> None:
        found = list(self.pool.index.all())
        if found:
            block = found[which % len(found)]
            made = self.pool.geometries[block.group].served(pair(to))
            if self.change(block, lambda: self.pool.requantize(block, made)):
                assert block.pair == made

    @rule(which=st.integers(0, 99), to=st.sampled_from(["fp", "int8", "int4"]))
    def raise_block(self, which: int, to: str) -> None:
        """Never lower than it was, never better than what is held."""
        found = list(self.pool.index.all())
        if found:
            block = found[which % len(found)]
            before, over, best = block.pair, block.over, self.pool.best_copy(block)
            self.change(block, lambda: self.pool.raise_block(block, pair(to)))
            assert block.pair.at_least(before)
            assert best.pair.at_least(block.pair)
            if best is block:
                assert (block.pair, block.over) == (before, over)

    def change(self, block: Block, act: Callable[[], int]) -> bool:
        """Follows what a block, and a copy of it that is left on the host, went through. False
        where there was no room: only on the host, and nothing is changed then.
        """
        source = self.pool.best_copy(block)
        own = self.stored.get(block, [block.pair])
        through = self.stored.get(source, [source.pair])
        there, before = set(self.pool.index.all()), (block.pair, block.over)
        used, of_source = self.used(block), source.pair
        try:
            changed = act()
        except PoolFull:
            assert block.tier == "host"
            assert (block.pair, block.over) == before
            return False
        assert abs(changed) == abs(self.used(block) - used)
        if (block.pair, block.over) != before:
            last = [] if block.pair == of_source else [block.pair]
            self.stored[block] = [*through, *last]
        for one in set(self.pool.index.all()) - there:
            assert one.tier == "host"
            self.stored[one] = own
        return True

    def used(self, block: Block) -> int:
        slabs = self.pool.on_host if block.tier == "host" else self.pool.on_device
        return slabs.nbytes - slabs.free_bytes

    @rule(which=st.integers(0, 99), to_host=st.booleans())
    def change_tier(self, which: int, to_host: bool) -> None:
        found = list(self.pool.index.all())
        if found:
            move = self.pool.offload if to_host else self.pool.bring_back
            with suppress(PoolFull):
                move(found[which % len(found)])

    @rule(share=st.sampled_from([0.1, 0.5, 1.0]), to_host=st.booleans())
    def drop(self, share: float, to_host: bool) -> None:
        self.pool.drop_idle(int(share * self.pool.idle_bytes), to_host=to_host)

    @rule()
    def pack(self) -> None:
        self.pool.pack()

    @invariant()
    def attention_reads_what_was_kept(self) -> None:
        for sequence in getattr(self, "open", []):
            check_reading(sequence, lambda block: self.stored.get(block, [block.pair]))
            check_lists(sequence)
            # What it says of itself is no better than what it is.
            assert sequence.num_cached == 0 or over_now(sequence).at_least(self.worst(sequence))

    def worst(self, sequence: Sequence) -> FormatPair:
        """What the text will be said to be computed over, once its next forward begins."""
        lowest = sequence.over
        for table in sequence.tables:
            for block in table:
                if block is not None:
                    lowest = lower_of(lowest, block.pair)
        return lowest

    @invariant()
    def nothing_says_that_it_is_better_than_it_is(self) -> None:
        """Blocks and tails: what they were computed over, as told within and as said outside."""
        if not hasattr(self, "pool"):
            return
        told = len(GROUPS) - 1
        for block in self.pool.index.all():
            if block.group == told:
                assert told_in(*read_block(TOLD, block)).at_least(block.over)
        for tail in self.pool.index.tails:
            hot, num = tail.hot[told], len(tail.token_ids)
            assert told_in(hot.keys[:, :, :num], hot.values[:, :, :num]).at_least(tail.over)

    @invariant()
    def every_byte_is_accounted_for(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        pool.check_integrity()
        hot = sum(window.nbytes for one in self.open for window in one.hot)
        assert pool.hot_bytes == hot + pool.idle_tail_bytes
        for sequence in self.open:
            cuts = (0, sequence.num_cached // 3, sequence.num_cached)
            spans = [Span("turn", str(i), i, *cut) for i, cut in enumerate(pairwise(cuts))]
            rows = span_rows(sequence, spans)
            for row in rows:
                assert row["bytes"] == sum(row["formats"].values())
            kv = kv_row(pool, sequence, sum(row["bytes"] for row in rows))
            assert min(kv.values()) >= 0
            held = [block for table in sequence.tables for block in table if block]
            on_host = sum(block.nbytes for block in held if block.tier == "host")
            on_device = sum(block.nbytes for block in held) - on_host
            in_hot = sequence.num_hot * sum(g.bytes_per_token for g in GROUPS)
            assert sum(row["bytes"] for row in rows) == on_device + in_hot
            assert sum(row["host_bytes"] for row in rows) == on_host
            for row in rows:
                tiers = (bool(row["bytes"]), bool(row["host_bytes"]))
                names = {(True, True): "mixed", (True, False): "device", (False, True): "host"}
                assert row["tier"] == names.get(tiers)


TestFormatMachine = FormatMachine.TestCase
TestFormatMachine.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
