"""What other settings would mean for a chat, told before they are applied: turns that its next
question would leave out, and what is read again for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvchat.chat.admit import Told, admit
from kvchat.chat.attached import attached
from kvchat.chat.held_settings import HeldSettings
from kvchat.chat.reading_again import Cost, cost_from, rate_of
from kvchat.chat.shelf import Shelf
from kvchat.chat.template import ChatMessage
from kvchat.chat.told import told_of_branch
from kvchat.errors import OutOfMemory
from kvchat.planner.measures import TruncateTurns
from kvchat.settings import Settings
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

NEXT = ""  # in place of the name of a question that is not asked yet


@dataclass(frozen=True, slots=True)
class Foreseen:
    """So many turns are left out, with so many tokens, instead of `turns_now`; `cost`: of what is
    read again then.
    """

    turns: int
    turns_now: int
    tokens: int
    cost: Cost


class Foreseeing:
    """`engine`: gives the one that runs, or None."""

    def __init__(
        self, store: Store, shelf: Shelf, held: HeldSettings, engine: Callable[[], Engine | None]
    ) -> None:
        self._store, self._shelf, self._held, self._engine = store, shelf, held, engine

    def left_out(self, chat: str, settings: Settings) -> Foreseen | None:
        """For a question as long as the newest one. None where no more would be left out than now,
        or the model is loaded again for these settings. Raises OutOfMemory with the numbers where
        the chat would not fit any more.
        """
        from kvchat.engine.limits import limits_for

        engine = self._engine()
        if engine is None or self._held.needs_reload(settings):
            return None
        told = self._told(chat)
        if told is None:
            return None
        loaded, latest, before = engine.loaded, engine.last_snapshot, engine.limits
        try:
            now = admit(told, loaded, self._held.now, latest, engine.costs)
        except OutOfMemory:
            return None  # it is refused now, too
        limits = limits_for(settings, loaded.device, self._held.verdicts())
        snapshot = replace(
            latest,
            budget=limits.budget,
            headroom=limits.headroom,
            host_free_bytes=max(0, latest.host_free_bytes + limits.host_quota - before.host_quota),
        )
        told = replace(told, sizes=now.sizes)
        then = admit(told, loaded, settings, snapshot, engine.room.costs_under(limits))
        if set(then.left_out) <= set(now.left_out):
            return None
        prompt, rate = then.prompt, rate_of(self._store, chat)
        start = min((one.start for one in prompt.spans if one.kind == "turn"), default=0)
        cost = cost_from(start, prompt.token_ids, engine, rate, as_it_was=then.restore)
        lost = sum(one.tokens for one in then.measures if isinstance(one, TruncateTurns))
        return Foreseen(len(then.left_out), len(now.left_out), lost, cost)

    def _told(self, chat: str) -> Told | None:
        """The chat with its newest question asked once more; None for an empty one."""
        told = told_of_branch(self._store, chat, self._shelf, attached(self._store, chat))
        asked = [one.content for one in self._store.messages(chat) if one.role == "user"]
        if not asked:
            return None
        return replace(told, messages=[*told.messages, ChatMessage("user", asked[-1], NEXT)])
