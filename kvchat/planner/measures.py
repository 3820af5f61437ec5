"""What can be done when the next step does not fit: pure proposals, each with the bytes it frees.

`code` names the measure in the ledger and in the wording; `loss` says what it costs the person.
Doing it is the engine's (memory) or the conversation's (turns) business.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
class TruncateTurns:
    """Leave out the oldest turns, whole; what comes after them is read again. `turns`: their
    names.
    """

    code: ClassVar[str] = "truncate_turns"
    loss: ClassVar[Loss] = "lossy"
    frees_bytes: int
    turns: tuple[str, ...]
    tokens: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {"num_turns": len(self.turns), "tokens": self.tokens}


Measure = DropIdle | ShrinkReply | ShrinkChunk | TruncateTurns
