"""What steps took beside weights and cache, as measured, against what was estimated from shapes;
and the figure that follows for any other step.

A step reads `chunk_tokens` at the end of a text of `context_tokens`. Sizes in between need not have
been seen, since more of either never takes less, measured or estimated. With `factor` the worst
that measured / estimated has been, at least 1, a step takes

    no less than    the most that a step of no more tokens took
    no more than    the least that a step of no fewer tokens took
                    factor * the estimate

and the greater of the two is the figure. So a step that was measured is foretold as it was, what
lies between two as the larger one, and what is larger than all by the estimate. (A line between two
would be closer, and so would adding to the smaller one what the estimate says is more; both were
too low by up to a fifth, since the greatest of several terms is estimated and another one may be
the greatest in truth.) Decoding runs other kernels than reading, and a decode step that fills a
block stores it as well: none of the three kinds tells anything of another. What ran out of memory
with a figure at hand needs more than that, until a step of its size succeeds.

Arithmetic on values: who measures is device/peak.py, and where it is kept models/calibrations.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Literal

from kvchat.memory.formats import BLOCK_TOKENS

# Steps of nearly the same size are kept as two: sizes within a sixteenth of an octave, 4 %.
_SLOTS_PER_OCTAVE = 16
_MOST_STEPS = 192
# By how much more than its figure a step is taken to need that ran out of memory: so much at least
# that the planner does something, so little that it is not much.
_SHORT_PARTS = 16
# Another program may have taken the memory: no shortage makes a figure more than this many times
# the estimate.
_MOST_TIMES = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One forward: its size, what was estimated for it, and the most that was alive of what it
    made.
    """

    chunk_tokens: int
    context_tokens: int
    estimated_bytes: int
    measured_bytes: int

    @property
    def slot(self) -> "Slot":
        return slot_of(self.chunk_tokens, self.context_tokens)

    def is_within(self, chunk_tokens: int, context_tokens: int) -> bool:
        """Whether it is of the same kind as a step of that size, and no larger."""
        smaller = self.chunk_tokens <= chunk_tokens and self.context_tokens <= context_tokens
        return smaller and self.slot[0] == _kind(chunk_tokens, context_tokens)

    def reaches(self, chunk_tokens: int, context_tokens: int) -> bool:
        """Whether it is of the same kind as a step of that size, and no smaller."""
        larger = self.chunk_tokens >= chunk_tokens and self.context_tokens >= context_tokens
        return larger and self.slot[0] == _kind(chunk_tokens, context_tokens)


Kind = Literal["reading", "decoding", "filling"]
Slot = tuple[Kind, int, int]


def slot_of(chunk_tokens: int, context_tokens: int) -> Slot:
    """Steps of one slot are taken to be alike."""
    kind = _kind(chunk_tokens, context_tokens)
    return kind, _octaves(chunk_tokens), _octaves(context_tokens)


def _kind(chunk_tokens: int, context_tokens: int) -> Kind:
    if chunk_tokens != 1:
        return "reading"
    return "decoding" if context_tokens % BLOCK_TOKENS else "filling"


def _octaves(num_tokens: int) -> int:
    return round(_SLOTS_PER_OCTAVE * log2(max(1, num_tokens)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured steps of one model on one device, the newest last; `short`: steps that ran out of
    memory, with what they need at least.
    """

    steps: tuple[Step, ...] = ()
    short: tuple[Step, ...] = ()
    factor: float = 1.0

    @classmethod
    def of(cls, steps: Iterable[Step]) -> "Calibration":
        found = cls()
        for step in steps:
            found = found.with_step(step)
        return found

    def with_step(self, step: Step) -> "Calibration":
        """Once a step was measured; itself where that says nothing new."""
        found = self.after_success(step.chunk_tokens, step.context_tokens)
        same = tuple(one for one in self.steps if one.slot == step.slot)
        corners = _corners((*same, step))
        if corners == same:
            return found
        others = tuple(one for one in self.steps if one not in same)
        factor = max(self.factor, *(one.measured_bytes / one.estimated_bytes for one in corners))
        return replace(found, steps=(*others, *corners)[-_MOST_STEPS:], factor=factor)

    def after_success(self, chunk_tokens: int, context_tokens: int) -> "Calibration":
        """Once a step was done, measured or not: what ran out before and is no larger was short of
        memory for a while only.
        """
        left = tuple(s for s in self.short if not s.is_within(chunk_tokens, context_tokens))
        return self if len(left) == len(self.short) else replace(self, short=left)

    def with_shortage(
        self, chunk_tokens: int, context_tokens: int, estimated: int
    ) -> "Calibration":
        """Once a step ran out of memory for which there should have been its figure."""
        figure = self.figure(chunk_tokens, context_tokens, estimated)
        more = min(figure + ceil(figure / _SHORT_PARTS), max(figure, _MOST_TIMES * estimated))
        failed = Step(chunk_tokens, context_tokens, estimated, more)
        return replace(self, short=(*self.short, failed)[-_MOST_STEPS:])

    def figure(self, chunk_tokens: int, context_tokens: int, estimated: int) -> int:
        """What a step is taken to need, of which `estimated` is the estimate."""
        least, most = 0, ceil(self.factor * estimated)
        for step in self.steps:
            if step.reaches(chunk_tokens, context_tokens):
                most = min(most, step.measured_bytes)
            if step.is_within(chunk_tokens, context_tokens):
                least = max(least, step.measured_bytes)
        for step in self.short:
            if step.is_within(chunk_tokens, context_tokens):
                least = max(least, step.measured_bytes)
        return max(least, most)

    def knows(self, chunk_tokens: int, context_tokens: int) -> bool:
        """Whether the figure for such a step was measured, and is no estimate."""
        slot = slot_of(chunk_tokens, context_tokens)
        return any(one.slot == slot for one in self.steps)


def _corners(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Steps of one slot as the smallest and the largest size among them, each with the most that
    any took: so none of them is foretold too low, and none that is no larger as more.
    """
    taken = max(one.measured_bytes for one in steps)
    found = [
        Step(
            pick(one.chunk_tokens for one in steps),
            pick(one.context_tokens for one in steps),
            pick(one.estimated_bytes for one in steps),
            taken,
        )
        for pick in (min, max)
    ]
    return tuple(dict.fromkeys(found))


UNCALIBRATED = Calibration()
