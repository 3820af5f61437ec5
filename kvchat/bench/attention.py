"""`bench attention`: attention alone beside the library's, and how fast it reads what it reads.

One step is all layers of the loaded model for one new token: its keys and values are stored and
attended to with all that came before. Ours goes through a sequence's reserve and commit, and the
backend that `choose` takes; the library's side is its DynamicCache and torch's SDPA, both over the
same random values. Steps are taken in turn, one and one, and the ratio is the median of the ratios
of such neighbours (see speed.py): above 1 kvchat is faster.

What is read in a second is set against what copying one large tensor to another moves, measured in
the same run: bytes read and bytes written both count there. Nothing is asserted here.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache

from kvchat.attention.backend import Scoring
from kvchat.attention.choose import choose
from kvchat.attention.forward import Forward
from kvchat.attention.hf_seam import PagedLayer
from kvchat.bench.readers import parse_pair
from kvchat.engine.engine import Engine
from kvchat.kvcache.pool import Pool, Storing
from kvchat.kvcache.sequence import Sequence as Text
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair

CONTEXTS = (1024, 4096, 8000)
DEFAULT_PAIRS = ("fp", "int8", "int6/int4", "int4")
STEPS = 40
WARM_STEPS = 3
_COPIED_BYTES = 256 * 1024**2
_PIECE_TOKENS = 512

Drawn = dict[int, tuple[Tensor, Tensor, Tensor]]
"""By layer: the query, key and value of one token, [1, heads, 1, dim]."""


def measured(
    engine: Engine,
    names: Sequence[str],
    contexts: Sequence[int] = CONTEXTS,
    steps: int = STEPS,
) -> Iterator[dict[str, Any]]:
    """A row a length of text and pair of formats. Raises SettingsError for a pair that is none."""
    pairs = [parse_pair(name) for name in names]
    pool = engine.pool
    for context in contexts:
        for pair in pairs:
            sides = Sides(engine, pair, context)
            library_s, ours_s = sides.in_turn(steps)
            ratios = [theirs / ours for theirs, ours in zip(library_s, ours_s, strict=True)]
            median_s, copied = statistics.median(ours_s), copied_per_s(pool.device)
            yield {
                "name": "attention",
                "context": context,
                "pair": str(pair),
                "backend": sides.backend,
                "layers": sum(len(one.layers) for one in pool.geometries),
                "threads": torch.get_num_threads(),
                "kvchat_ms": round(median_s * 1000, 2),
                "library_ms": round(statistics.median(library_s) * 1000, 2),
                "ratio": round(statistics.median(ratios), 2),
                "fastest_ratio": round(min(library_s) / min(ours_s), 2),
                "pairs": len(ratios),
                "read_bytes": sides.read_bytes,
                "read_bytes_per_s": round(sides.read_bytes / median_s),
                "copy_bytes_per_s": round(copied),
                "copy_percent": round(100 * sides.read_bytes / median_s / copied, 1),
            }


def copied_per_s(device: torch.device) -> float:
    """Bytes read and written in a second by copying one large tensor: the fastest of several."""
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    fastest_s = min(_timed(lambda: target.copy_(source), device) for _ in range(5))
    return 2 * _COPIED_BYTES / fastest_s


def _timed(act: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device has done it."""
    _wait(device)
    before_s = time.perf_counter()
    act()
    _wait(device)
    return time.perf_counter() - before_s


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class Sides:
    """The same random text in our pool and in the library's cache, for one token after another."""

    def __init__(self, engine: Engine, pair: FormatPair, context: int) -> None:
        self._device, self._random = engine.pool.device, torch.Generator().manual_seed(context)
        self._heads = engine.loaded.spec.num_query_heads
        groups = engine.pool.geometries
        pool = Pool(groups, self._device, b"bench")
        pool.storing = Storing(pair, pair)
        self._sequence = Text(pool)
        self._forward = Forward(self._sequence)
        self._layers = {
            number: PagedLayer(self._forward, group, layer)
            for group, geometry in enumerate(groups)
            for layer, number in enumerate(geometry.layers)
        }
        self._library = DynamicCache(config=engine.loaded.model.config)
        self.backend = ""
        while self._sequence.num_cached < context:
            self._fill(min(_PIECE_TOKENS, context - self._sequence.num_cached))
        self._sequence.shrink_hot(pool.storing.hot_tokens + BLOCK_TOKENS)

    def _fill(self, num_tokens: int) -> None:
        """Both sides read a piece of text, ours without attending to it."""
        sequence = self._sequence
        sequence.reserve(num_tokens)
        self._forward.begin()
        for number, layer in self._layers.items():
            _, keys, values = self._drawn(layer, num_tokens)
            layer.update(keys, values, kwargs={})
            self._library.update(keys, values, number)
        sequence.commit([0] * num_tokens)
        self._forward.end()

    def _drawn(self, layer: PagedLayer, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as a layer of the model makes them: [1, heads, tokens, dim]."""
        geometry = self._sequence.pool.geometries[layer.group]

        def normal(heads: int, dim: int) -> Tensor:
            made = torch.randn(1, num_tokens, heads, dim, generator=self._random)
            return made.to(self._device, geometry.dtype).transpose(1, 2)

        return (
            normal(self._heads, geometry.key_dim),
            normal(geometry.num_kv_heads, geometry.key_dim),
            normal(geometry.num_kv_heads, geometry.value_dim),
        )

    @torch.inference_mode()
    def in_turn(self, steps: int) -> tuple[list[float], list[float]]:
        """Seconds of each step: the library's, and ours beside it; who is first changes."""
        seconds: dict[object, list[float]] = {self.by_library: [], self.by_ours: []}
        for number in range(WARM_STEPS + steps):
            drawn = self.draw()
            sides = (self.by_library, self.by_ours)
            for side in sides if number % 2 else reversed(sides):
                seconds[side].append(_timed(partial(side, drawn), self._device))
        return seconds[self.by_library][WARM_STEPS:], seconds[self.by_ours][WARM_STEPS:]

    def draw(self) -> Drawn:
        """What all layers make of one new token."""
        return {number: self._drawn(layer, 1) for number, layer in self._layers.items()}

    def by_library(self, drawn: Drawn) -> list[Tensor]:
        """[1, heads, 1, value_dim] of each layer."""
        found = []
        for number, (query, keys, values) in drawn.items():
            keys, values = self._library.update(keys, values, number)
            found.append(scaled_dot_product_attention(query, keys, values, enable_gqa=True))
        return found

    def by_ours(self, drawn: Drawn) -> list[Tensor]:
        """[1, 1, heads, value_dim] of each layer."""
        found = []
        self._sequence.reserve(1)
        self._forward.begin()
        for number, (query, keys, values) in drawn.items():
            layer = self._layers[number]
            layer.update(keys, values, kwargs={})
            scoring = Scoring(query.shape[-1] ** -0.5)
            attend = choose(query, layer, scoring)
            found.append(attend(query, layer, scoring))
        self.backend = attend.__module__.removeprefix("kvchat.attention.")
        self._sequence.commit([0])
        self._forward.end()
        return found

    @property
    def read_bytes(self) -> int:
        """What one step of ours reads of KV: blocks in their formats, the rest as computed."""
        sequence = self._sequence
        blocks = sum(b.nbytes for table in sequence.tables for b in table if b is not None)
        hot = sum(one.bytes_per_token for one in sequence.pool.geometries)
        return blocks + sequence.num_hot * hot
