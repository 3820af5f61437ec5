"""What a text of n tokens costs on the device, item by item; and the inverse, how many tokens fit.

    weights                  measured when the model was loaded
    kv(n, chunk)             sum over groups: blocks held * block bytes
    hot(n, chunk)            min(R + 64 + chunk, max(R + 64, n)) tokens of every group, while a text
                             is read: a block is written beside what it is made of, so that a step
                             that runs out of memory can be done again
    activations(chunk, n)    an estimate from shapes, corrected by what such steps were measured to
                             take (memory/activations.py, memory/calibrate.py)
    - freed(blocks, relief)  what blocks of old text give back when they are stored in less, moved
                             or evicted

Pure arithmetic over a ModelSpec and the pool's geometries.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Self

import torch

from kvchat.arch.spec import ModelSpec
from kvchat.kvcache.blocks import FP, Geometry, geometries, shape_of
from kvchat.kvcache.pool import AS_COMPUTED, Storing
from kvchat.memory.activations import sampling_bytes
from kvchat.memory.calibrate import UNCALIBRATED, Calibration
from kvchat.memory.footprint import (
    BLOCK_TOKENS,
    Footprint,
    activation_bytes,
    kv_bytes,
    last_that_fits,
)
from kvchat.memory.formats import FormatPair, lower_of


@dataclass(frozen=True, slots=True)
class Relief:
    """What is done about old text: up to `evicted` blocks given up, the rest stored in `pair` where
    that is less, then up to `host_bytes` of it moved to the host.
    """

    pair: FormatPair | None = None
    host_bytes: int = 0
    evicted: int = 0


AS_SEALED = Relief()
LEAST_CHUNK = 32
NEWEST_TOKENS = 512  # of a turn in flight, which is no old text: a question and its reply


@dataclass(frozen=True, slots=True)
class Costs:
    """`lower`: the pairs that old text may be stored in when memory is short, the most exact
    first. `device_type`, `weighs`: see `activation_bytes`.
    """

    spec: ModelSpec
    geometries: tuple[Geometry, ...]
    dtype_bytes: int
    weight_bytes: int
    device_type: str = "cuda"
    storing: Storing = AS_COMPUTED
    lower: tuple[FormatPair, ...] = ()
    calibration: Calibration = UNCALIBRATED
    weighs: bool = False

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        dtype: torch.dtype,
        device_type: str = "cuda",
        least: Mapping[int, FormatPair] | None = None,
    ) -> Self:
        """Of a model that is not loaded, as computed, before anything was measured of it. `least`:
        layers by number, and the lowest pair that each is stored in.
        """
        groups = geometries(spec, dtype, least or {})
        return cls(spec, groups, dtype.itemsize, spec.weight_bytes, device_type)

    def stored_in(self, pair: FormatPair) -> Self:
        """The same where text is stored in this pair from the first."""
        return replace(self, storing=replace(self.storing, seal=pair, floor=pair))

    def blocks_bytes(self, num_tokens: int, prefill_chunk: int) -> int:
        """Sealed blocks of a text of n tokens, without those that its sliding windows have left."""
        sealed = num_tokens - self.storing.hot_tokens
        num_sinks = ceil(self.storing.sink_tokens / BLOCK_TOKENS)
        total = 0
        for geometry in self.geometries:
            held = geometry.blocks_held(sealed, prefill_chunk)
            plain = min(num_sinks, held)
            stored = shape_of(geometry, geometry.served(self.storing.seal)).block_bytes
            total += plain * geometry.block_bytes + (held - plain) * stored
        return total

    def token_bytes(self, pair: FormatPair | None = None) -> float:
        """One more token in all groups while no window is full, as sealed or in `pair` where that
        is less.
        """
        seal = self.storing.seal
        stored = seal if pair is None else lower_of(seal, pair)
        paged = sum(shape_of(g, g.served(stored)).block_bytes for g in self.geometries)
        return paged / BLOCK_TOKENS + (self.library_bytes(1) - self.library_bytes(0)) / 2

    def old_block_bytes(self, pair: FormatPair | None = None) -> int:
        """64 tokens of old text in all groups that hold them: those with a window have left them.
        Stored as sealed, or in `pair` where that is less.
        """
        seal = self.storing.seal
        stored = seal if pair is None else lower_of(seal, pair)
        return sum(
            shape_of(geometry, geometry.served(stored)).block_bytes
            for geometry in self.geometries
            if geometry.window is None
        )

    def freed_bytes(self, num_blocks: int, relief: Relief) -> int:
        """blocks * as sealed - kept in the relief's pair, and what of that is moved."""
        kept = self._kept_bytes(num_blocks, relief)
        return num_blocks * self.old_block_bytes() - kept + min(kept, relief.host_bytes)

    def _kept_bytes(self, num_blocks: int, relief: Relief) -> int:
        """(blocks - evicted) * in the relief's pair."""
        return max(0, num_blocks - relief.evicted) * self.old_block_bytes(relief.pair)

    def hot_bytes(self, num_tokens: int, prefill_chunk: int) -> int:
        """The hot window of a text of n tokens while it is read, as `Sequence.begin` makes it."""
        least = self.storing.hot_tokens + BLOCK_TOKENS
        capacity = min(least + prefill_chunk, max(least, num_tokens))
        return sum(capacity * g.bytes_per_token for g in self.geometries)

    def library_bytes(self, num_tokens: int) -> int:
        """Layers that stay the library's own: their KV grows by copying, so it is there twice."""
        paged = {layer for geometry in self.geometries for layer in geometry.layers}
        bits = self.dtype_bytes * 8
        whole = kv_bytes(self.spec, num_tokens, bits, bits)
        own = sum(
            layer.values_per_token * layer.tokens_held(num_tokens) * self.dtype_bytes
            for i, layer in enumerate(self.spec.layers)
            if i in paged
        )
        states = sum(layer.recurrent_bytes for layer in self.spec.layers)
        return 2 * (whole - own) + 2 * states

    def estimated_activations(self, prefill_chunk: int, num_tokens: int) -> int:
        """From shapes alone."""
        return activation_bytes(
            self.spec,
            prefill_chunk,
            num_tokens,
            self.dtype_bytes,
            self.device_type,
            self.storing.seal != FP,
            self.weighs,
        )

    def activations(self, prefill_chunk: int, num_tokens: int) -> int:
        """As steps were measured so far, and not less than drawing a token takes after them. Of
        decode steps the one that fills the block counts, too.
        """
        chunk, sizes = min(prefill_chunk, num_tokens), {num_tokens}
        if chunk == 1:
            sizes.add(ceil(num_tokens / BLOCK_TOKENS) * BLOCK_TOKENS)
        figures = [
            self.calibration.figure(chunk, size, self.estimated_activations(chunk, size))
            for size in sizes
        ]
        return max(*figures, sampling_bytes(self.spec, self.dtype_bytes, self.device_type))

    def footprint(
        self,
        num_tokens: int,
        prefill_chunk: int,
        headroom: int = 0,
        relief: Relief = AS_SEALED,
        old_blocks: int = 0,
    ) -> Footprint:
        """Everything that is on the device when a text of n tokens has just been read, of which
        `old_blocks` were relieved.
        """
        chunk = min(prefill_chunk, max(1, num_tokens))
        kv = self.blocks_bytes(num_tokens, chunk) + self.library_bytes(num_tokens)
        return Footprint(
            weights=self.weight_bytes,
            kv_device=kv - self.freed_bytes(old_blocks, relief),
            kv_host=min(relief.host_bytes, self._kept_bytes(old_blocks, relief)),
            kv_disk=0,
            activations=self.activations(chunk, num_tokens),
            workspace=self.hot_bytes(num_tokens, chunk),
            headroom=headroom,
        )

    def needed_bytes(self, num_tokens: int, prefill_chunk: int) -> int:
        return self.footprint(num_tokens, prefill_chunk).total

    def relieved(self, num_tokens: int, prefill_chunk: int, relief: Relief) -> Footprint:
        """The same of a text that is old but for its first tokens and the newest."""
        recent = self.storing.recent_tokens(relief.pair) if relief.pair is not None else 0
        kept = ceil((self.storing.sink_tokens + recent + NEWEST_TOKENS) / BLOCK_TOKENS)
        sealed = max(0, num_tokens - self.storing.hot_tokens) // BLOCK_TOKENS
        return self.footprint(num_tokens, prefill_chunk, 0, relief, max(0, sealed - kept))

    def largest_tokens(
        self, allowed_bytes: int, prefill_chunk: int, relief: Relief = AS_SEALED
    ) -> int:
        """The most tokens whose footprint fits, at most what the model can take. 0 where none
        does. With a relief all is old text but the first tokens and the newest.
        """
        return last_that_fits(
            lambda n: self.relieved(n, prefill_chunk, relief).total <= allowed_bytes,
            self.spec.max_positions,
        )

    def when_short(
        self, prefill_chunk: int, ladder: Collection[str], host_bytes: int
    ) -> tuple[int, Relief]:
        """The chunk and the relief with which the most fits before a turn must be left out: what
        else the ladder does when memory is short. `host_bytes`: what may lie on the host.
        """
        if "shrink_chunk" in ladder:
            prefill_chunk = min(prefill_chunk, LEAST_CHUNK)
        lowest = self.lower[-1] if self.lower and "requantize" in ladder else None
        return prefill_chunk, Relief(lowest, host_bytes if "offload" in ladder else 0)
