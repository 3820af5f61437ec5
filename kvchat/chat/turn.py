"""The story of one turn, from what could be told to the last word of the answer.

    told ─► admit ─► Request ─► worker ─► events ─► the live answer, and whoever keeps it

The same for a chat on the screen and for a request over /v1; they differ in what they keep
(`Keeper`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvchat.chat.admit import Admitted, Told, admit
from kvchat.chat.answer import LiveAnswer
from kvchat.engine.events import (
    Done,
    Event,
    Failed,
    Figures,
    FinishReason,
    Framed,
    Prefilled,
    Priority,
    Request,
    Sampling,
    Token,
    Took,
)
from kvchat.engine.worker import Worker
from kvchat.errors import KVChatError
from kvchat.planner.ledger import entry
from kvchat.planner.measures import Evict, Offload, Requantize, Summarize, TruncateTurns
from kvchat.settings import Settings

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine


class Keeper(Protocol):
    """What becomes of an answer beyond the moment."""

    def admitted(self, admitted: Admitted) -> Sequence[dict[str, Any]]:
        """Writes down what was done to make it fit; returns the ledger entries that are news."""
        ...

    def grow(self, text: str, ids: Sequence[int]) -> None: ...

    def ended(self, text: str, ids: Sequence[int], reason: str, figures: dict[str, Any]) -> None:
        """The reply is complete, stopped or failed."""
        ...

    def failed(self, error: KVChatError) -> None:
        """Why `ended` is about to be told that the reply failed."""
        ...

    def took(self, taken: dict[str, Any]) -> dict[str, Any]:
        """Writes a ledger entry down; returns it as listeners see it."""
        ...


# What a reply's figures say beside what was counted.
RATES = (
    "decode_tokens_per_s",
    "decode_bytes_per_s",
    "prefill_tokens_per_s",
    "prefill_flops_per_s",
)

# Prompts with fewer turns each time, where memory ran out before the first token.
MOST_TRIES = 4


class Stopped(Exception):
    """The answer was told to end before anything was computed for it."""


Admit = Callable[[Told, "Engine", Settings], Admitted]


def as_told(told: Told, engine: Engine, settings: Settings) -> Admitted:
    """What does not fit is left out without a trace in the prompt."""
    return admit(told, engine.loaded, settings, engine.last_snapshot, engine.costs)


@dataclass(frozen=True, slots=True)
class Asking:
    """What an answer needs besides the words: settings of this moment, and who is first.

    `dress` makes of what was measured the frame that listeners see. `admit`: how a prompt is made
    to fit.
    """

    settings: Settings
    stop: tuple[str, ...] = ()
    priority: Priority = Priority.PERSON
    dress: Callable[[dict[str, Any]], dict[str, Any]] = dict
    admit: Admit = as_told


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
            request = _request(live, asking, admitted, engine.loaded.stop)
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


def _request(
    live: LiveAnswer, asking: Asking, admitted: Admitted, template_stop: tuple[str, ...]
) -> Request:
    settings = asking.settings
    return Request(
        prompt_ids=admitted.prompt.token_ids,
        spans=admitted.prompt.spans,
        max_new_tokens=admitted.plan.reply_tokens,
        prefill_chunk=admitted.plan.prefill_chunk,
        sampling=Sampling(
            settings.temperature,
            settings.top_k,
            settings.top_p,
            settings.min_p,
            settings.repetition_penalty,
            settings.seed,
        ),
        stop=(*asking.stop, *template_stop),
        priority=asking.priority,
        cancel=live.cancel,
        chat=live.chat,
        old=admitted.old,
        pages=admitted.prompt.pages,
        restore=admitted.restore,
        begun=admitted.prompt.begun,
    )


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


def figures_row(figures: Figures) -> dict[str, Any]:
    rates = {name: getattr(figures, name) for name in RATES}
    return asdict(figures) | rates


def admission_entries(admitted: Admitted) -> list[dict[str, Any]]:
    """The ledger entries of what made a prompt fit; the turns left out are named. What is done
    about old text the engine says once it is done.
    """
    rows = []
    for measure in admitted.measures:
        if isinstance(measure, (Requantize, Offload, Evict)):
            continue
        about: dict[str, Any] = {}
        if isinstance(measure, (TruncateTurns, Summarize)):
            about = {
                "turns": measure.turns,
                "lost_tokens": measure.tokens,
                "undo": measure.undo,
            }
        rows.append(
            entry(
                measure.code,
                measure.arguments,
                "prompt_too_long",
                measure.frees_bytes,
                None,
                **about,
            )
        )
    return rows
