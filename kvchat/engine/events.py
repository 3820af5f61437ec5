"""What crosses to the worker and back: a Request goes in, Events come out. Plain values, no
tensors.

`finish_reason`: `stop` (an end token or a stop string), `length` (the reply's end), `cancelled`,
`failed`, `circles` (it said the same over and over: see circles.py).
"""

import threading
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

from kvchat.errors import KVChatError
from kvchat.kvcache.spans import PageSpan, Span

FinishReason = Literal["stop", "length", "cancelled", "failed", "circles"]


class Priority(IntEnum):
    """Who goes first on the one device. Lower is sooner."""

    PERSON = 0
    API = 1
    BACKGROUND = 2


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn from the logits. temperature 0 is greedy; top_k 0, top_p 1, min_p
    0 are off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to be made: a prompt's ids (at least one), what they belong to, how to sample and
    stop.

    `chat` labels the frames made meanwhile; nothing else is known of it here. `old`: ranges of the
    prompt's tokens that may be stored in less, or moved, when memory is short. `pages`: where the
    pages of documents stand, as far as they are told. `restore`: nothing is taken from the cache
    that is stored in less than texts are sealed in; it is read again. `begun`: the ids that the
    prompt ends with, of the text that goes on. `ends_circles`: a reply that says the same over and
    over is ended.
    """

    prompt_ids: tuple[int, ...]
    spans: tuple[Span, ...]
    max_new_tokens: int
    prefill_chunk: int = 512
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    priority: Priority = Priority.PERSON
    cancel: threading.Event = field(default_factory=threading.Event)
    chat: str = ""
    old: tuple[tuple[int, int], ...] = ()
    pages: tuple[PageSpan, ...] = ()
    restore: bool = False
    begun: tuple[int, ...] = ()
    ends_circles: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """What a reply cost. Seconds are wall-clock of the worker; `formats` are bytes by `K/V`
    format. `prefill_flops`, `decode_bytes`: what reading the prompt had to compute at least, and
    what the decode steps had to read (memory/work.py).
    """

    prompt_tokens: int
    reply_tokens: int
    reused_tokens: int
    prefill_s: float
    time_to_first_token_s: float
    decode_s: float
    bytes: int
    formats: dict[str, int]
    prefill_flops: int = 0
    decode_bytes: int = 0

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Of what was read for it; None where all of the prompt was there."""
        read = self.prompt_tokens - self.reused_tokens
        return read / self.prefill_s if read > 0 and self.prefill_s > 0 else None

    @property
    def prefill_flops_per_s(self) -> float | None:
        return self.prefill_flops / self.prefill_s if self.prefill_s > 0 else None

    @property
    def decode_bytes_per_s(self) -> float | None:
        return self.decode_bytes / self.decode_s if self.decode_s > 0 else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """None where fewer than two tokens were decoded: the first one comes out of the prefill."""
        steps = self.reply_tokens - 1
        return steps / self.decode_s if steps > 0 and self.decode_s > 0 else None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Prefill moved on: `done_tokens` of `tokens` are in the cache, `reused_tokens` of them were
    there before.
    """

    tokens: int
    done_tokens: int
    reused_tokens: int
    s: float


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token and the text that it completed, which may be empty; never U+FFFD by
    halves.
    """

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Took:
    """A measure was taken. `entry` is the ledger entry of DESIGN §9: code, arguments, turns, bytes,
    reason.
    """

    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Framed:
    """What is in memory now: the frame of DESIGN §9."""

    frame: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """The reply is complete, or stopped; `text` is what was streamed, `ids` what was sampled."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    figures: Figures


@dataclass(frozen=True, slots=True)
class Failed:
    """The reply could not go on; `text` and `ids` are what was made until then and are kept."""

    error: KVChatError
    text: str
    ids: tuple[int, ...]


Event = Prefilled | Token | Took | Framed | Done | Failed
