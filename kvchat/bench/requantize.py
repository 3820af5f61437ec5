"""`bench requantize`: what it takes to store a text in lower formats while a chat goes on.

4,096 tokens of the loaded model, as computed, are stored anew block by block, as the planner does
between two steps; beside it stands the time of five decode steps of the same model over the same
text, in the same minute.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kvchat.bench.readers import parse_pair
from kvchat.bench.room import refuse_too_large
from kvchat.engine.engine import Engine
from kvchat.engine.local import Text
from kvchat.kvcache.blocks import FP, Block
from kvchat.kvcache.pool import AS_COMPUTED
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair

DEFAULT_PAIRS = ("int8", "int6/int4")
_CONTEXT, _CHUNK, _STEPS = 4096, 512, 5


def measured(
    engine: Engine, names: Sequence[str], context: int = _CONTEXT
) -> Iterator[dict[str, Any]]:
    """A row a pair. Raises OutOfMemory."""
    spec = engine.loaded.spec
    most = spec.max_positions - 2 * _STEPS
    context = min(context, most) // BLOCK_TOKENS * BLOCK_TOKENS
    refuse_too_large(engine, engine.costs.needed_bytes(context + BLOCK_TOKENS, _CHUNK))
    engine.close_text()
    pool = engine.pool
    pool.storing, pool.limit_bytes = AS_COMPUTED, None
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(10, spec.vocab_size, (context,), generator=generator).tolist()
    text = engine.local.open((), _CHUNK)
    try:
        for start in range(0, context, _CHUNK):
            engine.local.step(text, ids[start : start + _CHUNK])
        for name in names:
            yield _measured(engine, text, parse_pair(name), ids[0])
    finally:
        engine.local.close(text)
        pool.storing = engine.limits.storing
        pool.drop_idle(pool.device_bytes)


def _measured(engine: Engine, text: Text, pair: FormatPair, token: int) -> dict[str, Any]:
    held = [block for table in text.sequence.tables for block in table if block is not None]
    geometries = engine.pool.geometries
    pairs = [geometries[block.group].served(pair) for block in held]
    _requantized(engine, held[:1], pairs[:1])  # what is made on first use is made now
    _requantized(engine, held[:1], [FP])
    engine.local.step(text, (token,))
    before = engine.pool.slab_bytes - engine.pool.free_block_bytes
    moments = [time.perf_counter()]
    for _ in range(_STEPS):
        int(engine.local.step(text, (token,)).argmax())
    moments.append(time.perf_counter())
    _requantized(engine, held, pairs)
    moments.append(time.perf_counter())
    after = engine.pool.slab_bytes - engine.pool.free_block_bytes
    row = {
        "name": "requantize",
        "pair": str(pair),
        "tokens": len(text.sequence.keys) * BLOCK_TOKENS,
        "threads": torch.get_num_threads(),
        "requantize_ms": round(1000 * (moments[2] - moments[1]), 1),
        "steps": _STEPS,
        "steps_ms": round(1000 * (moments[1] - moments[0]), 1),
        "freed_bytes": before - after,
    }
    _requantized(engine, held, [FP] * len(held))  # for the next pair; only time is measured
    return row


def _requantized(engine: Engine, blocks: Sequence[Block], pairs: Sequence[FormatPair]) -> int:
    """Reads a byte of the last one, so that a device has done its work."""
    for block, pair in zip(blocks, pairs, strict=True):
        engine.pool.requantize(block, pair)
    return int(blocks[-1].slab.memory[blocks[-1].start])
