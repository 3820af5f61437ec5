"""Which tokens of a sequence belong to what: system text, a document, a turn. Ranges are half-open.

Knows no text and no tensor.
"""

from dataclasses import dataclass
from typing import Literal

SpanKind = Literal["system", "document", "turn"]


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, stop) of a prompt. `name` is a turn's user message hash or a document's hash.

    `turn` counts turns from 1 as the person sees them; None for what stands before the first turn.
    """

    kind: SpanKind
    name: str
    turn: int | None
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start
