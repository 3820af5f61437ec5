"""`bench prefill`, `bench decode`: this engine beside the library's own loop and cache, in one run.

    prefill   tokens a second until the first token, from an empty cache
    decode    seconds a token after that, at the same length of text

Both sides use the same weights, ids and threads and take turns, so that whatever else the machine
is doing falls on both. A ratio above 1 means that kvchat is faster. Nothing is asserted here.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from transformers import StoppingCriteria

from kvchat.attention.hf_seam import use_library_attention
from kvchat.engine.engine import Engine
from kvchat.engine.events import Request, Token

CONTEXTS = (512, 4096)
NEW_TOKENS = 17
ROUNDS = 3


@dataclass(slots=True)
class Times:
    """Of one side: seconds to the first token, and of each token after it."""

    prefill_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)

    def add(self, moments: list[float]) -> None:
        """`moments`: the start, then the time of each token."""
        self.prefill_s.append(moments[1] - moments[0])
        self.decode_s.extend(b - a for a, b in pairwise(moments[1:]))


def measured(
    engine: Engine, contexts: tuple[int, ...] = CONTEXTS, rounds: int = ROUNDS
) -> Iterator[dict[str, Any]]:
    """Rows of prefill and decode at each length of text that the model can take."""
    engine.loaded.eos_token_ids = frozenset()
    generator = torch.Generator().manual_seed(1)
    for context in contexts:
        if context + NEW_TOKENS > engine.loaded.spec.max_positions:
            continue
        ids = torch.randint(10, engine.loaded.spec.vocab_size, (context,), generator=generator)
        ours, theirs = Times(), Times()
        for _ in range(rounds):
            theirs.add(_library(engine, ids))
            ours.add(_kvchat(engine, tuple(ids.tolist())))
        yield _row("prefill", context, ours.prefill_s, theirs.prefill_s)
        yield _row("decode", context, ours.decode_s, theirs.decode_s)


def _row(name: str, context: int, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    mine, library = statistics.median(ours), statistics.median(theirs)
    return {
        "name": name,
        "context": context,
        "threads": torch.get_num_threads(),
        "kvchat_ms": round(mine * 1000, 1),
        "library_ms": round(library * 1000, 1),
        "ratio": round(library / mine, 3),
        "fastest_ratio": round(min(theirs) / min(ours), 3),
    }


class _Clock(StoppingCriteria):
    """Notes the time of each token of the library's loop."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def __call__(self, input_ids: torch.Tensor, _scores: object, **_: object) -> torch.Tensor:
        self.moments.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _library(engine: Engine, ids: torch.Tensor) -> list[float]:
    model: Any = engine.loaded.model
    with use_library_attention(model), torch.inference_mode():
        clock = _Clock()
        model.generate(
            ids.unsqueeze(0).to(engine.loaded.device),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[clock],
        )
    return clock.moments


def _kvchat(
    engine: Engine, ids: tuple[int, ...], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    engine.close_text()
    engine.pool.drop_idle(engine.pool.device_bytes)
    moments = [clock()]
    for event in engine.run(Request(ids, (), NEW_TOKENS)):
        if isinstance(event, Token):
            moments.append(clock())
    return moments
