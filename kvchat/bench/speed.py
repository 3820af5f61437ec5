"""`bench prefill`, `bench decode`, `bench quantized`: this engine beside the library's own loop and
cache, in one run.

    prefill     seconds until the first token, from an empty cache
    decode      seconds a token after that, at the same length of text
    quantized   the same as decode, where the library keeps its text in its own int4 cache

Both sides use the same weights, ids and threads. Tokens are drawn in turn, one of the library's and
one of ours, and the ratio is the median of the ratios of such neighbours: whatever else the machine
does for longer than two steps falls on both. A ratio above 1 means that kvchat is faster. Nothing
is asserted here.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from transformers import StoppingCriteria

from kvchat.attention.hf_seam import use_library_attention, use_our_attention
from kvchat.bench.readers import quanto_cache
from kvchat.engine.engine import Engine
from kvchat.engine.events import Request, Token

CONTEXTS = (512, 4096)
NEW_TOKENS = 25
MOST_ROUNDS, READ_TOKENS = 15, 16_384  # of a length of text: as many rounds as read so much


@dataclass(frozen=True, slots=True)
class Spent:
    """Of one token: seconds of the clock, and of the processor. Only the first count waiting for
    other programs; only they mean anything where a GPU computes.
    """

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Self:
        return cls(time.perf_counter(), time.process_time())

    def since(self, before: "Spent") -> "Spent":
        return Spent(self.wall_s - before.wall_s, self.cpu_s - before.cpu_s)


@dataclass(slots=True)
class Pairs:
    """What the library's tokens took, and ours that came right before or after each."""

    library: list[Spent] = field(default_factory=list)
    ours: list[Spent] = field(default_factory=list)

    def add(self, library: Spent, ours: Spent) -> None:
        self.library.append(library)
        self.ours.append(ours)

    def row(self, name: str, context: int) -> dict[str, Any]:
        pairs = list(zip(self.library, self.ours, strict=True))
        return {
            "name": name,
            "context": context,
            "threads": torch.get_num_threads(),
            "kvchat_ms": round(statistics.median(one.wall_s for one in self.ours) * 1000, 1),
            "library_ms": round(statistics.median(one.wall_s for one in self.library) * 1000, 1),
            "ratio": round(statistics.median(a.wall_s / b.wall_s for a, b in pairs), 3),
            "cpu_ratio": round(statistics.median(a.cpu_s / b.cpu_s for a, b in pairs), 3),
            "pairs": len(pairs),
        }


def measured(
    engine: Engine, contexts: Sequence[int] = CONTEXTS, *, quantized: bool = False
) -> Iterator[dict[str, Any]]:
    """Rows of prefill and decode at each length of text that the model can take; `quantized`: of
    decode beside the library's quantized cache.
    """
    engine.loaded.eos_token_ids = frozenset()
    generator = torch.Generator().manual_seed(1)
    for context in contexts:
        if context + NEW_TOKENS > engine.loaded.spec.max_positions:
            continue
        ids = torch.randint(10, engine.loaded.spec.vocab_size, (context,), generator=generator)
        prefill, decode = Pairs(), Pairs()
        for number in range(max(1, min(MOST_ROUNDS, READ_TOKENS // context))):
            known = {"cache": quanto_cache(engine)} if quantized else {}
            first, *later = _in_turn(engine, ids, known, ours_first=number % 2 == 1)
            prefill.add(*first)
            for pair in later:
                decode.add(*pair)
        if quantized:
            yield decode.row("quantized", context)
        else:
            yield prefill.row("prefill", context)
            yield decode.row("decode", context)


def _in_turn(
    engine: Engine, ids: torch.Tensor, known: dict[str, Any], *, ours_first: bool
) -> list[tuple[Spent, Spent]]:
    """What each token took: (the library's, ours). Ours are drawn inside the library's loop; only
    the first, the prefill, may come before it.
    """
    engine.close_text()
    engine.pool.drop_idle(engine.pool.device_bytes)
    model: Any = engine.loaded.model
    turns = _Turns(engine, tuple(ids.tolist()))
    if ours_first:
        turns.draw()
    with use_library_attention(model), torch.inference_mode():
        turns.since = Spent.now()
        model.generate(
            ids.unsqueeze(0).to(engine.loaded.device),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[turns],
            **known,
        )
    return list(zip(turns.library, turns.ours, strict=True))


class _Turns(StoppingCriteria):
    """Called by the library's loop after each of its tokens: draws one of ours, and times both."""

    def __init__(self, engine: Engine, ids: tuple[int, ...]) -> None:
        self.library: list[Spent] = []
        self.ours: list[Spent] = []
        self.since = Spent.now()
        self._model = engine.loaded.model
        self._tokens = (e for e in engine.run(Request(ids, (), NEW_TOKENS)) if isinstance(e, Token))

    def draw(self) -> None:
        before = Spent.now()
        next(self._tokens)
        self.ours.append(Spent.now().since(before))

    def __call__(self, input_ids: torch.Tensor, _scores: object, **_: object) -> torch.Tensor:
        input_ids[0, -1].item()  # waits for the device; ours comes as a number already
        self.library.append(Spent.now().since(self.since))
        if len(self.ours) < len(self.library):
            with use_our_attention(self._model):
                self.draw()
        over = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        self.since = Spent.now()
        return over
