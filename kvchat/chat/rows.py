"""What the faces are given to show: rows of chats, exchanges and documents. Plain values."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatRow:
    """`kv_bytes`: what of the chat is still in the cache."""

    id: str
    title: str
    num_turns: int
    updated_at_s: float
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message and its reply. `sibling` of `num_siblings` counts the versions of this turn
    from 1.

    `left_out`: the model did not see this turn when it made the newest answer, or only that
    `summary` of it and others; `evicted`: not all of it; `formats`: it saw it stored in so few bits
    (see `chat/marks.py`). `problem`: the code and facts of why there is no reply, or a broken one.
    """

    turn: int
    user_hash: str
    text: str
    documents: tuple[str, ...]
    reply_hash: str | None
    reply: str | None
    finish_reason: str | None
    figures: dict[str, Any] | None
    citations: list[dict[str, Any]]
    left_out: bool
    sibling: int
    num_siblings: int
    problem: dict[str, Any] | None = None
    pinned: bool = False
    summary: str | None = None
    evicted: bool = False
    formats: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """`problem`: why it cannot be read; `notes`: codes with facts; `mode`: how its text is read.
    `pinned`: all of it is; `pinned_pages`: these are.
    """

    document: str
    name: str
    num_pages: int
    pages_done: int
    num_tokens: int
    problem: dict[str, Any] | None
    notes: list[dict[str, Any]]
    mode: str | None
    pinned: bool = False
    pinned_pages: tuple[int, ...] = ()
