"""The slabs of one tier: allocations of bytes in which blocks of any size have their places.

Slabs grow with what is held, so that free places are a small part of it. Each is made for blocks of
one size; where the limit leaves no room for another, holes of other slabs serve as well. An empty
slab goes back at once. Knows no name, no format and no text; how much may still be allocated, and
which blocks lie here, it is told.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise

import torch

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

    def exchange(self, old: Place, old_bytes: int, num_bytes: int, left_bytes: int | None) -> Place:
        """A place for what needs no more bytes than it had; the old one is free then. Where there
        is no room it is made in what the old one leaves, so this always succeeds.
        """
        assert num_bytes <= old_bytes
        try:
            place = self.take(num_bytes, num_bytes, left_bytes)
        except PoolFull:
            slab, start = old
            slab.give(start, old_bytes)
            found = _smallest_hole(self.slabs, num_bytes)
            assert found is not None
            found[0].take(found[1], num_bytes)
            return found
        self.give(old, old_bytes)
        return place

    # --- moving together --------------------------------------------------------------------------

    def pack(self, blocks: Iterable[Block]) -> int:
        """Moves blocks out of slabs where others have places for them, so that emptied slabs go
        back. Allocates nothing. `blocks`: all sealed ones that lie here. Returns how many moved.

        Not during a forward, which reads blocks where they lay.
        """
        num_moved = 0
        held = self.by_slab(blocks)
        for slab in sorted(self.slabs, key=lambda one: one.nbytes - one.free_bytes):
            inside = held[slab]
            # What is taken by no sealed block is being written to: it stays.
            if slab.nbytes - slab.free_bytes == sum(block.nbytes for block in inside):
                for block, (other, start) in self.places_elsewhere(slab, inside):
                    other.take(start, block.nbytes)
                    self.give(put(block, (other, start)), block.nbytes)
                    held[other].append(block)
                    num_moved += 1
        return num_moved

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

    def check(self, blocks: list[Block]) -> None:
        """Raises AssertionError unless each of the sealed blocks has a place of its own here."""
        known = {id(slab) for slab in self.slabs}
        lost = sum(id(block.slab) not in known for block in blocks)
        assert not lost, f"{lost} blocks on the {self.tier} lie in no slab"
        assert all(slab.tier == self.tier for slab in self.slabs)
        for slab, inside in self.by_slab(blocks).items():
            ranges = sorted([*((b.start, b.stop) for b in inside), *slab.holes])
            where = f"a slab of {slab.nbytes} bytes on the {self.tier} has {ranges}"
            assert all(0 <= low < high <= slab.nbytes for low, high in ranges), where
            assert all(a[1] <= b[0] for a, b in pairwise(ranges)), f"overlapping: {where}"


def put(block: Block, place: Place) -> Place:
    """The block's bytes to a place that was taken for it; returns where they were."""
    old = block.slab, block.start
    slab, start = place
    slab.memory[start : start + block.nbytes].copy_(block.memory)
    block.slab, block.start = place
    return old


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
