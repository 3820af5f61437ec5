"""Blocks of one model in their tiers: their places, their names, and the formats they are in.

Sealed blocks are stored in other formats, and moved between device and host, under the texts that
hold them: attention reads them where they then lie, from the next step on. Whatever fails leaves
a block as it was. Knows no hot window and no ladder: how much the device may hold is the pool's to
say, and when something moves the planner's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from itertools import count
from typing import TypeVar

import torch
from torch import Tensor

from kvchat.device.oom import is_out_of_memory
from kvchat.kvcache.blocks import Block, Geometry, Tier, read_block, shape_of, write_packed
from kvchat.kvcache.prefix_index import PrefixIndex
from kvchat.kvcache.slabs import Place, PoolFull, Slabs
from kvchat.memory.formats import FormatPair, lower_of

Result = TypeVar("Result")


class BlockStore(ABC):
    """`host_limit_bytes`: what blocks on the host may take, 0 for none; where it was lowered,
    `trim_host` gives back what is idle beyond it. `keep_originals`: what is stored in less leaves
    its better copy there, where there is room. Any thread may set both; the rest belongs to one.
    """

    def __init__(self, geometries: tuple[Geometry, ...], device: torch.device, root: bytes) -> None:
        self.geometries = geometries
        self.device = device
        self.index = PrefixIndex(geometries, root)
        self.on_device = Slabs(device)
        self.on_host = Slabs(device, "host")
        self.host_limit_bytes = 0
        self.keep_originals = False
        self._num_changed = 0
        self._ticks = count(1)

    @property
    def num_moved(self) -> int:
        """Grows when blocks are no longer where, or what, a sequence may have seen."""
        return self._num_changed + self.on_device.num_moved + self.on_host.num_moved

    @property
    def host_bytes(self) -> int:
        """All that is allocated on the host."""
        return self.on_host.nbytes

    @abstractmethod
    def device_left_bytes(self) -> int | None:
        """What slabs on the device may still grow by; None where only the device limits it."""

    def idle(self, tier: Tier) -> Iterator[Block]:
        """Sealed blocks that no sequence holds."""
        return (one for one in self.index.all() if not one.ref_count and one.tier == tier)

    # --- places and names -------------------------------------------------------------------------

    def reserve(
        self, group: int, pairs: Many[FormatPair], after: Block | None = None
    ) -> list[Block]:
        """Unsealed blocks on the device to write into, one a pair of formats; next to `after` where
        there is room. Raises PoolFull, takes nothing then.
        """
        sizes = [shape_of(self.geometries[group], pair).block_bytes for pair in pairs]
        taken: list[Block] = []
        try:
            for i, (pair, num_bytes) in enumerate(zip(pairs, sizes, strict=True)):
                slab, start = self._take(self.on_device, num_bytes, sum(sizes[i:]), after)
                after = Block(group, pair, slab, start, num_bytes)
                taken.append(after)
        except BaseException:
            for block in taken:
                self._free(block)
            raise
        return taken

    def _take(
        self, slabs: Slabs, num_bytes: int, wanted_bytes: int, after: Block | None = None
    ) -> Place:
        """Where a block of that size goes. `wanted_bytes`: with those that come after it."""
        try:
            return slabs.take(num_bytes, wanted_bytes, self._left_bytes(slabs), after)
        except PoolFull:
            if not self._pack(slabs):
                raise
        return slabs.take(num_bytes, wanted_bytes, self._left_bytes(slabs), after)

    def _left_bytes(self, slabs: Slabs) -> int | None:
        if slabs is self.on_device:
            return self.device_left_bytes()
        return max(0, self.host_limit_bytes - self.host_bytes)

    def _slabs_of(self, block: Block) -> Slabs:
        return self.on_host if block.tier == "host" else self.on_device

    def seal(
        self, block: Block, key: bytes, parent: bytes, token_ids: tuple[int, ...], depth: int
    ) -> None:
        """Names a written block, so that others find it."""
        block.key, block.parent, block.token_ids, block.depth = key, parent, token_ids, depth
        self.index.add(block)

    def hold(self, block: Block) -> None:
        block.ref_count += 1

    def release(self, block: Block) -> None:
        """One holder less. A sealed block becomes idle and stays findable; an unsealed one is free
        at once.
        """
        block.ref_count -= 1
        block.last_used = next(self._ticks)
        if block.ref_count == 0 and block.key is None:
            self._free(block)

    def evict(self, block: Block) -> int:
        """One holder less, and the block is gone where that was the last. Returns the bytes that
        became free on the device.
        """
        self.release(block)
        self._num_changed += 1
        if block.ref_count:
            return 0
        self._drop(block)
        return block.nbytes if block.tier == "device" else 0

    def _free(self, block: Block) -> None:
        self._slabs_of(block).give((block.slab, block.start), block.nbytes)

    def _drop(self, block: Block) -> None:
        self.index.remove(block)
        self._free(block)

    def pack(self) -> int:
        """Moves blocks on the device together (`Slabs.pack`). Returns the bytes given back."""
        before = self.on_device.nbytes
        self._pack(self.on_device)
        return before - self.on_device.nbytes

    @torch.inference_mode()
    def _pack(self, slabs: Slabs) -> bool:
        """False where there was nothing to move, or no memory to do it with."""
        here = (one for one in self.index.all() if one.tier == slabs.tier)
        if slabs is self.on_host and self.device.type == "cuda":
            # The processor moves them: a kernel may still be reading where they lay.
            torch.accelerator.synchronize(self.device)
        try:
            return slabs.pack(here, self._left_bytes(slabs))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False

    # --- formats ----------------------------------------------------------------------------------

    def best_copy(self, block: Block) -> Block:
        """The best copy held of what a sealed block is: itself where no other is better."""
        best = block
        for one in self._as_good(block):
            better = one.pair.at_least(best.pair) and one.over.at_least(best.over)
            if better and (one.pair != best.pair or one.over != best.over):
                best = one
        return best

    @torch.inference_mode()
    def requantize(self, block: Block, pair: FormatPair) -> int:
        """Stores a sealed block in other formats, from the best copy held; whoever holds it reads
        it so from the next step on. What that copy has lost stays lost, and the block counts as
        made over that, and nothing goes below the least of its layers. Returns the bytes that
        became free in its tier.

        What takes no more bytes than before always has room: at worst its own. Raises PoolFull
        where that is not so, or where there is no memory to work with; nothing is changed then.
        """
        pair = self.geometries[block.group].served(pair)
        source = self.best_copy(block)
        if self.keep_originals and source is block and not pair.at_least(block.pair):
            self._keep_original(block)
        return _or_full(block.nbytes, lambda: self._store(block, source, pair))

    @torch.inference_mode()
    def raise_block(self, block: Block, pair: FormatPair) -> int:
        """Stores a sealed block in better formats, up to `pair`, where a better copy is held: as
        that copy was computed, and no better. Returns the bytes taken in its tier; 0 where there is
        no such copy. Raises PoolFull; nothing is changed then.
        """
        source = self.best_copy(block)
        target = lower_of(self.geometries[block.group].served(pair), source.pair)
        is_same = (target, _over(source, target)) == (block.pair, block.over)
        if is_same or not target.at_least(block.pair):
            return 0
        return -_or_full(block.nbytes, lambda: self._store(block, source, target))

    def _store(self, block: Block, source: Block, pair: FormatPair) -> int:
        """The bytes are where they belong before anything is said to have changed."""
        made = self._packed(source, pair)
        num_bytes, slabs = made.shape[0], self._slabs_of(block)
        if num_bytes <= block.nbytes:
            place = slabs.exchange(block, made, self._left_bytes(slabs))
        else:
            place = self._take(slabs, num_bytes, num_bytes)
            with slabs.filling(place, num_bytes) as memory:
                memory.copy_(made)
            self._free(block)  # packing may have moved it
        freed = block.nbytes - num_bytes
        block.pair, block.over = pair, _over(source, pair)
        block.nbytes, (block.slab, block.start) = num_bytes, place
        self._num_changed += 1
        return freed

    def _packed(self, source: Block, pair: FormatPair) -> Tensor:
        """A copy's bytes in these formats, in memory of their own on the device."""
        if pair == source.pair:
            return source.memory.to(self.device, copy=True)
        geometry = self.geometries[source.group]
        num_bytes = shape_of(geometry, pair).block_bytes
        made = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        write_packed(geometry, pair, made, *read_block(geometry, source, self.device))
        return made

    # --- tiers ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def offload(self, block: Block, *, used_before: int | None = None) -> int:
        """Moves a sealed block to the host, where attention goes on reading it. Idle copies there
        make room, the least valuable first, those alone that were used before that moment if one is
        named. Returns the bytes that became free on the device. Raises PoolFull: nothing but such
        copies is changed then.
        """
        assert block.key is not None
        if block.tier == "host":
            return 0
        place = self._place_on_host(block.nbytes, used_before)
        return _or_full(block.nbytes, lambda: self._move(block, self.on_host, place))

    @torch.inference_mode()
    def bring_back(self, block: Block) -> int:
        """Moves a sealed block from the host to the device. Returns the bytes taken there. Raises
        PoolFull: nothing is changed then.
        """
        assert block.key is not None
        if block.tier == "device":
            return 0

        def move() -> int:
            place = self._take(self.on_device, block.nbytes, block.nbytes)
            return self._move(block, self.on_device, place)

        return _or_full(block.nbytes, move)

    def _move(self, block: Block, slabs: Slabs, place: Place) -> int:
        """To a place there. The copy is over when this returns: torch waits for one between device
        and host. Returns the block's bytes.
        """
        self._slabs_of(block).give(slabs.put(block, place), block.nbytes)
        self._num_changed += 1
        return block.nbytes

    def _keep_original(self, block: Block) -> None:
        """Leaves a copy of the block as it is on the host, idle; nothing where there is no room."""
        if block.tier == "host" or self.is_on_host(block):
            return
        try:
            place = self._place_on_host(block.nbytes, block.last_used)
            _or_full(block.nbytes, lambda: self._copy_to_host(block, place))
        except PoolFull:
            return
        copy = Block(block.group, block.pair, *place, block.nbytes, ref_count=0)
        copy.over, copy.last_used = block.over, block.last_used
        assert block.key is not None
        self.seal(copy, block.key, block.parent, block.token_ids, block.depth)

    def _copy_to_host(self, block: Block, place: Place) -> None:
        with self.on_host.filling(place, block.nbytes) as memory:
            memory.copy_(block.memory)

    def is_on_host(self, block: Block) -> bool:
        """Whether another copy that is as good as the block, or better, lies on the host."""
        return any(one.tier == "host" for one in self._as_good(block))

    def _as_good(self, block: Block) -> Iterator[Block]:
        """Other copies of what a sealed block is that are as good, or better."""
        assert block.key is not None
        for one in self.index.blocks[block.key][block.group]:
            is_same = one is not block and one.token_ids == block.token_ids
            if is_same and one.pair.at_least(block.pair) and one.over.at_least(block.over):
                yield one

    def _place_on_host(self, num_bytes: int, used_before: int | None = None) -> Place:
        """Room on the host, where idle copies leave it that were used before that moment. Raises
        PoolFull.
        """
        return _or_full(num_bytes, lambda: self._take_on_host(num_bytes, used_before))

    def _take_on_host(self, num_bytes: int, used_before: int | None) -> Place:
        try:
            return self.on_host.take(num_bytes, num_bytes, self._left_bytes(self.on_host))
        except PoolFull:
            leaving = [
                one
                for one in self.idle("host")
                if used_before is None or one.last_used < used_before
            ]
        room = self.host_limit_bytes - self.host_bytes + self.on_host.free_bytes
        short = num_bytes - room - sum(one.nbytes for one in leaving)
        if short > 0:
            raise PoolFull(short)
        leaving.sort(key=self._value, reverse=True)
        while leaving:
            self._drop(leaving.pop())
            try:
                return self.on_host.take(num_bytes, num_bytes, self._left_bytes(self.on_host))
            except PoolFull:
                continue
        return self._take(self.on_host, num_bytes, num_bytes)

    def trim_host(self) -> None:
        """Drops idle copies on the host until the rest is within its limit, or held by texts."""
        limit_bytes = self.host_limit_bytes
        if self.host_bytes <= limit_bytes:
            return
        leaving = sorted(self.idle("host"), key=self._value, reverse=True)
        while leaving and self.host_bytes > limit_bytes:
            self._drop(leaving.pop())
            if self.host_bytes - self.on_host.free_bytes <= limit_bytes:
                self._pack(self.on_host)

    def _value(self, block: Block) -> tuple[bool, int, int]:
        """Of an idle block on the host, the least first: what is held as good elsewhere, what was
        used longest ago, leaves before their parents.
        """
        held = any(one.tier == "device" or one.ref_count for one in self._as_good(block))
        return not held, block.last_used, -block.depth


def _or_full(num_bytes: int, do: Callable[[], Result]) -> Result:
    """What `do` returns. Memory itself that does not suffice is a full pool as well: PoolFull,
    raised where the failed call's frames are gone.
    """
    try:
        return do()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    raise PoolFull(num_bytes)


def _over(source: Block, pair: FormatPair) -> FormatPair:
    """What a copy that is stored in these formats counts as made over: what it was, if anew."""
    return source.over if pair == source.pair else lower_of(source.over, source.pair)
