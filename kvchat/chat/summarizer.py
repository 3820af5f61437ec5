"""Summaries of turns that no longer fit, written by the model itself, once, and kept with the chat.

A summary is named by the messages that it covers, so it serves as long as the cut stays where it
is. Once the cut moves on, the turns that are new to it are told together with the earlier summary.
Where none can be made the turns are left out without one: no answer fails for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from kvchat.chat.admit import Admitted, Told, admit, admit_with
from kvchat.chat.answer import LiveAnswer
from kvchat.chat.summary_request import summary_of, summary_request
from kvchat.chat.template import ChatMessage
from kvchat.engine.events import Done, Event, Failed, Priority, Request, Took
from kvchat.engine.worker import Worker
from kvchat.errors import OutOfMemory
from kvchat.planner.ledger import entry
from kvchat.planner.measures import Summarize, TruncateTurns
from kvchat.settings import Settings
from kvchat.store.records import Summary, summary_name

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

MOST_TOKENS, SHARE = 256, 8  # of what fits, a summary takes an eighth at most
SLACK = 9 / 8  # the ids of a text that was written need not be those that it was written with
_ASKED = (
    "Summarize the conversation below in a few short sentences, in the language in which it was"
    " held. Keep names, numbers, decisions and open questions. Write nothing but the summary."
)
_WROTE = {"user": "Person", "assistant": "Reply"}


MOST_PASSING = 64


class KeptSummaries(Protocol):
    """Where summaries are found again: the store, for a chat."""

    def summaries(self, chat: str) -> Mapping[str, Summary]: ...
    def keep_summary(self, chat: str, summary: Summary) -> None: ...


class PassingSummaries:
    """Those of requests that no chat keeps. A program sends all messages each time, and these name
    the summary: the newest are found again until kvchat ends.
    """

    def __init__(self) -> None:
        self._known: dict[str, Summary] = {}

    def summaries(self, chat: str) -> Mapping[str, Summary]:
        return self._known

    def keep_summary(self, chat: str, summary: Summary) -> None:
        newest = list(self._known.items())[1 - MOST_PASSING :]
        self._known = dict([*newest, (summary.name, summary)])


class Summarizer:
    """For one answer. `tell` hears what was done to make room for writing a summary, and why there
    is none.
    """

    def __init__(
        self,
        store: KeptSummaries,
        live: LiveAnswer,
        worker: Worker,
        tell: Callable[[dict[str, Any]], None],
        priority: Priority = Priority.PERSON,
    ) -> None:
        self._store, self._live, self._worker, self._tell = store, live, worker, tell
        self._priority, self._has_written = priority, False

    def admit(self, told: Told, engine: Engine, settings: Settings) -> Admitted:
        """As `admit`, with a summary in the place of turns that are left out. Blocks while one is
        written. Raises OutOfMemory as it does.
        """
        self._has_written = False
        about = (engine.loaded, settings, engine.last_snapshot, engine.costs)
        most = min(MOST_TOKENS, engine.fits().tokens // SHARE)
        try:
            # Room is kept for the longest one, so that the cut is the same however long it is.
            room = admit(replace(told, summary=_framed(_filling(most, engine))), *about)
        except OutOfMemory:
            return admit(told, *about)
        if not room.left_out:
            return room
        text = self._summary(told, room.left_out, engine, settings, most)
        if text is None:
            return admit(told, *about)
        there = replace(told, summary=_framed(text), sizes=room.sizes)
        admitted = admit_with(there, (), *about, room.left_out)
        if admitted.left_out != room.left_out:  # it came out longer than it may be
            return admit(told, *about)
        written = self._has_written
        measures = (*admitted.measures, *_summarized(room, admitted, written=written))
        return replace(admitted, measures=measures)

    def _summary(
        self, told: Told, left_out: Collection[str], engine: Engine, settings: Settings, most: int
    ) -> str | None:
        """Of these turns, in `most` tokens at most; None where there is none."""
        covered = _messages_of(told.messages, left_out)
        known = self._store.summaries(self._live.chat)
        name = _name_of(covered, len(covered))
        if name in known:
            return known[name].text
        those = known.values()
        earlier = [one for one in those if one.name == _name_of(covered, one.num_messages)]
        before = earlier[0] if earlier else Summary("", 0, "")
        status, self._live.status = self._live.status, "summarizing"
        text = self._written(before.text, covered[before.num_messages :], engine, settings, most)
        self._live.status = status
        if text is not None:
            kept = Summary(name, len(covered), text)
            self._store.keep_summary(self._live.chat, kept)
            self._has_written = True
        return text

    def _written(
        self,
        earlier: str,
        messages: Sequence[ChatMessage],
        engine: Engine,
        settings: Settings,
        most: int,
    ) -> str | None:
        """As many messages at a time as fit, each time with the summary of those before; what fits
        not even alone is passed over.
        """
        text: str | None = earlier
        while messages and text is not None and not self._live.cancel.is_set():
            num = len(messages)
            request = self._request(text, messages, engine, settings, most)
            while request is None and num > 1:
                num //= 2
                request = self._request(text, messages[:num], engine, settings, most)
            text = self._answered(request) if request is not None else text
            messages = messages[num:]
        return text or None

    def _request(
        self,
        earlier: str,
        messages: Sequence[ChatMessage],
        engine: Engine,
        settings: Settings,
        most: int,
    ) -> Request | None:
        """None where they do not fit together."""
        text = _question(earlier, messages)
        return summary_request(text, engine, settings, most, self._live, self._priority)

    def _answered(self, request: Request) -> str | None:
        last: Event | None = None
        for last in self._worker.submit(request):
            if isinstance(last, Took):
                self._tell(last.entry)
        if self._live.cancel.is_set():
            return None
        text = summary_of(last.text) if isinstance(last, Done) else ""
        if not text:
            short = isinstance(last, Failed) and isinstance(last.error, OutOfMemory)
            reason = "out_of_memory" if short else "nothing_written"
            self._tell(entry("no_summary", {}, reason, 0, None))
        return text or None


def _summarized(room: Admitted, admitted: Admitted, *, written: bool) -> list[Summarize]:
    tokens = sum(span.num_tokens for span in admitted.prompt.spans if span.kind == "summary")
    cuts = [one for one in room.measures if isinstance(one, TruncateTurns)]
    return [Summarize(one.frees_bytes, one.turns, one.tokens, tokens, written) for one in cuts]


def _name_of(messages: Sequence[ChatMessage], num: int) -> str:
    """What a summary of so many of the first of them is named."""
    return summary_name([one.name for one in messages[:num]])


def _messages_of(messages: Sequence[ChatMessage], turns: Collection[str]) -> list[ChatMessage]:
    found, is_among = list[ChatMessage](), False
    for message in messages:
        is_among = message.name in turns if message.role == "user" else is_among
        found += [message] if is_among else []
    return found


def _question(earlier: str, messages: Sequence[ChatMessage]) -> str:
    told = [f"What was said before, in short: {earlier}"] if earlier else []
    told += [f"{_WROTE[one.role]}: {one.content}" for one in messages if one.content.strip()]
    return "\n\n".join([_ASKED, *told])


def _filling(num_tokens: int, engine: Engine) -> str:
    """A text of so many tokens, and a little more."""
    words = "word " * 8
    ids = engine.loaded.tokenizer(words, add_special_tokens=False)["input_ids"]
    return words * ceil(num_tokens * SLACK / len(ids))


def _framed(text: str) -> str:
    return f"[Summary of earlier messages that no longer fit]\n{text}\n[End of the summary]"
