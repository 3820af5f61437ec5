"""What the faces are given to show: rows of chats, exchanges and documents. Plain values."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Hit:
    """A message in which words were found: its name, its turn on its own branch, who said it, and a
    line of it in pieces, each with whether it is one of the words.
    """

    message: str
    turn: int
    role: str
    snippet: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class ChatRow:
    """`kv_bytes`: what of the chat is still in the cache; `disk_bytes`: what files of KV have of it
    for the model as it runs, `other_disk_bytes`: for another, or in another precision; `read_s`:
    about how long it takes to read it again, None where nobody knows. `hits`: where the words stand
    that were looked for. `status`: of the answer that is being made, or None.
    """

    id: str
    title: str
    num_turns: int
    updated_at_s: float
    kv_bytes: int
    disk_bytes: int = 0
    read_s: float | None = None
    hits: tuple[Hit, ...] = ()
    status: str | None = None
    other_disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message and its reply. `sibling` of `num_siblings` counts the versions of this turn
    from 1.

    `left_out`: the model did not see this turn when it made the newest answer, or only that
    `summary` of it and others; `evicted`: not all of it; `formats`: it saw it stored in so few bits
    (see `chat/marks.py`). `problem`: the code and facts of why there is no reply, or a broken one.
    `sources`: what of documents came along (see `chat/sources.py`).
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
    sources: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """`problem`: why it cannot be read; `notes`: codes with facts; `mode`: how its text is read.
    `pinned`: all of it is; `pinned_pages`: these are. `is_complete`: no more text is to come, from
    the file or from the recognition of its pictures (`num_recognised` of so many pages). `chosen`:
    how it is to be read; `left_pages`: not at all; `ahead`: how much of the chat is read by now.
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
    kind: str = "pdf"
    asks_password: bool = False
    is_complete: bool = True
    num_recognised: int = 0
    num_to_recognise: int = 0
    chosen: str | None = None
    left_pages: tuple[int, ...] = ()
    ahead: dict[str, Any] | None = None
    formats: str | None = None
