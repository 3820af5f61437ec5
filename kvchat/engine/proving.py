"""Measures by itself the formats that a planner would step down to, where nothing is known of them
for this model: a short reading (engine/fidelity.py), while nothing is asked.

A chunk of one reader at a time: who wants the thread has it after that chunk. The reading's memory
is given back then, and it begins again in the next quiet moment, one pair of formats at a time from
then on. It takes no more than what is free beside all that is held, so that nothing is given up for
it; else it waits. Knows no file: what is known it is told, and what it finds out it tells.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any, Literal

from kvchat.device.oom import release
from kvchat.engine.engine import Engine
from kvchat.engine.fidelity import (
    AS_COMPUTED,
    CHUNK_TOKENS,
    LEAST_SCORED,
    Lengths,
    PairReader,
    Sample,
    Score,
    reading,
    reading_bytes,
    shipped_sample,
)
from kvchat.kvcache.blocks import FP
from kvchat.memory.formats import FormatPair
from kvchat.memory.verdicts import Verdict, unjudged_steps

# Shorter than a benchmark's: it is to be over soon, and what a model cannot stand shows at once.
# How much verdicts differ between texts at this length stands in docs/decisions.md.
LENGTHS = Lengths(num_tokens=1024, num_scored=512, num_around_needles=0)
SLICE_S = 0.5  # after so long memory is measured and shown again
MOST_FAILURES = 3
Stage = Literal["done", "waiting", "measuring", "given_up"]


class Proving:
    """`known` tells what the model was measured with, by pair; `keep` is given what was found.
    `stage` and `progress` may be read by any thread; all else belongs to the one that runs the
    engine.
    """

    def __init__(
        self,
        engine: Engine,
        known: Callable[[], Mapping[str, Verdict]],
        keep: Callable[[list[Verdict]], None],
    ) -> None:
        self._engine, self._known, self._keep = engine, known, keep
        self._steps: tuple[FormatPair, ...] = ()
        if engine.pool.geometries:
            self._steps = unjudged_steps(known())
        engine.prepare(self._steps)
        self._wishes: SimpleQueue[FormatPair | None] = SimpleQueue()
        self._asked: tuple[FormatPair, ...] = ()
        self._reading: _Reading | None = None
        self._one_by_one = False
        self._num_failures = self._num_found = 0

    def ask(self, pair: FormatPair) -> None:
        """A pair that somebody wants to know of, also where it can be concluded from others or is
        none that a planner steps down to. Any thread may ask.
        """
        self._wishes.put(pair)

    def cancel(self) -> None:
        """Measures nothing more, until somebody asks or the next start. Any thread may ask."""
        self._wishes.put(None)

    @property
    def progress(self) -> dict[str, Any]:
        """What is being measured or waits for it, and how far it is: steps of all steps; `found`:
        how many were measured since the start.
        """
        reading, pairs = self._reading, [str(pair) for pair in self._left]
        done, of = (0, 0) if reading is None else (reading.num_done, reading.num_steps)
        return {"pairs": pairs, "done": done, "of": of, "found": self._num_found}

    @property
    def _left(self) -> tuple[FormatPair, ...]:
        return tuple(dict.fromkeys((*self._asked, *self._steps)))

    def _take_wishes(self) -> None:
        with suppress(Empty):
            while True:
                pair = self._wishes.get_nowait()
                if pair is None:
                    self._asked = self._steps = ()
                    self.rest()
                elif self._engine.pool.geometries:
                    self._engine.prepare((pair,))
                    self._asked = (*self._asked, pair)
                    self._num_failures = 0

    @property
    def stage(self) -> Stage:
        """`done` too where there is nothing to measure; `given_up` until the next start."""
        if self._reading is not None:
            return "measuring"
        if not self._left:
            return "done"
        return "given_up" if self._num_failures >= MOST_FAILURES else "waiting"

    def go_on(self, is_wanted: Callable[[], bool]) -> bool:
        """Reads on for a moment, until somebody wants the thread. Whether there is more to be read
        at once. Raises what a step raises, and what `keep` does: then call `failed`.
        """
        self._take_wishes()
        if self.stage in ("done", "given_up") or is_wanted():
            return False
        now = self._engine.room.snapshot()
        if self._reading is None:
            self._reading = self._begun(now.allowed_bytes - now.own_bytes)
        elif now.own_bytes > now.allowed_bytes:
            self.rest()
        until_s = time.monotonic() + SLICE_S
        while self._reading is not None and not is_wanted() and time.monotonic() < until_s:
            if not self._reading.step():
                self._end(self._reading)
                return bool(self._left)
        return self._reading is not None

    def rest(self) -> None:
        """Gives back all that a reading holds."""
        begun, self._reading = self._reading, None
        if begun is not None:
            self._one_by_one = True
            begun.close()

    def failed(self) -> None:
        """After an error: it is tried a few times more, in less memory. Call it outside of the
        `except` block.
        """
        self._num_failures += 1
        self.rest()
        release(self._engine.loaded.device)

    def _begun(self, free_bytes: int) -> "_Reading | None":
        """As many of the pairs that are left as there is room for."""
        loaded = self._engine.loaded
        lengths = LENGTHS.within(len(self._ids), loaded.spec.max_positions)
        if lengths.num_scored < LEAST_SCORED:
            self._num_failures = MOST_FAILURES
            return None
        for pairs in (self._left[:1],) if self._one_by_one else (self._left, self._left[:1]):
            needed = reading_bytes(self._engine, (FP, *pairs), lengths.num_tokens)
            if needed <= free_bytes:
                return _Reading(self._engine, pairs, self._ids, lengths)
        return None

    def _end(self, read: "_Reading") -> None:
        found = read.verdicts(self._sample.name)
        self.rest()
        self._one_by_one = False
        release(self._engine.loaded.device)
        self._keep(found)
        self._num_found += len(found)
        before = self._left
        read_now = {one.pair for one in found}
        self._asked = tuple(one for one in self._asked if str(one) not in read_now)
        unknown = unjudged_steps(self._known())
        self._steps = tuple(one for one in self._steps if one in unknown)
        if len(self._left) == len(before):  # they were not kept
            self._num_failures += 1

    @cached_property
    def _sample(self) -> Sample:
        return shipped_sample(self._engine.loaded.name, "en")

    @cached_property
    def _ids(self) -> list[int]:
        return self._sample.ids(self._engine.loaded.tokenizer)[: LENGTHS.num_tokens + 1]


class _Reading:
    """Pairs of formats side by side, after the reader that keeps its KV as computed."""

    def __init__(
        self, engine: Engine, pairs: tuple[FormatPair, ...], ids: list[int], lengths: Lengths
    ) -> None:
        self._readers: dict[str, PairReader] = {}
        try:
            for pair in (FP, *pairs):
                self._readers[str(pair)] = PairReader(engine, pair)
        except BaseException:
            self.close()
            raise
        self._scores = {name: Score(reader.bits) for name, reader in self._readers.items()}
        self.num_done = 0
        self.num_steps = len(self._readers) * (lengths.num_tokens // CHUNK_TOKENS)
        device = engine.loaded.device
        self._steps = reading(self._readers, self._scores, ids, lengths, device)

    def step(self) -> bool:
        """One chunk of one reader; False once all was read."""
        goes_on = next(self._steps, True) is None
        self.num_done += goes_on
        return goes_on

    def verdicts(self, text: str) -> list[Verdict]:
        computed = self._scores[AS_COMPUTED]
        return [
            score.verdict(pair, computed, text)
            for pair, score in self._scores.items()
            if pair != AS_COMPUTED
        ]

    def close(self) -> None:
        while self._readers:
            self._readers.popitem()[1].close()
