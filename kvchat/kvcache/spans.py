"""Which tokens of a sequence belong to what: system text, a document, a turn. Ranges are half-open.

Knows no text and no tensor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kvchat.memory.formats import BLOCK_TOKENS

SpanKind = Literal["system", "document", "turn", "summary"]


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, stop) of a prompt. `name` is a turn's user message hash or a document's hash.

    `turn` counts turns from 1 as the person sees them; None for what stands before the first turn,
    and for a summary, which stands in the place of turns.
    """

    kind: SpanKind
    name: str
    turn: int | None
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class PageSpan:
    """Tokens [start, stop) of a page of a document that stands whole in a prompt; pages count from
    1.
    """

    document: str
    page: int
    start: int
    stop: int


def whole_blocks(
    ranges: Iterable[tuple[int, int]], start: int = 0, stop: int | None = None
) -> list[int]:
    """The places of the blocks of which every token lies in one of the ranges and in [start, stop),
    in order. Ranges that touch count as one.
    """
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        low, high = max(low, start), high if stop is None else min(high, stop)
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return [i for low, high in joined for i in range(-(-low // BLOCK_TOKENS), high // BLOCK_TOKENS)]
