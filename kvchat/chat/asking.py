"""What an answer needs besides the words, who keeps it, and the request that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvchat.chat.admit import Admitted, Told, admit
from kvchat.chat.answer import LiveAnswer
from kvchat.engine.events import Priority, Request, Sampling
from kvchat.errors import KVChatError
from kvchat.settings import Settings, changed

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


LESS_REPEATING = 1.1  # as a repetition penalty: what most programs have by default


def less_repeating(settings: Settings) -> Settings:
    """For a question whose answer went round in circles, and would again."""
    penalty = max(LESS_REPEATING, settings.repetition_penalty)
    return changed(settings, {"repetition_penalty": penalty})


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


def request_of(
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
        # a program gets what it asked for, up to its own max_tokens
        ends_circles=settings.end_circles and asking.priority is Priority.PERSON,
    )
