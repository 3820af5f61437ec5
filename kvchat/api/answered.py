"""The shapes of an answer: `chat.completion`, and the `chat.completion.chunk`s of a stream.

Beside OpenAI's own fields stands `kvchat.ledger`, whenever something was left out, compressed or
cut for this answer: DESIGN §9's entries, codes and arguments. Knows no connection, no conversation.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


def usage_of(figures: Mapping[str, Any]) -> Json:
    """Reused tokens are those that were in the cache already; they are part of the prompt's."""
    prompt, reply = figures["prompt_tokens"], figures["reply_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": {"cached_tokens": figures["reused_tokens"]},
    }


def ledger_part(ledger: Sequence[Mapping[str, Any]]) -> Json:
    entries = [{name: value for name, value in one.items() if name != "type"} for one in ledger]
    return {"kvchat": {"ledger": entries}} if entries else {}


@dataclass(frozen=True, slots=True)
class Shape:
    """What all pieces of one answer have in common."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created_s: int = field(default_factory=lambda: int(time.time()))

    def _named(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}

    def whole(self, text: str, finish_reason: str, figures: Mapping[str, Any]) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return {
            **self._named("chat.completion"),
            "choices": [choice],
            "usage": usage_of(figures),
        }

    def piece(self, delta: Mapping[str, str], finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._named("chat.completion.chunk"), "choices": [choice]}

    def usage_piece(self, figures: Mapping[str, Any]) -> Json:
        """The last piece of a stream that was asked for its usage: it carries no text."""
        named = self._named("chat.completion.chunk")
        return {**named, "choices": [], "usage": usage_of(figures)}
