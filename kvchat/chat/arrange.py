"""Puts a history into the order that every chat template accepts: user first, roles in turn.

Histories are cut where memory ends and stopped before the first token, so two questions may meet
and a reply may come first. Nothing that a person wrote is dropped for that: texts are joined. Knows
no template and no tokenizer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvchat.kvcache.spans import Span, SpanKind

Role = Literal["system", "user", "assistant"]
JOINT = "\n\n"
SUMMARY = "summary"
"""The name of a user message that stands in the place of turns."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """`name` is the message's hash. HTTP clients send `system` messages anywhere."""

    role: Role
    content: str
    name: str


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of text; `opens` is the span that begins with it, its range yet unknown."""

    text: str
    opens: Span | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What the template takes as one message: its parts, joined by an empty line."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def content(self) -> str:
        return JOINT.join(part.text for part in self.parts)


def head(system: str, documents: Sequence[tuple[str, str]], said: Sequence[ChatMessage]) -> Entry:
    """The system text, what system messages say before the first question, then the documents."""
    texts = [system, *(one.content for one in said[: _first_user(said)] if one.role == "system")]
    text = JOINT.join(text for text in texts if text.strip())
    parts = [Part(text, _opens("system", "system", None))] if text else []
    parts += [Part(text, _opens("document", name, None)) for name, text in documents]
    return Entry("system", tuple(parts))


def turns(said: Sequence[ChatMessage], turn_numbers: Sequence[int | None] | None) -> list[Entry]:
    """Entries from the first question on, user and assistant by turns.

    Texts of one role that meet are joined; an empty reply is left out, and its question joins the
    next; a system message further on speaks as a user. `turn_numbers`: one a user message,
    None for a summary.
    """
    num_users = sum(one.role == "user" for one in said)
    numbers: Iterator[int | None]
    numbers = iter(range(1, num_users + 1) if turn_numbers is None else turn_numbers)
    entries: list[Entry] = []
    for one in said[_first_user(said) :]:
        if one.role == "assistant" and not one.content.strip():
            continue
        number = next(numbers) if one.role == "user" else None
        kind: SpanKind = "summary" if one.name == SUMMARY else "turn"
        opens = _opens(kind, one.name, number) if one.role == "user" else None
        role: Role = "assistant" if one.role == "assistant" else "user"
        if entries and entries[-1].role == role:
            entries[-1] = replace(entries[-1], parts=(*entries[-1].parts, Part(one.content, opens)))
        else:
            entries.append(Entry(role, (Part(one.content, opens),)))
    return entries


def folded(system: Entry, following: Sequence[Entry]) -> list[Entry]:
    """The head inside the first question, for templates that know no system role."""
    first = following[0].parts if following else ()
    return [Entry("user", (*system.parts, *first)), *following[1:]]


def _first_user(said: Sequence[ChatMessage]) -> int:
    return next((i for i, one in enumerate(said) if one.role == "user"), len(said))


def _opens(kind: SpanKind, name: str, turn: int | None) -> Span:
    return Span(kind, name, turn, 0, 0)
