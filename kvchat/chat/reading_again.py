"""What of a prompt has to be read again where it changes, and how long that takes by what was
measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

LEAST_READ_TOKENS = 32  # what is shorter says nothing of how fast a prompt is read
NEWEST_READINGS = 4  # one alone may have run beside something else


@dataclass(frozen=True, slots=True)
class Cost:
    """What the next question then has the model read again; `s`: None where nothing was measured
    yet.
    """

    tokens: int
    s: float | None


def read_tokens_per_s(figures: Iterable[Mapping[str, Any] | None]) -> float | None:
    """As measured with the newest replies for which enough was read; theirs come newest first."""
    readings = (
        (one["prompt_tokens"] - one.get("reused_tokens", 0), one["prefill_s"])
        for one in figures
        if one and "prompt_tokens" in one and one.get("prefill_s", 0) > 0
    )
    newest = list(islice((one for one in readings if one[0] >= LEAST_READ_TOKENS), NEWEST_READINGS))
    if not newest:
        return None
    return float(sum(tokens for tokens, _ in newest) / sum(s for _, s in newest))


def cost_from(
    start: int, token_ids: Sequence[int], engine: Engine, rate: float | None, *, as_it_was: bool
) -> Cost:
    """Of a prompt that is as it was up to `start`. What the disk has of it is loaded instead,
    unless it is to be held as computed: files hold texts in less than that.
    """
    held = start
    if engine.disk is not None and not as_it_was:
        held = max(start, min(len(token_ids) - 1, engine.disk.num_stored(token_ids)))
    tokens = len(token_ids) - held
    return Cost(tokens, tokens / rate if rate is not None else None)


def rate_of(store: Store, chat: str) -> float | None:
    """How many tokens a second were read for the newest replies of a chat."""
    made = (store.generation(one.hash, chat) for one in reversed(store.messages(chat)))
    return read_tokens_per_s(one.figures for one in made if one is not None)
