"""What a whole chat would take as a prompt, where only its newest turns are rendered.

A long chat leaves most of its turns out, the same ones for many questions. Rendering all of them
each time, only to find that out again, took a second near a thousand turns. So what turns take is
remembered, and the plan is made for the whole chat all the same: its cut depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvchat.chat.arrange import ChatMessage
from kvchat.kvcache.spans import PageSpan, Span

if TYPE_CHECKING:
    from kvchat.chat.template import Prompt

Turn = Sequence[ChatMessage]
"""A user message with the replies after it."""
TurnKey = tuple[str, int]
"""A turn's name, and its texts as they are told: a setting may change those."""


def key_of(turn: Turn) -> TurnKey:
    return turn[0].name, hash(tuple(one.content for one in turn))


@dataclass(frozen=True, slots=True)
class Outline:
    """A prompt without its ids."""

    num_tokens: int
    spans: tuple[Span, ...]
    pages: tuple[PageSpan, ...]


def outline_of(prompt: Prompt) -> Outline:
    return Outline(len(prompt.token_ids), prompt.spans, prompt.pages)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of turns as they were rendered between the turns that they stand between in the chat;
    `left_out`: those of the newest prompt.
    """

    tokens: Mapping[TurnKey, int] = field(default_factory=dict)
    left_out: Collection[str] = ()


NOTHING_KNOWN = Sizes()


def measured(prompt: Prompt, keys: Sequence[TurnKey]) -> dict[TurnKey, int]:
    """What turns take, of those that stand where they do in the chat. The first after a cut may
    have lost what a template writes between turns, or have got what it writes before all; the last
    one waits for its reply. `keys`: all turns of the chat.
    """
    spans = {span.name: span.num_tokens for span in prompt.spans if span.kind == "turn"}
    found: dict[TurnKey, int] = {}
    follows = True
    for key in keys[:-1]:
        tokens = spans.get(key[0])
        if tokens is not None and follows:
            found[key] = tokens
        follows = tokens is not None
    return found


def as_whole(
    prompt: Prompt,
    keys: Sequence[TurnKey],
    numbers: Sequence[int],
    left_out: Collection[str],
    known: Mapping[TurnKey, int],
) -> Outline | None:
    """The outline that the chat's prompt would have if nothing were left out of it; None where a
    turn's size is not known. `numbers`: of the turns.
    """
    spans = {span.name: span.num_tokens for span in prompt.spans if span.kind == "turn"}
    found = [one for one in prompt.spans if one.kind in ("system", "document")]
    at = found[-1].stop if found else 0
    follows = True
    for number, key in zip(numbers, keys, strict=True):
        is_left_out = key[0] in left_out
        tokens = known.get(key) if is_left_out or not follows else spans.get(key[0])
        if tokens is None:
            return None
        follows = not is_left_out
        found.append(Span("turn", key[0], number, at, at + tokens))
        at += tokens
    return Outline(at, tuple(found), prompt.pages)
