"""The slabs of one tier: allocations of bytes in which blocks of any size have their places.

Slabs grow with what is held, so that free places are a small part of it. Each is made for blocks of
one size; where the limit leaves no room for another, holes of other slabs serve as well. An empty
slab goes back at once. Knows no name, no format and no text; how much may still be allocated, and
which blocks lie here, it is told.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

from kvchat.device.oom import is_out_of_memory
from kvchat.kvcache.blocks import Block, Slab, Tier

SLAB_BYTES = 32 * 1024**2
SLAB_PART = 32  # a new slab is at most this part of what is held: 3 % may stand free

Place = tuple[Slab, int]


class PoolFull(Exception):
    """An allocation would pass the limit. Caught by the guard, which acts on `needed_bytes`.

    `for_hot`: a hot window was wanted, which free places in slabs do not serve.
    """

    def __init__(self, needed_bytes: int, *, for_hot: bool = False) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes
        self.for_hot = for_hot


class Slabs:
    """`device`: where blocks are computed; those of the tier `host` lie in the system's memory,
    pinned where the device is a CUDA one, so that its kernels can read them there.
    """

    def __init__(self, device: torch.device, tier: Tier = "device") -> None:
        self.tier = tier
        self.slabs: list[Slab] = []
        self.num_moved = 0  # blocks that are no longer where they were
        self._device = torch.device("cpu") if tier == "host" else device
        self._pinned = tier == "host" and device.type == "cuda"

    @property
    def nbytes(self) -> int:
        return sum(slab.nbytes for slab in self.slabs)

    @property
    def free_bytes(self) -> int:
        """Places that hold no block."""
        return sum(slab.free_bytes for slab in self.slabs)

    def num_places(self, num_bytes: int) -> int:
        """Free places in the slabs that were made for blocks of this size."""
        return sum(
            (stop - start) // num_bytes
            for slab in self.slabs
            if slab.unit_bytes == num_bytes
            for start, stop in slab.holes
        )

    # --- places -----------------------------------------------------------------------------------

    def take(
        self, num_bytes: int, wanted_bytes: int, left_bytes: int | None, after: Block | None = None
    ) -> Place:
        """A place for a block of that size, next to `after` where there is room. Raises PoolFull.

        `wanted_bytes`: with those that come after it. `left_bytes`: what may still be allocated;
        None where only the memory itself limits it.
        """
        found = self._found(num_bytes, left_bytes, after)
        slab, start = found or (self._grown(num_bytes, wanted_bytes, left_bytes), 0)
        slab.take(start, num_bytes)
        return slab, start

    def _found(self, num_bytes: int, left_bytes: int | None, after: Block | None) -> Place | None:
        fits = after is not None and after.nbytes == num_bytes and after.tier == self.tier
        if after is not None and fits and after.slab.has(after.stop, num_bytes):
            return after.slab, after.stop
        own = [slab for slab in self.slabs if slab.unit_bytes == num_bytes]
        found = _largest_hole(own, num_bytes)
        if found is None and left_bytes is not None and left_bytes < num_bytes:
            found = _smallest_hole(self.slabs, num_bytes)
        return found

    def _grown(self, num_bytes: int, wanted_bytes: int, left_bytes: int | None) -> Slab:
        """One more slab, near the limit a smaller one: others need room too."""
        usual = min(SLAB_BYTES, max(self.nbytes // SLAB_PART, wanted_bytes))
        if self._pinned:
            usual = SLAB_BYTES  # torch rounds pinned memory up to a power of two, and it is slow
        usual = max(usual, num_bytes)
        if left_bytes is not None:
            if left_bytes < min(usual, wanted_bytes):
                raise PoolFull(min(usual, wanted_bytes) - left_bytes)
            usual = min(usual, max(wanted_bytes, left_bytes // 4))
        size = max(1, usual // num_bytes) * num_bytes
        slab = Slab(size, num_bytes, self._device, self.tier, pinned=self._pinned)
        self.slabs.append(slab)
        return slab

    def give(self, place: Place, num_bytes: int) -> None:
        """A place is free again; its slab goes back if that was all of it."""
        slab, start = place
        slab.give(start, num_bytes)
        if slab.is_empty:
            self.slabs.remove(slab)

    def exchange(self, block: Block, made: Tensor, left_bytes: int | None) -> Place:
        """Stores bytes, uint8 [n], no more than the block had, whose own place is free then.
        Returns where they are. Where there is no room it is made in what that leaves, so there
        always is.
        """
        num_bytes, slab = made.shape[0], block.slab
        assert num_bytes <= block.nbytes
        place = self._taken(num_bytes, left_bytes)
        if place is None and slab.free_bytes + block.nbytes == slab.nbytes > num_bytes:
            # A smaller slab instead: what it would leave in its own would serve nobody.
            place = self._taken(num_bytes, (left_bytes or 0) + slab.nbytes)
        if place is None:
            return self._exchange_within(block, made)
        with self.filling(place, num_bytes) as memory:
            memory.copy_(made)
        self.give((slab, block.start), block.nbytes)
        return place

    def _taken(self, num_bytes: int, left_bytes: int | None) -> Place | None:
        """A place, or None where neither the limit nor the memory itself leaves room for one."""
        try:
            return self.take(num_bytes, num_bytes, left_bytes)
        except PoolFull:
            return None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _exchange_within(self, block: Block, made: Tensor) -> Place:
        """In what the block itself leaves, which may overlap with where it lay."""
        block.slab.give(block.start, block.nbytes)
        place = _smallest_hole(self.slabs, made.shape[0])
        assert place is not None
        slab, start = place
        slab.take(start, made.shape[0])
        try:
            slab.memory[start : start + made.shape[0]].copy_(made)
        except BaseException:
            slab.give(start, made.shape[0])
            block.slab.take(block.start, block.nbytes)
            raise
        if block.slab.is_empty:
            self.slabs.remove(block.slab)
        return place

    @contextmanager
    def filling(self, place: Place, num_bytes: int) -> Iterator[Tensor]:
        """The bytes of a place that was taken, to be written to: where that fails it is free."""
        slab, start = place
        try:
            yield slab.memory[start : start + num_bytes]
        except BaseException:
            self.give(place, num_bytes)
            raise

    def put(self, block: Block, place: Place) -> Place:
        """The block's bytes to a place here that was taken for it; returns where they were."""
        with self.filling(place, block.nbytes) as memory:
            memory.copy_(block.memory)
        old = block.slab, block.start
        block.slab, block.start = place
        return old

    # --- moving together --------------------------------------------------------------------------

    def pack(self, blocks: Iterable[Block], left_bytes: int | None) -> bool:
        """Moves blocks together, so that emptied slabs go back: first to the front of their own
        slab, where what they leave is in pieces that serve nobody; then out of slabs for whose
        blocks others have places; then out of those that were made for larger ones, into slabs of
        just their bytes, as far as may be allocated. `blocks`: all sealed ones that lie here.
        Whether any moved.

        Where it fails half-way each block is in one place or the other. Not during a forward, which
        reads blocks where they lay.
        """
        before, slab_bytes = self.num_moved, self.nbytes
        held = self.by_slab(blocks)
        for slab in self._by_use(held):
            self._squeeze(slab, held[slab])
        for slab in self._by_use(held):
            for block, (other, start) in self.places_elsewhere(slab, held[slab]):
                other.take(start, block.nbytes)
                self._move(block, (other, start))
                held[other].append(block)
        left = None if left_bytes is None else left_bytes + slab_bytes - self.nbytes
        self._fit(held, left)
        return self.num_moved > before

    def _by_use(self, held: dict[Slab, list[Block]]) -> list[Slab]:
        """Slabs that hold sealed blocks alone, the least used first: what is taken by others is
        being written to, and stays.
        """
        found = [(slab.nbytes - slab.free_bytes, slab) for slab in self.slabs if slab in held]
        return [
            slab
            for used, slab in sorted(found, key=lambda one: one[0])
            if used == sum(block.nbytes for block in held[slab])
        ]

    def _squeeze(self, slab: Slab, inside: list[Block]) -> None:
        least = min(block.nbytes for block in inside)
        pieces = [stop - start for start, stop in slab.holes]
        if len(pieces) < 2 or min(pieces) >= least or sum(pieces) < least:
            return
        start = 0
        for block in sorted(inside, key=lambda one: one.start):
            if block.start > start:
                data = block.memory
                if start + block.nbytes > block.start:
                    data = data.clone()
                slab.memory[start : start + block.nbytes].copy_(data)
                slab.give(block.start, block.nbytes)
                slab.take(start, block.nbytes)
                block.start = start
                self.num_moved += 1
            start = block.stop

    def _fit(self, held: dict[Slab, list[Block]], left_bytes: int | None) -> None:
        for slab in self._by_use(held):
            inside, used = held[slab], slab.nbytes - slab.free_bytes
            if not _serves_nobody(slab, inside):
                continue
            if left_bytes is not None:
                if left_bytes < used:
                    return
                left_bytes += slab.nbytes - used
            unit_bytes, start = inside[0].nbytes, 0
            smaller = Slab(used, unit_bytes, self._device, self.tier, pinned=self._pinned)
            self.slabs.append(smaller)
            for block in sorted(inside, key=lambda one: one.start):
                smaller.take(start, block.nbytes)
                self._move(block, (smaller, start))
                start += block.nbytes

    def by_slab(self, blocks: Iterable[Block]) -> dict[Slab, list[Block]]:
        held: dict[Slab, list[Block]] = {slab: [] for slab in self.slabs}
        for block in blocks:
            held[block.slab].append(block)
        return held

    def places_elsewhere(self, slab: Slab, blocks: list[Block]) -> list[tuple[Block, Place]]:
        """A place in other slabs for each of the blocks, or none for any."""
        others = [one for one in self.slabs if one is not slab]
        if sum(one.free_bytes for one in others) < sum(block.nbytes for block in blocks):
            return []
        found: list[tuple[Block, Place]] = []
        for block in sorted(blocks, key=lambda one: (-one.nbytes, one.depth)):
            place = _smallest_hole(others, block.nbytes)
            if place is None:
                break
            place[0].take(place[1], block.nbytes)
            found.append((block, place))
        for block, (other, start) in found:
            other.give(start, block.nbytes)
        return found if len(found) == len(blocks) else []

    def _move(self, block: Block, place: Place) -> None:
        """To a place here that was taken for it."""
        self.give(self.put(block, place), block.nbytes)
        self.num_moved += 1

    def check(self, blocks: list[Block]) -> None:
        """Raises AssertionError unless each of the sealed blocks has a place of its own here."""
        known = {id(slab) for slab in self.slabs}
        lost = sum(id(block.slab) not in known for block in blocks)
        assert not lost, f"{lost} blocks on the {self.tier} lie in no slab"
        assert all(slab.tier == self.tier for slab in self.slabs)
        assert not any(slab.is_empty for slab in self.slabs), f"an empty slab on the {self.tier}"
        for slab, inside in self.by_slab(blocks).items():
            ranges = sorted([*((b.start, b.stop) for b in inside), *slab.holes])
            where = f"a slab of {slab.nbytes} bytes on the {self.tier} has {ranges}"
            assert all(0 <= low < high <= slab.nbytes for low, high in ranges), where
            assert all(a[1] <= b[0] for a, b in pairwise(ranges)), f"overlapping: {where}"


def _serves_nobody(slab: Slab, inside: list[Block]) -> bool:
    """Whether much of a slab is left over by smaller blocks than it was made for."""
    if slab.free_bytes * SLAB_PART <= slab.nbytes:
        return False
    is_foreign = all(block.nbytes != slab.unit_bytes for block in inside)
    return is_foreign or all(stop - start < slab.unit_bytes for start, stop in slab.holes)


def _largest_hole(slabs: list[Slab], num_bytes: int) -> Place | None:
    """The first place in the longest hole that has one: blocks that follow lie beside it."""
    return _hole(slabs, num_bytes, lambda length: -length)


def _smallest_hole(slabs: list[Slab], num_bytes: int) -> Place | None:
    """The place in the shortest hole that has one: the longer ones stay whole."""
    return _hole(slabs, num_bytes, lambda length: length)


def _hole(slabs: list[Slab], num_bytes: int, rank: Callable[[int], int]) -> Place | None:
    """The hole of the lowest rank by its length, of those that are long enough."""
    fitting = [
        (rank(stop - start), slab, start)
        for slab in slabs
        for start, stop in slab.holes
        if stop - start >= num_bytes
    ]
    if not fitting:
        return None
    _, slab, start = min(fitting, key=lambda hole: hole[0])
    return slab, start
