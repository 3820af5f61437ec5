"""What a text holds in the cache, and how attention reads it: sealed blocks as runs or lists, and
the hot window. Nothing here changes what is held (that is sequence.py).
"""

from abc import ABC, abstractmethod

from torch import Tensor

from kvchat.kvcache.block_lists import BlockList, BlockLists
from kvchat.kvcache.blocks import FP, Block, HotWindow, Run
from kvchat.kvcache.pool import Pool
from kvchat.memory.formats import BLOCK_TOKENS, lower_of


class HeldText(ABC):
    """`storing` is the pool's when the text began. `over`: the lowest formats of what its newest
    tokens were computed over. `num_lost`: tokens that were read before and are read again, since a
    layer cannot go back to them. `evicted`: places of blocks that layers without a window do
    without; all other tokens keep their positions.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.token_ids: list[int] = []
        self.keys: list[bytes] = []
        self.tables: list[list[Block | None]] = [[] for _ in pool.geometries]
        self.storing = pool.storing
        self.over = FP
        self.hot: list[HotWindow] = []
        self.num_new = 0
        self.num_lost = 0
        self.evicted = frozenset[int]()
        self._parent: bytes | None = None
        self._sealed_hot = 0
        self._pieces_moved = 0
        self._num_moved = pool.num_moved
        self._reserved: list[list[Block]] = []
        self._runs: dict[int, tuple[tuple[int, int], list[Run]]] = {}
        self._lists = self._no_lists()

    # --- lengths ----------------------------------------------------------------------------------

    @property
    def num_cached(self) -> int:
        return len(self.token_ids)

    @property
    def start(self) -> int:
        """Where the hot window begins."""
        return len(self.keys) * BLOCK_TOKENS

    @property
    def num_hot(self) -> int:
        """Committed tokens in the hot window."""
        return self.num_cached - self.start

    @property
    def num_whole(self) -> int:
        """Leading blocks before the first that was evicted."""
        return min(self.evicted, default=len(self.keys))

    @property
    def is_as_sealed(self) -> bool:
        """Whether nothing was evicted, and all is held, and was computed over, in no less than it
        was to be sealed in.
        """
        self._look_again()
        return not self.evicted and self.over.at_least(self.storing.seal)

    @property
    def parent(self) -> bytes:
        """What the next block is named after: its own name, where it is computed over a hole."""
        return self._parent or (self.keys[-1] if self.keys else self.pool.index.root)

    def _look_again(self) -> None:
        """Blocks may be stored in less since the last step: what comes is computed over that."""
        if self._num_moved != self.pool.num_moved:
            self._num_moved = self.pool.num_moved
            for table in self.tables:
                for block in table:
                    if block is not None:
                        self.over = lower_of(self.over, lower_of(block.pair, block.over))

    @abstractmethod
    def _first_hot(self) -> int:
        """Where the hot window's tokens begin in its memory."""

    # --- what attention reads ---------------------------------------------------------------------

    def runs(self, group: int) -> list[Run]:
        """The sealed blocks that the first new query sees, as runs that lie side by side; of the
        first one it may not see all (`first_seen`).
        """
        first, _ = self.first_seen(group)
        place = (first, self.pool.num_moved)
        known = self._runs.get(group)
        if known is None or known[0] != place:
            known = self._runs[group] = (place, self._found_runs(group, first * BLOCK_TOKENS))
        return known[1]

    def _found_runs(self, group: int, first: int) -> list[Run]:
        places: list[tuple[Block, int]] = []
        last: Block | None = None
        for block in self.tables[group][first // BLOCK_TOKENS :]:
            if block is None:
                continue
            follows = last is not None and block.slab is last.slab and block.start == last.stop
            if follows and last is not None and block.pair == last.pair:
                places[-1] = (places[-1][0], places[-1][1] + 1)
            else:
                places.append((block, 1))
            last = block
        geometry = self.pool.geometries[group]
        device = self.pool.device
        return [Run(geometry, block, num_blocks, device) for block, num_blocks in places]

    def lists(self, group: int) -> list[BlockList]:
        """Where the sealed blocks lie that the first new query sees, those of each pair of formats
        and each tier together, the oldest block's first; one list at least.
        """
        first, skip = self.first_seen(group)
        return self._lists[group].follow(self.tables[group], first, skip, self.pool.num_moved)

    def _no_lists(self) -> list[BlockLists]:
        return [BlockLists(self.pool.device) for _ in self.pool.geometries]

    def first_seen(self, group: int) -> tuple[int, int]:
        """The first block that the next query sees, and how many of its leading tokens it does
        not.
        """
        first = self.pool.geometries[group].first_visible(self.num_cached)
        return first // BLOCK_TOKENS, first % BLOCK_TOKENS if first < self.start else 0

    def hot_place(self, start: int) -> int:
        """Where in the hot window's memory its token `start` stands."""
        return self._first_hot() + start

    def hot_views(self, group: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the hot window's places [start, stop): [layers, kv_heads, tokens,
        dim].
        """
        hot, first = self.hot[group], self._first_hot()
        places = slice(first + start, first + stop)
        return hot.keys[:, :, places], hot.values[:, :, places]
