"""`bench cache`: how many tokens a GiB of KV holds, and how much of the pool stands free.

Tokens are counted by filling a real pool up to its limit with blocks of the Llama 3 8B geometry,
which is what other programs' figures are given for; the memory is reserved and never written. The
waste is measured in a pool that lives through chats as people have them: several side by side,
turns of the lengths of PagedAttention's ShareGPT workload (means 161 and 338 tokens), documents,
blocks dropped or requantized near the limit. Loads no model.

`layer_formats` holds for the tokens in a GiB, so that its price is seen.
"""

import random
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import torch

from kvchat.arch.from_hf import spec_from_config
from kvchat.bench.readers import parse_pair
from kvchat.kvcache.blocks import FP, Block, Geometry, geometries, shape_of
from kvchat.kvcache.pool import Pool, PoolFull, Storing
from kvchat.kvcache.sequence import Sequence as Text
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair, layer_pairs
from kvchat.models.catalog import catalog
from kvchat.planner.plan import DROP_PARTS
from kvchat.units import GIB

DEFAULT_PAIRS = ("fp", "int8", "int6", "int6/int4", "int5/int4", "int4", "quanto4", "int2")
MODEL = "Llama-3.1-8B-Instruct"
# llama.cpp's cache types: bits of a value with its share of a group's scale.
_LLAMA_CPP = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
_CPU = torch.device("cpu")

_LIVE_TOKENS = 4096
_MEAN_QUESTION, _MEAN_REPLY, _DOCUMENT_TOKENS = 161, 338, 3000
_PREFILL_CHUNK = 512
_LONGEST_CHAT, _LIMIT_TOKENS = 8192, 16384
_OLD_AT_ONCE = 16


def measured(
    names: Sequence[str], limit_bytes: int = GIB, layer_formats: str = ""
) -> Iterator[dict[str, Any]]:
    """A row a pair, and one for each of llama.cpp's types; then the waste. Raises SettingsError."""
    spec = spec_from_config(catalog()[MODEL].config, name=MODEL, dtype_bytes=2)
    least = layer_pairs(layer_formats, len(spec.layers))
    groups = geometries(spec, torch.float16, least)
    pairs = [parse_pair(name) for name in names]
    for pair in pairs:
        row = _row(str(pair), *filled(groups, pair, limit_bytes), limit_bytes)
        yield row | ({"layers": layer_formats} if layer_formats else {})
    values = sum(one.bytes_per_token // one.dtype.itemsize for one in groups)
    for name, bits in _LLAMA_CPP.items():
        each = int(values * bits / 8)
        tokens = limit_bytes // each
        yield _row(f"llama.cpp {name}", tokens, tokens * each, limit_bytes)
    for pair in pairs:
        if pair.is_offered:
            yield waste(Chats(pair))
    if FP in pairs:
        yield waste(Chats(FP, then=FormatPair.parse("int6/int4")))


def _row(name: str, tokens: int, held_bytes: int, limit_bytes: int) -> dict[str, Any]:
    return {
        "name": "cache",
        "model": MODEL,
        "pair": name,
        "limit_bytes": limit_bytes,
        "tokens": tokens,
        "bytes_per_token": round(held_bytes / tokens, 1),
    }


def filled(groups: tuple[Geometry, ...], pair: FormatPair, limit_bytes: int) -> tuple[int, int]:
    """Tokens in a real pool when it says that it is full, and the bytes that their blocks take."""
    pool = Pool(groups, _CPU, b"bench", limit_bytes)
    pairs = [[geometry.served(pair)] for geometry in groups]
    held: list[list[Block]] = []
    while True:
        last = held[-1] if held else [None] * len(groups)
        try:
            held.append([pool.reserve(g, pairs[g], last[g])[0] for g in range(len(groups))])
        except PoolFull:
            return len(held) * BLOCK_TOKENS, sum(block.nbytes for row in held for block in row)


class Chats:
    """Chats by chance over one small pool, the same ones each time. `then`: the formats in which
    the oldest blocks are stored when there is no room, before any are dropped.
    """

    def __init__(self, seal: FormatPair, then: FormatPair | None = None, seed: int = 1) -> None:
        geometry = Geometry((0,), 1, 64, 64, None, torch.float16)
        self.then, self.chance = then, random.Random(seed)
        self.pool = Pool((geometry,), _CPU, b"bench")
        self.pool.storing = Storing(seal, then or seal)
        hot = (self.pool.storing.hot_tokens + BLOCK_TOKENS + _PREFILL_CHUNK) * (
            geometry.bytes_per_token
        )
        held = _LIMIT_TOKENS // BLOCK_TOKENS * shape_of(geometry, seal).block_bytes
        self.pool.limit_bytes, self.pool.hot_floor_bytes = hot + held, hot
        self.chats: list[list[int]] = []
        self.most_tokens = 0
        self.free_parts: list[float] = []

    @property
    def name(self) -> str:
        seal = self.pool.storing.seal
        return str(seal) if self.then is None else f"{seal} > {self.then}"

    def turn(self) -> None:
        """One more question and its reply, in a chat that is there or in a new one."""
        chance = self.chance
        if not self.chats or chance.random() < 0.15:
            document = _DOCUMENT_TOKENS if chance.random() < 0.3 else 60
            self.chats.append(self._words(document))
        at = max(0, len(self.chats) - 1 - int(chance.expovariate(1)))
        chat = self.chats[at]
        question = self._words(1 + int(chance.expovariate(1 / _MEAN_QUESTION)))
        reply = self._words(1 + int(chance.expovariate(1 / _MEAN_REPLY)))
        if len(chat) + len(question) + len(reply) > _LONGEST_CHAT:
            self.chats.pop(at)
            return
        chat.extend(question)
        text = self._begun(chat)
        self._read(text, chat[text.num_cached :], _PREFILL_CHUNK)
        text.shrink_hot(BLOCK_TOKENS)
        self._read(text, reply, BLOCK_TOKENS)
        chat.extend(reply)
        text.close()
        self._look()

    def _words(self, number: int) -> list[int]:
        return [self.chance.randrange(1 << 16) for _ in range(number)]

    def _begun(self, ids: list[int]) -> Text:
        capacity = self.pool.storing.hot_tokens + BLOCK_TOKENS + _PREFILL_CHUNK
        while True:
            try:
                return Text.begin(self.pool, ids, capacity)
            except PoolFull as full:
                self._make_room(full)

    def _read(self, text: Text, ids: list[int], chunk: int) -> None:
        for start in range(0, len(ids), chunk):
            piece = ids[start : start + chunk]
            while True:
                try:
                    text.reserve(len(piece))
                    break
                except PoolFull as full:
                    self._make_room(full)
            text.commit(piece)
            self._look()

    def _make_room(self, full: PoolFull) -> None:
        """As the planner does: lower formats for what is old, then what is idle goes."""
        if self.then is not None and self._requantize_old():
            return
        drop = self.pool.drop_idle_slabs if full.for_hot else self.pool.drop_idle
        assert self.pool.limit_bytes is not None
        drop(max(full.needed_bytes, self.pool.limit_bytes // DROP_PARTS))

    def _requantize_old(self) -> int:
        assert self.then is not None
        held: list[Block] = [one for one in self.pool.index.all() if one.pair != self.then]
        oldest = sorted(held, key=lambda one: (one.last_used, one.depth))[:_OLD_AT_ONCE]
        freed = 0
        try:
            for block in oldest:
                freed += self.pool.requantize(block, self.then)
        except PoolFull:
            return freed
        self.pool.pack()
        return freed

    def _look(self) -> None:
        pool = self.pool
        tokens = sum(BLOCK_TOKENS for _ in pool.index.all())
        self.most_tokens = max(self.most_tokens, tokens)
        if tokens >= _LIVE_TOKENS:
            self.free_parts.append(pool.free_block_bytes / pool.slab_bytes)


def waste(chats: Chats, num_turns: int = 100) -> dict[str, Any]:
    """What part of the slabs held no block, after each piece that was read or written, from 4,096
    tokens on: on average, and at the worst moment, which is when the planner has just made room.
    """
    for _ in range(num_turns):
        chats.turn()
    return {
        "name": "waste",
        "pair": chats.name,
        "turns": num_turns,
        "tokens": chats.most_tokens,
        "mean_percent": round(100 * fmean(chats.free_parts), 2),
        "worst_percent": round(100 * max(chats.free_parts), 2),
    }
