"""A tab follows a chat: it shows what is there, and while an answer is being made, how it grows.

The answer belongs to the conversations, not to a tab: closing or reloading a tab stops nothing, and
any number of tabs may follow one answer. Stopping is a call of its own; nothing is cancelled here
and no error is raised, for gradio would draw a raised one over the whole chat.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvchat.chat.answer import ENDED, LiveAnswer
from kvchat.errors import KVChatError, RequestError
from kvchat.ui.asked import Asked
from kvchat.ui.transcript import merged, messages, notes
from kvchat.ui.words import problem
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

Shown = tuple[list[dict[str, str]], dict[str, Any]]
# At most eight updates a second, five where many turns are drawn: one costs up to 60 ms there.
_PAUSE_S, _LONG_PAUSE_S, _MANY_TURNS = 0.125, 0.2, 10
_LONGEST_PAUSE_S = 1.0
_MOST_TABS = 512


class Reading:
    """How far an answer's prompt has been read, from the events that are there already."""

    def __init__(self, live: LiveAnswer | None) -> None:
        self._live = live
        self._events = live.events() if live is not None else iter(())
        self._num_events = 0
        self._read: dict[str, Any] | None = None

    def wait(self, timeout_s: float) -> None:
        if self._live is not None:
            self._live.wait_change(self._num_events, timeout_s)

    def done(self) -> dict[str, Any] | None:
        """`{"done_tokens", "tokens"}` of the newest step, or None before the first."""
        num_events = self._live.wait_change(-1, 0.0) if self._live is not None else 0
        for event in islice(self._events, num_events - self._num_events):
            if event["type"] == "summing":
                self._read = {name: event[name] for name in ("done", "of", "left_s")}
            if event["type"] == "prefilled":
                self._read = {name: event[name] for name in ("done_tokens", "tokens")}
        self._num_events = num_events
        return self._read


class Following:
    """Which tab follows what. A tab follows one chat: its newest wish ends what was before."""

    def __init__(self, conversations: "Conversations", lang: Language) -> None:
        self._conversations = conversations
        self._lang = lang
        self._wishes: OrderedDict[str, int] = OrderedDict()
        self._pauses_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def leave(self, tab: str, number: int = 0) -> int:
        """Ends what the tab follows, unless that is a newer wish: wishes may overtake each other on
        their way. Returns the number of this one.
        """
        with self._lock:
            self._pauses_s.pop(tab, None)
            newest = self._wishes.pop(tab, 0)
            wish = number or newest + 1
            self._wishes[tab] = max(wish, newest)
            while len(self._wishes) > _MOST_TABS:
                self._pauses_s.pop(self._wishes.popitem(last=False)[0], None)
            return wish

    def slower(self, tab: str) -> None:
        """Half as many updates: the tab falls behind, and gradio queues them all."""
        with self._lock:
            if tab in self._wishes:
                pause_s = 2 * self._pauses_s.get(tab, _PAUSE_S)
                self._pauses_s[tab] = min(pause_s, _LONGEST_PAUSE_S)

    def show(self, asked: Asked) -> Iterator[Shown]:
        """Does what was asked, then shows the chat until the answer in it is complete."""
        wish = self.leave(asked.tab, asked.number)
        try:
            chat, live = self._do(asked)
            if chat is None:
                if self._wishes.get(asked.tab) == wish:
                    yield self._empty(asked)
                return
            asked = replace(asked, chat=chat)
            yield from self._follow(asked, wish, chat, live)
        except KVChatError as error:  # also while it is followed: another tab may delete the chat
            if self._wishes.get(asked.tab) == wish:
                yield self._failed(asked, error)

    def _follow(
        self, asked: Asked, wish: int, chat: str, live: LiveAnswer | None
    ) -> Iterator[Shown]:
        reading = Reading(live)
        while True:
            drawn_s = time.monotonic()
            is_final = live is None or live.status in ENDED  # before reading, so the last is whole
            drawn = self._drawn(chat, live, asked.shown, reading.done())
            if self._wishes.get(asked.tab) != wish:
                return
            yield drawn
            if live is None or is_final:
                return
            reading.wait(1.0)
            usual_s = _LONG_PAUSE_S if live.turn > _MANY_TURNS else _PAUSE_S
            pause_s = max(usual_s, self._pauses_s.get(asked.tab, 0.0))
            time.sleep(max(0.0, drawn_s + pause_s - time.monotonic()))

    def _do(self, asked: Asked) -> tuple[str | None, LiveAnswer | None]:
        talks, chat = self._conversations, asked.chat
        if asked.kind == "ask":
            chat = chat or talks.new_chat()
            return chat, talks.ask(chat, asked.text)
        if chat is None:
            return None, None
        match asked.kind:
            case "regenerate":
                return chat, talks.regenerate(chat, asked.turn, asked.name)
            case "anyway":
                return chat, talks.regenerate(chat, asked.turn, asked.name, "at_own_risk")
            case "less_repeating":
                return chat, talks.regenerate(chat, asked.turn, asked.name, "less_repeating")
            case "edit":
                return chat, talks.edit(chat, asked.turn, asked.text, asked.name)
            case "continue":
                return chat, talks.go_on(chat, asked.turn, asked.name)
            case "switch":
                talks.switch(chat, asked.turn, asked.sibling, asked.name)
            case "remove":
                talks.delete_turn(chat, asked.turn, asked.name)
        return chat, talks.live(chat)

    def _drawn(
        self, chat: str, live: LiveAnswer | None, shown: int, read: dict[str, Any] | None = None
    ) -> Shown:
        exchanges = merged(self._conversations.history(chat), live)
        around = notes(chat, exchanges, live, self._lang, shown)
        if around["live"] and read:
            around["live"] |= read
        return messages(exchanges, live, self._lang, shown), around

    def _empty(self, asked: Asked) -> Shown:
        return [], notes(None, (), None, self._lang, asked.shown)

    def _failed(self, asked: Asked, error: KVChatError) -> Shown:
        """The chat as it was, a card with the error, and the text back for the box it came from."""
        try:
            if asked.chat is None:
                raise RequestError("ui_request")
            found, around = self._drawn(
                asked.chat, self._conversations.live(asked.chat), asked.shown
            )
        except KVChatError:
            found, around = self._empty(asked)
            around["gone"] = asked.chat
        unsent = asked.text if asked.kind in ("ask", "edit") else ""
        around["problem"] = {**(problem(error, self._lang) or {}), "unsent": unsent}
        return found, around
