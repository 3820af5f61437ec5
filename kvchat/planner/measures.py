"""What can be done when the next step does not fit: pure proposals, each with the bytes it frees.

`code` names the measure in the ledger and in the wording; `loss` says what it costs the person,
and `undo` how what stays taken is taken back.
Doing it is the engine's (memory) or the conversation's (turns) business.

Old text: whole blocks of documents and turns before the one in flight, but for what is pinned. Only
that is ever stored in less or moved; it stays in the prompt.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from kvchat.memory.formats import FormatPair
from kvchat.planner.ledger import Undo

Loss = Literal["none", "slower", "lossy"]


@dataclass(frozen=True, slots=True)
class DropIdle:
    """Give up sealed blocks and hot windows that no text holds, oldest first: other chats re-read
    them.
    """

    code: ClassVar[str] = "drop_idle"
    loss: ClassVar[Loss] = "slower"
    frees_bytes: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class ShrinkReply:
    """Keep less room for the reply: it may end sooner, and says so then."""

    code: ClassVar[str] = "shrink_reply"
    loss: ClassVar[Loss] = "none"
    frees_bytes: int
    tokens: int
    was: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "was": self.was}


@dataclass(frozen=True, slots=True)
class ShrinkChunk:
    """Read fewer tokens at a time, which needs less memory for activations."""

    code: ClassVar[str] = "shrink_chunk"
    loss: ClassVar[Loss] = "slower"
    frees_bytes: int
    tokens: int
    was: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "was": self.was}


@dataclass(frozen=True, slots=True)
class Requantize:
    """Store blocks of old text in fewer bits, the oldest first: attention reads them so from the
    next step on.
    """

    code: ClassVar[str] = "requantize"
    loss: ClassVar[Loss] = "lossy"
    undo: ClassVar[Undo] = "read_again"
    frees_bytes: int
    pair: FormatPair

    @property
    def arguments(self) -> dict[str, Any]:
        return {"formats": str(self.pair)}


@dataclass(frozen=True, slots=True)
class Offload:
    """Move blocks of old text to the computer's own memory, the oldest first: still attended, but
    slower. `step_s`: what that adds to each step, estimated.
    """

    code: ClassVar[str] = "offload"
    loss: ClassVar[Loss] = "slower"
    undo: ClassVar[Undo] = "bring_back"
    frees_bytes: int
    step_s: float

    @property
    def arguments(self) -> dict[str, Any]:
        return {"ms": f"{self.step_s * 1000:.1f}"}


@dataclass(frozen=True, slots=True)
class Evict:
    """Do without the middle of old turns, whole blocks, the oldest turn first: their first and
    newest tokens stay. What was computed since keeps its positions, and what it saw of them.
    """

    code: ClassVar[str] = "evict"
    loss: ClassVar[Loss] = "lossy"
    undo: ClassVar[Undo] = "read_again"
    frees_bytes: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class BringBack:
    """The way back from Offload, the newest first, once there is room again. `frees_bytes` is below
    0: it takes them.
    """

    code: ClassVar[str] = "bring_back"
    loss: ClassVar[Loss] = "none"
    frees_bytes: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Raise:
    """The way back from Requantize, the newest first, where a better copy is still held.
    `frees_bytes` is below 0: it takes them.
    """

    code: ClassVar[str] = "raise"
    loss: ClassVar[Loss] = "none"
    frees_bytes: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class TruncateTurns:
    """Leave out the oldest turns, whole; what comes after them is read again. `turns`: their
    names.
    """

    code: ClassVar[str] = "truncate_turns"
    loss: ClassVar[Loss] = "lossy"
    undo: ClassVar[Undo] = "read_again"
    frees_bytes: int
    turns: tuple[str, ...]
    tokens: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {"num_turns": len(self.turns), "tokens": self.tokens}


@dataclass(frozen=True, slots=True)
class Summarize:
    """Leave turns out as TruncateTurns does, with a summary by the model itself in their place, of
    `summary_tokens`. Their text is kept. `written`: now, and not for an earlier question.
    """

    code: ClassVar[str] = "summarize"
    loss: ClassVar[Loss] = "lossy"
    undo: ClassVar[Undo] = "read_again"
    frees_bytes: int
    turns: tuple[str, ...]
    tokens: int
    summary_tokens: int
    written: bool = True

    @property
    def arguments(self) -> dict[str, Any]:
        about = {"num_turns": len(self.turns), "tokens": self.tokens}
        return about | {"summary_tokens": self.summary_tokens}


LEAVES_OUT = (TruncateTurns.code, Summarize.code)
"""Ledger entries of these codes name all turns that the model does not see."""

Measure = (
    DropIdle | ShrinkReply | ShrinkChunk | Requantize | Offload | Evict | TruncateTurns | Summarize
)
WayBack = BringBack | Raise
