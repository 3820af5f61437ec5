"""What the layers of one text read during a forward: made once for all of them, and only what the
backend in use asks for.

Knows no model library; `hf_seam` hands it to the model's layers.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kvchat.attention.backend import Lying
from kvchat.attention.scores import Mass
from kvchat.attention.triton_paged.standing import StandingTables
from kvchat.attention.triton_paged.table import why_not
from kvchat.kvcache.blocks import Run, shape_of
from kvchat.kvcache.sequence import Sequence
from kvchat.memory.formats import BLOCK_TOKENS

TILE_BLOCKS = 16  # attended to at a time: as many as flash kernels want
PIECE_BLOCKS = 4  # dequantised at a time: several copies in fp32 are made on the way

Views = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


class Forward:
    """Lives as long as its text; `begin` and `end` enclose each forward.

    Views of all layers are made by one `unbind`: a dozen indexing calls a layer cost 5 % of a
    decode step on one CPU thread. `tables` is None where no layer is for the Triton kernels.
    `mass`: what this forward's queries give each block, where that is wanted.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        pool = sequence.pool
        self.on_card = [
            why_not(one.key_dim, one.value_dim, one.dtype, pool.device) is None
            for one in pool.geometries
        ]
        self.tables = StandingTables(sequence) if any(self.on_card) else None
        self._new: dict[int, Views] = {}
        self._hot: dict[int, Views] = {}
        self._lying: dict[int, Lying] = {}
        self._rooms: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._scratch: Tensor | None = None
        self.mass: Mass | None = None

    def begin(self, *, weighs: bool = False) -> None:
        """After `sequence.reserve`: what all layers of this forward read and write is fixed."""
        self.mass = Mass(self.sequence) if weighs else None
        if self.tables is not None:
            self.tables.begin()

    def end(self) -> None:
        """Lets go of what was made for the forward."""
        for made in (self._new, self._hot, self._lying, self._rooms):
            made.clear()
        self._scratch = self.mass = None

    def seen_hot(self, group: int) -> int:
        """Tokens at the hot window's beginning that the first new query does not see."""
        geometry = self.sequence.pool.geometries[group]
        return max(0, geometry.first_visible(self.sequence.num_cached) - self.sequence.start)

    def write(self, group: int, layer: int, keys: Tensor, values: Tensor) -> None:
        """Puts [kv_heads, C, dim] into the reserved places of the hot window."""
        if self.tables is not None and self.on_card[group]:
            self.tables.write(group, layer, keys, values)
            return
        to_keys, to_values = self.new(group)
        to_keys[layer].copy_(keys)
        to_values[layer].copy_(values)

    def new(self, group: int) -> Views:
        """The chunk in flight, a view a layer: [kv_heads, C, dim]."""
        found = self._new.get(group)
        if found is None:
            start = self.sequence.num_hot
            views = self.sequence.hot_views(group, start, start + self.sequence.num_new)
            found = self._new[group] = _by_layer(views)
        return found

    def hot(self, group: int) -> Views:
        """What the first new query sees of the hot window, without the chunk."""
        found = self._hot.get(group)
        if found is None:
            sequence = self.sequence
            views = sequence.hot_views(group, self.seen_hot(group), sequence.num_hot)
            found = self._hot[group] = _by_layer(views)
        return found

    def lying(self, group: int) -> Lying:
        """Where the group's layers lie, the same for all of them."""
        found = self._lying.get(group)
        if found is None:
            found = self._lying[group] = _lying(self.sequence, group, self.seen_hot(group))
        return found

    def scratch(self, num_floats: int) -> Tensor:
        if self._scratch is None or self._scratch.shape[0] < num_floats:
            device = self.sequence.pool.device
            self._scratch = torch.empty(num_floats, dtype=torch.float32, device=device)
        return self._scratch

    # --- where a backend wants tensors ------------------------------------------------------------

    def gathered(self, group: int, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's prefix in one piece, [kv_heads, tokens, dim], in a workspace that the layers
        share.
        """
        runs = self.sequence.runs(group)
        hot_keys, hot_values = (part[layer] for part in self.hot(group))
        num_sealed = sum(run.num_blocks for run in runs) * BLOCK_TOKENS
        room = self._room(group, num_sealed + hot_keys.shape[1])
        done = 0
        for run in runs:
            done = _read(run, layer, 0, run.num_blocks, room, done)
        room[0][:, done:] = hot_keys
        room[1][:, done:] = hot_values
        _, skip = self.sequence.first_seen(group)
        return room[0][:, skip:], room[1][:, skip:]

    def tiles(self, group: int, layer: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One layer's prefix in pieces of a few blocks, [kv_heads, tokens, dim], each in the place
        of the one before it; the hot window last, where it lies. Not for sliding layers.
        """
        runs = self.sequence.runs(group)
        most = BLOCK_TOKENS * min(TILE_BLOCKS, sum(run.num_blocks for run in runs))
        room, done = self._room(group, most), 0
        for run in runs:
            start = 0
            while start < run.num_blocks:
                stop = start + (most - done) // BLOCK_TOKENS
                done = _read(run, layer, start, stop, room, done)
                start = stop
                if done == most:
                    yield room
                    done = 0
        if done:
            yield room[0][:, :done], room[1][:, :done]
        hot_keys, hot_values = (part[layer] for part in self.hot(group))
        if hot_keys.shape[1]:
            yield hot_keys, hot_values

    def _room(self, group: int, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, tokens, dim], the same for each layer of the group."""
        found = self._rooms.get((group, num_tokens))
        if found is None:
            pool = self.sequence.pool
            one = pool.geometries[group]
            shape = (one.num_kv_heads, num_tokens)
            found = (
                torch.empty(*shape, one.key_dim, dtype=one.dtype, device=pool.device),
                torch.empty(*shape, one.value_dim, dtype=one.dtype, device=pool.device),
            )
            self._rooms[group, num_tokens] = found
        return found


def _by_layer(views: tuple[Tensor, Tensor]) -> Views:
    keys, values = views
    return keys.unbind(0), values.unbind(0)


def _read(
    run: Run, layer: int, start: int, stop: int, room: tuple[Tensor, Tensor], done: int
) -> int:
    """Writes some blocks of a run behind the `done` tokens of the room; returns how many it holds
    then.
    """
    stop = min(stop, run.num_blocks)
    for first in range(start, stop, PIECE_BLOCKS):
        found = run.read(layer, first, min(stop, first + PIECE_BLOCKS))
        num_blocks = found[0].shape[0]
        after = done + num_blocks * BLOCK_TOKENS
        for to, part in zip(room, found, strict=True):
            to[:, done:after].unflatten(1, (num_blocks, -1)).copy_(part.transpose(0, 1))
        done = after
    return done


def _lying(sequence: Sequence, group: int, seen_hot: int) -> Lying:
    geometry, hot = sequence.pool.geometries[group], sequence.hot[group]
    lists = [(one, shape_of(geometry, one.pair)) for one in sequence.lists(group)]
    num_hot = sequence.num_hot - seen_hot + sequence.num_new
    num_sealed = sum(one.num_blocks * BLOCK_TOKENS - one.skip for one, _ in lists)
    place, size = sequence.hot_place(seen_hot), geometry.dtype.itemsize
    keys = hot.tensor.data_ptr()
    values = keys + hot.num_tokens * geometry.key_dim * size
    return Lying(
        lists=lists,
        formats=frozenset(fmt.name for one, _ in lists for fmt in (one.pair.key, one.pair.value)),
        dtype=geometry.dtype,
        hot_keys=keys + place * geometry.key_dim * size,
        hot_values=values + place * geometry.value_dim * size,
        hot_layer_bytes=geometry.num_kv_heads * geometry.head_bytes(hot.num_tokens),
        hot_head_bytes=geometry.head_bytes(hot.num_tokens),
        num_hot=num_hot,
        num_tokens=num_sealed + num_hot,
        value_dim=geometry.value_dim,
    )
