"""`bench prefill`, `bench decode`: this engine beside the library's own loop and cache, in one run.

    prefill   seconds until the first token, from an empty cache
    decode    seconds a token after that, at the same length of text

Both sides use the same weights, ids and threads. Tokens are drawn in turn, one of the library's and
one of ours, and the ratio is the median of the ratios of such neighbours: whatever else the machine
does for longer than two steps falls on both. A ratio above 1 means that kvchat is faster. Nothing
is asserted here.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import StoppingCriteria

from kvchat.attention.hf_seam import use_library_attention, use_our_attention
from kvchat.engine.engine import Engine
from kvchat.engine.events import Request, Token

CONTEXTS = (512, 4096)
NEW_TOKENS = 25
ROUNDS = 6


@dataclass(slots=True)
class Pairs:
    """Seconds of the library's tokens, and of ours that came right after each."""

    library_s: list[float] = field(default_factory=list)
    ours_s: list[float] = field(default_factory=list)

    def add(self, library_s: float, ours_s: float) -> None:
        self.library_s.append(library_s)
        self.ours_s.append(ours_s)

    def row(self, name: str, context: int) -> dict[str, Any]:
        ratios = [theirs / ours for theirs, ours in zip(self.library_s, self.ours_s, strict=True)]
        return {
            "name": name,
            "context": context,
            "threads": torch.get_num_threads(),
            "kvchat_ms": round(statistics.median(self.ours_s) * 1000, 1),
            "library_ms": round(statistics.median(self.library_s) * 1000, 1),
            "ratio": round(statistics.median(ratios), 3),
            "fastest_ratio": round(min(self.library_s) / min(self.ours_s), 3),
            "pairs": len(ratios),
        }


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
        prefill, decode = Pairs(), Pairs()
        for number in range(rounds):
            first, *later = _in_turn(engine, ids, ours_first=number % 2 == 1)
            prefill.add(*first)
            for pair in later:
                decode.add(*pair)
        yield prefill.row("prefill", context)
        yield decode.row("decode", context)


def _in_turn(engine: Engine, ids: torch.Tensor, *, ours_first: bool) -> list[tuple[float, float]]:
    """Seconds of each token: (the library's, ours). Ours are drawn inside the library's loop; only
    the first, the prefill, may come before it.
    """
    engine.close_text()
    engine.pool.drop_idle(engine.pool.device_bytes)
    model: Any = engine.loaded.model
    turns = _Turns(engine, tuple(ids.tolist()))
    if ours_first:
        turns.draw()
    with use_library_attention(model), torch.inference_mode():
        turns.since_s = time.perf_counter()
        model.generate(
            ids.unsqueeze(0).to(engine.loaded.device),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[turns],
        )
    return list(zip(turns.library_s, turns.ours_s, strict=True))


class _Turns(StoppingCriteria):
    """Called by the library's loop after each of its tokens: draws one of ours, and times both."""

    def __init__(self, engine: Engine, ids: tuple[int, ...]) -> None:
        self.library_s: list[float] = []
        self.ours_s: list[float] = []
        self.since_s = 0.0
        self._model = engine.loaded.model
        self._tokens = (e for e in engine.run(Request(ids, (), NEW_TOKENS)) if isinstance(e, Token))

    def draw(self) -> None:
        before_s = time.perf_counter()
        next(self._tokens)
        self.ours_s.append(time.perf_counter() - before_s)

    def __call__(self, input_ids: torch.Tensor, _scores: object, **_: object) -> torch.Tensor:
        input_ids[0, -1].item()  # waits for the device; ours comes as a number already
        self.library_s.append(time.perf_counter() - self.since_s)
        if len(self.ours_s) < len(self.library_s):
            with use_our_attention(self._model):
                self.draw()
        over = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        self.since_s = time.perf_counter()
        return over
