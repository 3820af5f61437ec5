"""`bench planning`: what deciding takes beside a decode step, which it must not be seen in.

A text of the loaded model is open as in a chat, many turns of it old; the time is that of the
engine's own calls before a token: between the edges of blocks, where only a number is compared, and
at an edge (one token in 64), where the device is read and room is planned for. There once with a
reading that costs nothing, and once with this machine's own probe: the rest is the driver's.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kvchat.bench.room import refuse_too_large
from kvchat.device.fake import FakeProbe
from kvchat.device.guarded import GuardedProbe
from kvchat.engine.detokenize import Detokenizer
from kvchat.engine.engine import Engine
from kvchat.engine.events import Request
from kvchat.engine.reply import Reply
from kvchat.kvcache.spans import Span
from kvchat.memory.formats import BLOCK_TOKENS

CONTEXTS = (1024, 4096)
_CHUNK, _TURN, _REPLY = 512, 256, 256
_TIMES = 301


def measured(engine: Engine, contexts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row a context, medians in microseconds. Raises OutOfMemory."""
    most = engine.loaded.spec.max_positions - _REPLY
    for context in dict.fromkeys(min(one, most) for one in contexts):
        refuse_too_large(engine, engine.costs.needed_bytes(context + _REPLY, _CHUNK))
        yield _row(engine, context)


def _row(engine: Engine, context: int) -> dict[str, Any]:
    room, own = engine.room, engine.room.probe
    engine.close_text()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(10, engine.loaded.spec.vocab_size, (context,), generator=generator).tolist()
    starts = range(0, context, _TURN)
    spans = tuple(
        Span("turn", f"turn {i}", i, start, min(context, start + _TURN))
        for i, start in enumerate(starts, 1)
    )
    old = tuple((one.start, one.stop) for one in spans[:-1])
    request = Request(tuple(ids), spans, _REPLY, _CHUNK, old=old)
    reply = Reply(request, Detokenizer(engine.loaded.tokenizer, ()), 0.0, _CHUNK)
    room.set_limit(reply, _CHUNK)
    room.text = text = engine.local.open((), _CHUNK)
    try:
        for start in range(0, context, _CHUNK):
            engine.local.step(text, ids[start : start + _CHUNK])
        edge_probe_us = _median_us(lambda: list(room.at_block(reply)))
        room.probe = GuardedProbe(FakeProbe([room.latest.device]))
        return {
            "name": "planning",
            "context": context,
            "blocks": context // BLOCK_TOKENS,
            "between_us": round(_median_us(room.begins_block), 1),
            "edge_us": round(_median_us(lambda: list(room.at_block(reply))), 1),
            "edge_probe_us": round(edge_probe_us, 1),
        }
    finally:
        room.probe = own
        engine.close_text()
        engine.pool.drop_idle(engine.pool.device_bytes)


def _median_us(do: Callable[[], object]) -> float:
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        do()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[_TIMES // 2] * 1e6
