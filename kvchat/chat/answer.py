"""An answer while it is made and just after: owned by the program, only read by screens and
requests.

A closed tab ends no answer. Any number of listeners follow the same events from the beginning.
"""

import threading
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Literal

from kvchat.errors import KVChatError

Status = Literal[
    "queued", "reading", "summing", "summarizing", "prefill", "decode", "done", "stopped", "failed"
]
ENDED = ("done", "stopped", "failed")
# How a question is asked again: as it was; also where it only fits without the headroom (see
# at_own_risk.py); with a repetition penalty (see asking.py).
Way = Literal["usual", "at_own_risk", "less_repeating"]


class LiveAnswer:
    """`question` is what was asked; `turn` counts from 1. All other fields grow until `status`
    ends.
    """

    def __init__(self, chat: str, turn: int, question: str) -> None:
        self.chat = chat
        self.turn = turn
        self.question = question
        self.text = ""
        self.opening = ""  # what the prompt has of it already, and stands before the first token
        self.status: Status = "queued"
        self.figures: dict[str, Any] | None = None
        self.citations: list[dict[str, Any]] = []
        self.error: KVChatError | None = None
        self.finish_reason: str | None = None
        self.ledger: list[dict[str, Any]] = []
        self.cancel = threading.Event()
        self.way: Way = "usual"
        self.overrides: Mapping[str, object] = {}  # settings for this answer only
        # None is a frame's place. Only the newest is kept: an answer makes ten a second.
        self._events: list[dict[str, Any] | None] = []
        self._frame: dict[str, Any] = {}
        self._changed = threading.Condition()

    # --- for listeners ----------------------------------------------------------------------------

    def events(self) -> Iterator[dict[str, Any]]:
        """All events from the beginning, then as they come; ends after `done` or `failed`.

        Who comes late, or lags, finds the newest frame wherever an older one was. Blocks.
        """
        for place in count():
            with self._changed:
                while len(self._events) <= place:
                    self._changed.wait()
                told = self._events[place]
                event = self._frame if told is None else told
            yield event
            if event["type"] in ("done", "failed"):
                return

    def wait_change(self, seen: int, timeout_s: float) -> int:
        """Blocks until there are more than `seen` events, or the time is over; returns their
        number.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) > seen, timeout_s)
            return len(self._events)

    @property
    def frame(self) -> dict[str, Any]:
        """The newest, empty before the first."""
        return self._frame

    def wait_ended(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.status in ENDED, timeout_s)

    def stop(self) -> None:
        """Ends the answer within one step; what was written until then is kept."""
        self.cancel.set()

    # --- for the turn that makes it ---------------------------------------------------------------

    def add(self, event: dict[str, Any], status: Status | None = None) -> None:
        """One more event; listeners see it together with what it changes."""
        with self._changed:
            if event["type"] == "token" and not self.text:
                event = event | {"text": self.opening + event["text"]}
            match event["type"]:
                case "token":
                    self.text += event["text"]
                case "took":
                    self._took(event)
                case "citation":
                    self._cite(event)
                case "frame":
                    self._frame = event
            if status is not None:
                self.status = status
            self._events.append(None if event["type"] == "frame" else event)
            self._changed.notify_all()

    def _took(self, event: dict[str, Any]) -> None:
        """An entry that grew takes its own place."""
        for i, one in enumerate(self.ledger):
            if "number" in one and one["number"] == event.get("number"):
                self.ledger[i] = event
                return
        self.ledger.append(event)

    def _cite(self, event: dict[str, Any]) -> None:
        """A citation that is told again, now as matched, takes the place of the given one."""
        place = (event["document"], event["page"], event["text"])
        for i, one in enumerate(self.citations):
            if (one["document"], one["page"], one["text"]) == place:
                self.citations[i] = event
                return
        self.citations.append(event)
