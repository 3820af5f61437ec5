"""The request for a summary that an answer needs before it can be made itself: short, greedy, and
never a reason to take anything from a text; and what of its answer is kept.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvchat.chat.admit import Told, admit
from kvchat.chat.answer import LiveAnswer
from kvchat.chat.asking import LESS_REPEATING
from kvchat.chat.template import ChatMessage
from kvchat.engine.events import Priority, Request, Sampling
from kvchat.errors import OutOfMemory
from kvchat.settings import Settings

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

_ENDS = re.compile(r"(?<=[.!?。])\s+|\n+")
LADDER = ("drop_idle", "shrink_chunk")


def summary_request(
    text: str,
    engine: Engine,
    settings: Settings,
    most_tokens: int,
    live: LiveAnswer,
    priority: Priority = Priority.PERSON,
) -> Request | None:
    """`text`: what is to be summed up, and the instruction. None where it does not fit.

    With a small penalty: over long texts a small model writes one line over and over without it.
    """
    settings = replace(settings, max_new_tokens=most_tokens, ladder=LADDER)
    told = Told("", (), [ChatMessage("user", text, "")])
    try:
        found = admit(told, engine.loaded, settings, engine.last_snapshot, engine.costs)
    except OutOfMemory:
        return None
    return Request(
        prompt_ids=found.prompt.token_ids,
        spans=(),
        max_new_tokens=min(most_tokens, found.plan.reply_tokens),
        prefill_chunk=found.plan.prefill_chunk,
        sampling=Sampling(repetition_penalty=LESS_REPEATING),
        stop=engine.loaded.stop,
        priority=priority,
        cancel=live.cancel,
        chat=live.chat,
    )


def summary_of(text: str) -> str:
    """In one line, each sentence once: one that comes again, or begins to as the answer is cut off,
    says nothing and takes the room of other parts.
    """
    sentences = [" ".join(one.split()) for one in _ENDS.split(text)]
    kept = list(dict.fromkeys(one for one in sentences if one))
    if len(kept) > 1 and any(one.startswith(kept[-1]) for one in kept[:-1]):
        del kept[-1]
    return " ".join(kept)
