"""Any order of beginning, feeding, evicting, failing, closing and dropping, over pools of every
kind of window: what attention would read is what was fed, every byte is accounted for, nothing is
lost.

The fed keys tell the whole text before them, so that KV of another text, place or layer shows.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from kvchat.kvcache import sequence as sequence_module
from kvchat.kvcache import slabs as slabs_module
from kvchat.kvcache.blocks import FP, Block, Geometry
from kvchat.kvcache.frame import kv_row, span_rows
from kvchat.kvcache.pool import Pool, PoolFull
from kvchat.kvcache.sequence import Sequence
from kvchat.kvcache.spans import Span
from kvchat.memory.footprint import BLOCK_TOKENS

CPU = torch.device("cpu")
FULL = Geometry((0, 2), 1, 1, 1, None, torch.float64)
ONLY_ITSELF = Geometry((1,), 1, 1, 2, 1, torch.float64)
NARROW = Geometry((3,), 1, 2, 1, 9, torch.float64)
WIDE = Geometry((4,), 1, 1, 1, 150, torch.float64)
POOLS = ((FULL,), (NARROW,), (FULL, NARROW), (FULL, WIDE, ONLY_ITSELF))
SIZES = st.sampled_from([1, 2, 20, 63, 64, 65, 100, 128, 200])
TOKENS = st.integers(0, 1)
HOSTS = st.sampled_from([0, 3, 8, 2**30])  # blocks that the host has room for
A_SPAN = 2.0**40  # between one layer's keys and the next one's; a text's number is below


def numbers(ids: list[int]) -> list[int]:
    """For each position a number that tells the text up to there."""
    found, number = [], 17
    for token in ids:
        number = (number * 1_000_003 + token + 1) % (2**40 - 87)
        found.append(number)
    return found


def fill(sequence: Sequence, new_ids: list[int]) -> None:
    """What a forward writes, into the places that were reserved."""
    told = torch.tensor(numbers([*sequence.token_ids, *new_ids])[-len(new_ids) :]).double()
    for group in range(len(sequence.pool.geometries)):
        start = sequence.num_hot
        keys, values = sequence.hot_views(group, start, start + len(new_ids))
        for layer in range(len(keys)):
            keys[layer] = told[None, :, None] + layer * A_SPAN
            values[layer] = -told[None, :, None] - layer * A_SPAN


def read(sequence: Sequence, group: int, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer as the next query sees them: runs, then the hot window."""
    found = [run.read(layer) for run in sequence.runs(group)]
    visible = sequence.pool.geometries[group].first_visible(sequence.num_cached)
    hot = sequence.hot_views(group, max(0, visible - sequence.start), sequence.num_hot)
    found.append((hot[0][layer][None], hot[1][layer][None]))
    _, skip = sequence.first_seen(group)
    keys = torch.cat([keys[:, 0, :, 0].flatten() for keys, _ in found])[skip:]
    values = torch.cat([values[:, 0, :, 0].flatten() for _, values in found])[skip:]
    return keys, values


@contextmanager
def failing_copy(at: int) -> Iterator[None]:
    """The at-th copy into a hot window or a block fails half-way, as on a device that is full."""
    right, written, calls = sequence_module.copy_tokens, sequence_module.write_block, 0

    def is_due() -> bool:
        nonlocal calls
        calls += 1
        return calls == at

    def copy(source: object, start: int, target: object, to_start: int, num: int) -> None:
        due = is_due()
        right(source, start, target, to_start, num // 2 if due else num)  # type: ignore[arg-type]
        if due:
            raise MemoryError

    def write(geometry: Geometry, block: Block, keys: Tensor, values: Tensor) -> None:
        due = is_due()
        written(geometry, block, keys, torch.zeros_like(values) if due else values)
        if due:
            raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence_module, "copy_tokens", copy)
        patch.setattr(sequence_module, "write_block", write)
        yield


class PoolMachine(RuleBasedStateMachine):
    @initialize(geometries=st.sampled_from(POOLS), originals=st.booleans(), on_host=HOSTS)
    def make(self, geometries: tuple[Geometry, ...], originals: bool, on_host: int) -> None:
        self.patch = pytest.MonkeyPatch()
        # Three blocks a slab, so that there are many slabs.
        self.patch.setattr(slabs_module, "SLAB_BYTES", 3 * geometries[0].block_bytes)
        self.pool = Pool(geometries, CPU, b"root")
        self.open: list[Sequence] = []
        self.texts: list[list[int]] = [[]]
        self.allowed: int | None = None
        self.pool.keep_originals = originals
        self.limit_host(on_host)

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
        assert not self.pool.index.blocks
        assert not self.pool.index.children
        assert not self.pool.index.tails

    # --- what a program does ----------------------------------------------------------------------

    @precondition(lambda self: len(self.open) < 4)
    @rule(
        text=st.integers(0, 20),
        cut=st.sampled_from([0, 0, 0, 1, 10, 64, 100, 170]),
        token=TOKENS,
        count=SIZES,
        capacity=st.sampled_from([BLOCK_TOKENS + 7, 100, 200]),
        fails_at=st.sampled_from([0] * 5 + [1, 2, 3]),
        is_read=st.booleans(),
    )
    def begin(
        self,
        text: int,
        cut: int,
        token: int,
        count: int,
        capacity: int,
        fails_at: int,
        is_read: bool,
    ) -> None:
        """A text that goes on from somewhere in an earlier one; it is read to its end, or not."""
        earlier = self.texts[text % len(self.texts)]
        ids = [*earlier[: max(0, len(earlier) - cut)], *[token] * count]
        before = self.pool.device_bytes
        try:
            with failing_copy(fails_at):
                sequence = Sequence.begin(self.pool, ids, capacity)
        except (PoolFull, MemoryError):
            assert self.pool.device_bytes <= before  # less where blocks were moved together
            return
        assert sequence.token_ids == ids[: sequence.num_cached]
        assert sequence.num_cached < len(ids)
        self.open.append(sequence)
        self.texts = [*self.texts[-20:], ids]
        chunk = capacity - BLOCK_TOKENS
        while is_read and sequence.num_cached < len(ids):
            before = sequence.num_cached
            self.step(sequence, ids[before : before + chunk], "commit")
            is_read = sequence.num_cached > before

    @precondition(lambda self: self.open)
    @rule(
        which=st.integers(0, 3),
        token=TOKENS,
        count=SIZES,
        ending=st.sampled_from(["commit"] * 5 + ["rollback", "broken commit"]),
        fails_at=st.integers(1, 6),
    )
    def feed(self, which: int, token: int, count: int, ending: str, fails_at: int) -> None:
        """A step that succeeds, fails in the forward, or fails while its blocks are sealed."""
        sequence = self.open[which % len(self.open)]
        self.step(sequence, [token] * count, ending, fails_at)
        self.texts = [*self.texts[-20:], list(sequence.token_ids)]

    def step(self, sequence: Sequence, new: list[int], ending: str, fails_at: int = 0) -> None:
        ids = list(sequence.token_ids)
        try:
            with failing_copy(fails_at if ending == "broken commit" else 0):
                sequence.reserve(len(new))
                fill(sequence, new)
                if ending != "rollback":
                    sequence.commit(new)
                    ids += new
        except (PoolFull, MemoryError):
            pass
        sequence.rollback()
        assert sequence.token_ids == ids

    @precondition(lambda self: self.open)
    @rule(
        which=st.integers(0, 3),
        capacity=st.integers(0, 200),
        fails_at=st.sampled_from([0, 0, 1, 2]),
    )
    def resize(self, which: int, capacity: int, fails_at: int) -> None:
        sequence = self.open[which % len(self.open)]
        before = self.pool.device_bytes
        with failing_copy(fails_at):
            done = sequence.shrink_hot(capacity)
        assert done or self.pool.device_bytes <= before

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 3), place=st.integers(0, 20))
    def evict(self, which: int, place: int) -> None:
        """A text does without a block; whoever else holds it still has it."""
        sequence = self.open[which % len(self.open)]
        if sequence.keys:
            before = self.used()
            freed = sequence.evict(place % len(sequence.keys))
            assert before[0] - self.used()[0] == freed

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 3), keep=st.booleans(), fails_at=st.sampled_from([0, 0, 0, 1]))
    def close(self, which: int, keep: bool, fails_at: int) -> None:
        sequence = self.open.pop(which % len(self.open))
        with failing_copy(fails_at):
            sequence.close(keep_tail=keep)

    @rule(share=st.floats(0, 1), whole_slabs=st.booleans(), to_host=st.booleans())
    def drop(self, share: float, whole_slabs: bool, to_host: bool) -> None:
        """What is idle goes, as much of it as was asked; bytes told are bytes that came back. What
        texts hold on the host stays there.
        """
        held = {id(one) for one in self.pool.index.all() if one.ref_count}
        wanted = int(share * self.pool.idle_bytes)
        idle, used = self.pool.idle_bytes, self.pool.device_bytes
        free = self.pool.free_block_bytes
        drop = self.pool.drop_idle_slabs if whole_slabs else self.pool.drop_idle
        _, freed = drop(wanted, to_host=to_host)
        assert held == {id(one) for one in self.pool.index.all() if one.ref_count}
        if whole_slabs:
            assert used - self.pool.device_bytes == freed
            assert freed >= wanted or not self.pool.idle_bytes
        else:
            assert freed >= wanted
            assert idle - self.pool.idle_bytes == freed
            assert used - self.pool.device_bytes + self.pool.free_block_bytes - free == freed

    @rule()
    def pack(self) -> None:
        """Blocks move; nothing else changes. No slab is left that others have room for."""
        idle, used = self.pool.idle_bytes, self.pool.device_bytes
        freed = self.pool.pack()
        assert used - self.pool.device_bytes == freed
        assert self.pool.idle_bytes == idle
        here = [one for one in self.pool.index.all() if one.tier == "device"]
        for slab, blocks in self.pool.on_device.by_slab(here).items():
            assert not self.pool.on_device.places_elsewhere(slab, blocks)

    @rule(which=st.integers(0, 50))
    def store_anew(self, which: int) -> None:
        """A block is written to another place, whoever holds it: in the formats that it has."""
        blocks = list(self.pool.index.all())
        if blocks:
            with suppress(PoolFull):
                assert self.pool.requantize(blocks[which % len(blocks)], FP) == 0

    @rule(which=st.integers(0, 50))
    def offload(self, which: int) -> None:
        self.change_tier(which, self.pool.offload, "host")

    @rule(which=st.integers(0, 50))
    def bring_back(self, which: int) -> None:
        self.change_tier(which, self.pool.bring_back, "device")

    def change_tier(self, which: int, move: Callable[[Block], int], to: str) -> None:
        """Bytes told are bytes that moved; without room the block stays where it is."""
        blocks = list(self.pool.index.all())
        if not blocks:
            return
        block = blocks[which % len(blocks)]
        before, used = block.tier, self.used()
        try:
            moved = move(block)
        except PoolFull:
            assert block.tier == before
            assert self.used()[0] == used[0]
            return
        assert block.tier == to
        assert moved == (0 if before == to else block.nbytes)
        assert abs(self.used()[0] - used[0]) == moved
        assert self.used()[1] <= used[1] + moved

    def used(self) -> tuple[int, int]:
        """Bytes of blocks on the device and on the host."""
        both = self.pool.on_device, self.pool.on_host
        device, host = (slabs.nbytes - slabs.free_bytes for slabs in both)
        return device, host

    @rule(blocks=HOSTS)
    def limit_host(self, blocks: int) -> None:
        """What texts hold there stays, also beyond a lower limit; what is idle goes."""
        limit = blocks * max(one.block_bytes for one in self.pool.geometries)
        self.pool.host_limit_bytes = limit
        self.pool.trim_host()
        assert self.pool.host_bytes <= limit or not list(self.pool.idle("host"))
        self.allowed_on_host = max(limit, self.pool.host_bytes)

    @rule(limit=st.sampled_from([None, None, 1000, 60, 20, 6]), floor=st.sampled_from([0, 150]))
    def limit(self, limit: int | None, floor: int) -> None:
        """The budget changes at any time, below what is held, too."""
        block = sum(g.block_bytes for g in self.pool.geometries)
        self.pool.limit_bytes = None if limit is None else limit * block // 2
        self.pool.hot_floor_bytes = floor * sum(g.bytes_per_token for g in self.pool.geometries)
        self.allowed = self.pool.device_bytes

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def attention_reads_what_was_fed(self) -> None:
        for sequence in getattr(self, "open", []):
            told = torch.tensor(numbers(sequence.token_ids)).double()
            for group, geometry in enumerate(self.pool.geometries):
                seen = torch.ones(len(told), dtype=torch.bool)
                seen[: geometry.first_visible(sequence.num_cached)] = False
                for place in sequence.evicted if geometry.window is None else ():
                    seen[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS] = False
                expected = told[seen]
                for layer in range(len(geometry.layers)):
                    keys, values = read(sequence, group, layer)
                    assert torch.equal(keys, expected + layer * A_SPAN)
                    assert torch.equal(values, -expected - layer * A_SPAN)

    @invariant()
    def every_block_is_held_by_whom_it_says(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        held = Counter(
            id(block) for one in self.open for table in one.tables for block in table if block
        )
        for block in self.pool.index.all():
            assert block.ref_count == held.pop(id(block), 0)
        assert not held  # an unsealed block between two steps
        for one in self.open:
            for geometry, table in zip(self.pool.geometries, one.tables, strict=True):
                assert len(table) == len(one.keys) == one.start // BLOCK_TOKENS
                left = geometry.first_visible(one.start) // BLOCK_TOKENS
                assert not any(table[:left])  # a window's blocks go once it has left them
                gone = one.evicted if geometry.window is None else frozenset()
                first = geometry.first_visible(one.num_cached) // BLOCK_TOKENS
                assert all(bool(table[i]) != (i in gone) for i in range(first, len(table)))

    @invariant()
    def every_byte_is_accounted_for(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        hot = sum(window.nbytes for one in self.open for window in one.hot)
        assert pool.hot_bytes == hot + pool.idle_tail_bytes
        assert pool.device_bytes == pool.slab_bytes + pool.hot_bytes
        slabs = [*pool.on_device.slabs, *pool.on_host.slabs]
        assert not any(slab.is_empty for slab in slabs)
        assert pool.host_bytes <= self.allowed_on_host
        if pool.limit_bytes is not None:
            assert self.allowed is not None
            assert pool.device_bytes <= max(pool.limit_bytes, self.allowed)
        assert pool.idle_bytes + pool.free_block_bytes <= pool.device_bytes

    @invariant()
    def frames_sum(self) -> None:
        for sequence in getattr(self, "open", []):
            for spans in spans_of(sequence.num_cached):
                rows = span_rows(sequence, spans)
                kv = kv_row(self.pool, sequence, sum(row["bytes"] for row in rows))
                assert min(kv.values()) >= 0
                assert min((row["bytes"] for row in rows), default=0) >= 0
                told = sum(row["bytes"] for row in rows)
                told += kv["slack_bytes"] + kv["hot_window_bytes"]
                on_host = sum(row["host_bytes"] for row in rows)
                assert on_host <= kv["host_bytes"] == self.pool.host_bytes
                assert told == kv["device_bytes"] == self.pool.device_bytes
                assert kv["slack_bytes"] >= kv["idle_bytes"]


def spans_of(count: int) -> list[list[Span]]:
    """A text cut in three, one with an empty piece, one that reaches beyond it, and none at all."""
    cuts = (0, count // 3, count // 3, count + 5)
    pieces = [
        Span("turn", str(i), i, start, stop) for i, (start, stop) in enumerate(pairwise(cuts))
    ]
    return [pieces, pieces[:2], []]


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=250, stateful_step_count=30, deadline=None)
