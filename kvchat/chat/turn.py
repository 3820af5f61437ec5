"""The story of one turn, from what could be told to the last word of the answer.

    told ─► admit ─► Request ─► worker ─► events ─► the live answer, and whoever keeps it

The same for a chat on the screen and for a request over /v1; they differ in what they keep
(`Keeper`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvchat.chat.admit import Told
from kvchat.chat.answer import LiveAnswer
from kvchat.chat.asking import Asking, Keeper, request_of
from kvchat.chat.figures import figures_row
from kvchat.engine.events import (
    Done,
    Event,
    Failed,
    Figures,
    FinishReason,
    Framed,
    Prefilled,
    Request,
    Token,
    Took,
)
from kvchat.engine.worker import Worker
from kvchat.errors import KVChatError

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

# Prompts with fewer turns each time, where memory ran out before the first token.
MOST_TRIES = 4


class Stopped(Exception):
    """The answer was told to end before anything was computed for it."""


def make_answer(
    live: LiveAnswer, worker: Worker, engine: Engine, asking: Asking, told: Told, keeper: Keeper
) -> None:
    """Makes the answer and ends it, whatever happens. Blocks; runs on a thread of its own.

    Where memory ran out before the first token, the engine knows more of it than before: what then
    fits is asked again.
    """
    failed: Failed | None = None
    asked: Request | None = None
    try:
        for _ in range(MOST_TRIES):
            admitted = asking.admit(told, engine, asking.settings)
            request = request_of(live, asking, admitted, engine.loaded.stop)
            if asked is not None and request.prompt_ids == asked.prompt_ids:
                break
            for taken in keeper.admitted(admitted):
                live.add({"type": "took", **taken})
            failed, asked = _follow(live, worker, request, asking, keeper), request
            if failed is None:
                return
        if failed is not None:
            _end(live, failed, (), keeper)
    except KVChatError as error:
        live.cancel.set()
        with suppress(KVChatError):
            keeper.failed(error)
            keeper.ended(live.text, (), "failed", {})
        fail(live, error)


def _follow(
    live: LiveAnswer, worker: Worker, request: Request, asking: Asking, keeper: Keeper
) -> Failed | None:
    """Tells of the answer, and ends it; but for one that ran out of memory before its first
    token.
    """
    ids: list[int] = []
    for event in worker.submit(request):
        match event:
            case Prefilled():
                live.add({"type": "prefilled", **asdict(event)}, "prefill")
            case Token():
                ids.append(event.id)
                if event.text:
                    live.add({"type": "token", "text": event.text}, "decode")
                    keeper.grow(live.text, ids)
            case Took():
                live.add({"type": "took", **keeper.took(event.entry)})
            case Framed():
                live.add(asking.dress(event.frame))
            case Failed() if event.error.code == "out_of_memory" and not ids:
                return event
            case _:
                _end(live, event, ids, keeper)
    return None


def _end(live: LiveAnswer, event: Event, ids: Sequence[int], keeper: Keeper) -> None:
    if isinstance(event, Failed):
        with suppress(KVChatError):  # what is to be told is the failure itself
            keeper.failed(event.error)
        keeper.ended(live.text, event.ids or ids, "failed", {})
        fail(live, event.error)
    elif isinstance(event, Done):
        figures = figures_row(event.figures)
        # not the event's text: a reply that goes on has more before it
        keeper.ended(live.text, event.ids, event.finish_reason, figures)
        _finish(live, live.text, figures, event.finish_reason)


def end_stopped(live: LiveAnswer) -> None:
    """The end of an answer that nothing was computed for."""
    _finish(live, "", figures_row(Figures(0, 0, 0, 0.0, 0.0, 0.0, 0, {})), "cancelled")


def _finish(live: LiveAnswer, text: str, figures: dict[str, Any], reason: FinishReason) -> None:
    live.figures, live.finish_reason = figures, reason
    done = {"type": "done", "text": text, "figures": figures, "finish_reason": reason}
    live.add(done, "stopped" if reason == "cancelled" else "done")


def fail(live: LiveAnswer, error: KVChatError) -> None:
    live.error, live.finish_reason = error.alone(), "failed"
    live.add({"type": "failed", **error.row()}, "failed")
