"""Where the blocks of a sequence lie, as kernels read it: addresses and positions on the device, a
list for each pair of formats and each tier.

Lists grow in place as blocks are sealed, in tensors that double when they are full, so a kernel
that was told once where a list lies finds it there in the next step. They are written anew only
where blocks moved, or left a sliding window. Knows no pool and no sequence.
"""

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from kvchat.kvcache.blocks import FP, Block, Tier
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair

_LEAST_BLOCKS = 64


class BlockList:
    """The visible blocks of one pair of formats in one tier, the oldest first.

    addresses: int64 [capacity] of bytes; positions: int32 [capacity], of the blocks' first tokens;
    count: int32 [1], how many entries hold; all on the device. `skip`: leading tokens of the first
    block that are not seen.
    """

    __slots__ = ("addresses", "count", "num_blocks", "pair", "positions", "skip", "tier")

    def __init__(self, pair: FormatPair, device: torch.device, tier: Tier = "device") -> None:
        self.pair = pair
        self.tier = tier
        self.num_blocks = 0
        self.skip = 0
        self.addresses = torch.empty(_LEAST_BLOCKS, dtype=torch.int64, device=device)
        self.positions = torch.empty(_LEAST_BLOCKS, dtype=torch.int32, device=device)
        self.count = torch.zeros(1, dtype=torch.int32, device=device)

    def set_from(self, start: int, addresses: Many[int], positions: Many[int]) -> None:
        """The entries from `start` on, and no others after them."""
        stop = start + len(addresses)
        if stop > self.addresses.shape[0]:
            capacity = 2 * stop
            self.addresses = _longer(self.addresses, start, capacity)
            self.positions = _longer(self.positions, start, capacity)
        self.addresses[start:stop] = torch.tensor(addresses, dtype=torch.int64)
        self.positions[start:stop] = torch.tensor(positions, dtype=torch.int32)
        self.num_blocks = stop
        self.count.fill_(stop)


def _longer(old: Tensor, num_kept: int, capacity: int) -> Tensor:
    new = old.new_empty(capacity)
    new[:num_kept] = old[:num_kept]
    return new


class BlockLists:
    """The lists of one group of layers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[tuple[FormatPair, Tier], BlockList] = {}
        self._shown: list[BlockList] = []
        self._place: tuple[int, int] | None = None
        self._num_taken = 0

    def follow(
        self, table: Many[Block | None], first: int, skip: int, num_moved: int
    ) -> list[BlockList]:
        """The lists of the blocks from the table's entry `first` on, the oldest block's first; one
        at least. `num_moved`: another number than before says that blocks may lie elsewhere.
        """
        anew = self._place != (first, num_moved)
        if anew or self._num_taken != len(table):
            self._take(table, first if anew else self._num_taken, anew)
            self._place, self._num_taken = (first, num_moved), len(table)
        for one in self._shown:
            one.skip = 0
        self._shown[0].skip = skip
        return self._shown

    def _take(self, table: Many[Block | None], start: int, anew: bool) -> None:
        found: dict[tuple[FormatPair, Tier], tuple[list[int], list[int]]] = {}
        for place in range(start, len(table)):
            block = table[place]
            if block is not None:
                addresses, positions = found.setdefault((block.pair, block.tier), ([], []))
                addresses.append(block.address)
                positions.append(place * BLOCK_TOKENS)
        known = [] if anew else [one for one in self._shown if one.num_blocks]
        if not found and not known:
            found[FP, "device"] = [], []
        for (pair, tier), (addresses, positions) in found.items():
            one = self._made.get((pair, tier)) or BlockList(pair, self._device, tier)
            self._made[pair, tier] = one
            shown = any(one is other for other in known)
            one.set_from(one.num_blocks if shown else 0, addresses, positions)
            if not shown:
                known.append(one)
        self._shown = known
