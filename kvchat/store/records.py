"""What the store gives and takes: chats, messages, generations, documents, ledger. Plain values.

A message is named by the hash of its content and its parent's hash, so the same words in the same
place have one name in every chat, and a branch is one more tip that points into the tree.
The chain of hashes is the idea of simonw/llm's `logs.py`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["user", "assistant"]
Mode = Literal["whole", "passages"]
Choice = Literal["whole", "passages", "off"]
PinnedPages = Mapping[str, frozenset[int] | None]
"""By document the pages that are pinned, counted from 1; None for all of it."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What of a document came with a message; `text` is the fenced text as the prompt had it."""

    document: str
    name: str
    mode: Mode
    passages: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    hash: str
    parent: str | None
    role: Role
    content: str
    attachments: tuple[Attachment, ...]
    created_at_s: float


@dataclass(frozen=True, slots=True)
class Chat:
    """`branch` is the current one; `documents` those added before the first turn, in order."""

    id: str
    title: str
    system_text: str
    branch: int
    listed: bool
    created_at_s: float
    updated_at_s: float
    num_turns: int
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """How a reply came about. `stop_reason`: a finish reason of the engine, or `interrupted`.

    `Store.finish_draft` fills in `message`, which is not known before the reply is complete.
    """

    message: str
    sampled_ids: tuple[int, ...]
    stop_reason: str
    figures: dict[str, Any]
    citations: list[dict[str, Any]]
    model: str
    created_at_s: float


@dataclass(frozen=True, slots=True)
class Begun:
    """A reply that another one goes on from: its message's name, its text, and the ids of it that
    the model reads.
    """

    name: str
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What was done to which turns (named by their user messages), and why. Numbers only grow.

    The fields are those of `planner.ledger.entry`. `question`: the user message that was being
    answered (where that is deleted, the message before it); None where none was, or nobody knows.
    `changed`: numbered together with the entries, when it last grew; its number where it never did.
    """

    number: int
    chat: str | None
    at_s: float
    code: str
    arguments: dict[str, Any]
    turns: tuple[str, ...]
    bytes_predicted: int
    bytes_measured: int | None
    reason: str
    documents: tuple[dict[str, Any], ...] = ()
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    lost_tokens: int = 0
    undo: str | None = None
    question: str | None = None
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the first so many messages that no longer fitted; `name`: see `summary_name`."""

    name: str
    num_messages: int
    text: str


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """One page as read: 1-based number, printed label, verdict of the reader, text; `facts` are the
    reader's own.
    """

    number: int
    label: str | None
    verdict: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """What a file is. `sha` names its bytes; `path` is where it lies; `extractor`: the version of
    the reader that read it.
    """

    sha: str
    name: str
    path: str
    kind: str = "pdf"
    extractor: int = 1
    attachments: tuple[str, ...] = ()
    is_divided: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    file: DocumentFile
    pages: tuple[DocumentPage, ...]
    created_at_s: float

    @property
    def sha(self) -> str:
        return self.file.sha

    @property
    def name(self) -> str:
        return self.file.name


@dataclass(frozen=True, slots=True)
class ChatDocument:
    """A document of a chat. `leading`: it stands before the first turn.

    `turn` is the first user message of the current branch that brought text of it along.
    """

    document: str
    name: str
    leading: bool
    turn: str | None


def message_hash(
    parent: str | None, role: Role, content: str, attachments: Sequence[Attachment]
) -> str:
    """sha256 of the JSON list [parent, role, content, [[document, name, mode, passages, text]]]."""
    brought = [[a.document, a.name, a.mode, list(a.passages), a.text] for a in attachments]
    text = json.dumps([parent, role, content, brought], separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def summary_name(messages: Sequence[str]) -> str:
    """sha256 of the names of the messages that a summary covers, a line each."""
    return hashlib.sha256("\n".join(messages).encode("ascii")).hexdigest()
