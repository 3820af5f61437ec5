"""`bench resume`: a text that an earlier program has read, from disk, beside reading it again.

A second engine over the same weights stands for the program after a restart: its pool is empty, it
finds the files of the first, and its prompt is one token longer. Seconds to the first token: with
an empty cache, and from disk; beside that stand what reading the files alone takes and one decode
step. Nothing is asserted here.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from kvchat.bench.room import refuse_too_large
from kvchat.engine.engine import Engine
from kvchat.engine.events import Prefilled, Request, Token
from kvchat.kvcache.disk import SUFFIX, KVFolder
from kvchat.kvcache.tiers import INT8, DiskPlace
from kvchat.memory.formats import FormatPair, lower_of
from kvchat.units import GIB

CONTEXTS = (4096,)
_CHAT, _CHUNK, _NEW_TOKENS, _ROUNDS = "bench", 512, 4, 3


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds to the first token and of a step after it; prompt tokens that were not read."""

    first_s: float
    step_s: float
    reused_tokens: int


def measured(
    engine: Engine, contexts: Sequence[int] = CONTEXTS, stored: FormatPair = INT8
) -> Iterator[dict[str, Any]]:
    """A row a length of text. Raises OutOfMemory, and OSError where the folder takes no files."""
    engine.loaded.eos_token_ids = frozenset()
    generator = torch.Generator().manual_seed(1)
    for context in contexts:
        most = engine.loaded.spec.max_positions - _NEW_TOKENS - 1
        ids = torch.randint(
            10, engine.loaded.spec.vocab_size, (min(context, most) + 1,), generator=generator
        )
        refuse_too_large(engine, engine.costs.needed_bytes(len(ids) + _NEW_TOKENS, _CHUNK))
        with tempfile.TemporaryDirectory(prefix="kvchat-bench-") as folder:
            yield _row(engine, tuple(ids.tolist()), Path(folder), stored)


def _row(engine: Engine, ids: tuple[int, ...], folder: Path, stored: FormatPair) -> dict[str, Any]:
    place = DiskPlace(KVFolder(folder), b"bench")
    read_again_s = _first_program(engine, ids[:-1], place, stored)
    found = [_timed(_opened(engine, place, stored), ids) for _ in range(_ROUNDS)]
    resumed_s = statistics.median(one.first_s for one in found)
    step_s = statistics.median(one.step_s for one in found)
    file_s, file_bytes = _reading(folder)
    return {
        "name": "resume",
        "context": len(ids) - 1,
        "reused": min(one.reused_tokens for one in found),
        "pair": str(stored),
        "threads": torch.get_num_threads(),
        "read_again_ms": round(read_again_s * 1000, 1),
        "resumed_ms": round(resumed_s * 1000, 1),
        "files_ms": round(file_s * 1000, 1),
        "file_bytes": file_bytes,
        "step_ms": round(step_s * 1000, 1),
        "ratio": round(read_again_s / resumed_s, 1),
    }


def _opened(engine: Engine, place: DiskPlace, stored: FormatPair) -> Engine:
    storing = engine.limits.storing
    storing = replace(storing, floor=lower_of(storing.floor, stored))
    limits = replace(engine.limits, disk_quota=GIB, disk_format=stored, storing=storing)
    engine.close_text()
    engine.pool.drop_idle(engine.pool.device_bytes)
    return Engine(engine.loaded, engine.room.probe, limits, place=place)


def _first_program(
    engine: Engine, ids: tuple[int, ...], place: DiskPlace, stored: FormatPair
) -> float:
    """Reads the text, writes it to disk and ends; returns the seconds to its first token."""
    program = _opened(engine, place, stored)
    found = _timed(program, ids)
    program.close()
    return found.first_s


def _timed(program: Engine, ids: tuple[int, ...]) -> Timed:
    moments, reused = [time.perf_counter()], 0
    for event in program.run(Request(ids, (), _NEW_TOKENS, _CHUNK, chat=_CHAT)):
        if isinstance(event, Token):
            moments.append(time.perf_counter())
        elif isinstance(event, Prefilled):
            reused = event.reused_tokens
    first, *steps = (after - before for before, after in pairwise(moments))
    return Timed(first, statistics.median(steps), reused)


def _reading(folder: Path) -> tuple[float, int]:
    """The fastest seconds of reading all files, which the system has in memory, and their bytes."""
    files = sorted(folder.glob(f"*/*{SUFFIX}"))
    times, size = [], 0
    for _ in range(_ROUNDS):
        before_s = time.perf_counter()
        size = sum(len(file.read_bytes()) for file in files)
        times.append(time.perf_counter() - before_s)
    return min(times), size
