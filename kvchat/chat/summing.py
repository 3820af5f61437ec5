"""A summary of pages that are too many for one prompt: part by part by the model itself, then of
the parts (map and reduce). What it will take is told first, how far it is all along; stopping the
answer stops it.

Each part is named by the page that its text shares most with, so that it can be cited. What no part
could be made of is not claimed to be covered. Knows no screen and no PDF.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.shelf import Shelf
from kvchat.chat.summary_request import summary_of, summary_request
from kvchat.documents.fence import fence_passages, fence_summaries, pages_summed
from kvchat.documents.passages import Passage
from kvchat.documents.terms import terms
from kvchat.engine.events import Done, Event
from kvchat.engine.worker import Worker
from kvchat.planner.ledger import entry, pages
from kvchat.settings import Settings
from kvchat.store.records import Attachment, ChatDocument

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

PART_SHARE = 0.5
"""Of what fits, so much is the text of one part; the rest is for what is asked and its answer."""
LEAST_PART_TOKENS = 120
MOST_WRITTEN, WRITTEN_SHARE = 160, 8
_HANGUL = re.compile("[가-힣]")
_ASKED = {
    False: "Summarize the text above in two or three sentences. Keep names and numbers. Write"
    " nothing but the summary.",
    True: "위 글을 두세 문장으로 요약해 주세요. 이름과 숫자는 그대로 두고, 요약만 쓰세요.",
}


Text = TypeVar("Text", Passage, "Part")


@dataclass(frozen=True, slots=True)
class Part:
    """`text` of these pages; `page`: the one that it shares most with."""

    pages: tuple[int, ...]
    page: int
    text: str


class SummingUp:
    """For one answer; belongs to its thread."""

    def __init__(
        self, shelf: Shelf, live: LiveAnswer, worker: Worker, engine: Engine, settings: Settings
    ) -> None:
        self._shelf, self._live, self._worker = shelf, live, worker
        self._engine, self._settings = engine, settings
        self._capacity = engine.fits().tokens
        self._written = min(MOST_WRITTEN, self._capacity // WRITTEN_SHARE)
        self._korean = bool(_HANGUL.search(live.question))
        self._done, self._of, self._began_s = 0, 0, 0.0

    def cost(self, document: ChatDocument, numbers: Sequence[int]) -> dict[str, Any]:
        """The ledger's entry of what is about to be done."""
        parts = self._parts(document, numbers)
        tokens = sum(self._shelf.count(one.text) for part in parts for one in part)
        return entry(
            "sum_up",
            {
                "document": document.document,
                "name": document.name,
                "pages": list(numbers),
                "parts": len(parts),
                "tokens": tokens,
            },
            "too_large",
            0,
            None,
            documents=[pages(document.document, list(numbers))],
        )

    def summed(
        self, document: ChatDocument, numbers: Sequence[int], room_tokens: float
    ) -> Attachment | None:
        """What the model is to read in the place of the pages; None where it was stopped, or no
        part came out. Blocks.
        """
        passages = self._parts(document, numbers)
        self._done, self._of, self._began_s = 0, len(passages), time.monotonic()
        found = [part for one in passages if (part := self._part(document, one)) is not None]
        while len(found) > 1 and self._tokens(found) > room_tokens:
            groups = self._packed(found)
            if len(groups) == len(found):
                found = found[: max(1, len(found) // 2)]  # not even two of them fit together
                continue
            self._of += len(groups)
            found = [part for one in groups if (part := self._together(document, one)) is not None]
        if not found or self._live.cancel.is_set():
            return None
        rows = [(one.page, one.pages, one.text) for one in found]
        read = self._shelf.document(document.document)
        text = fence_summaries(document.name, rows, len(read.pages) + read.num_missing)
        return Attachment(document.document, document.name, "passages", (), text)

    def missed(
        self, document: ChatDocument, numbers: Sequence[int], came: Attachment | None
    ) -> dict[str, Any] | None:
        """The ledger's entry of pages that no part, or none that there is room for, was made of."""
        covered = set((came and pages_summed(came.text)) or ())
        missing = set(numbers) - covered
        if not missing:
            return None
        parts = self._parts(document, sorted(missing))
        return entry(
            "pages_not_summed",
            {"document": document.document, "name": document.name, "pages": sorted(missing)},
            "no_summary",
            0,
            None,
            documents=[pages(document.document, missing)],
            lost_tokens=sum(self._shelf.count(one.text) for part in parts for one in part),
        )

    # --- the parts --------------------------------------------------------------------------------

    def _parts(self, document: ChatDocument, numbers: Sequence[int]) -> list[list[Passage]]:
        """Passages that follow each other, as many as go into one prompt."""
        wanted = set(numbers)
        passages = self._shelf.passages(document.document)
        inside = (_within(one, wanted) for one in passages)
        return self._packed([one for one in inside if one is not None])

    def _part(self, document: ChatDocument, passages: Sequence[Passage]) -> Part | None:
        text = self._asked(fence_passages(passages, {document.document: document.name}))
        if not text:
            return None
        by_page = [part for one in passages for part in one.parts()]
        return Part(tuple(page for page, _ in by_page), _closest(text, by_page), text)

    def _packed(self, texts: Iterable[Text]) -> list[list[Text]]:
        """Runs of them, in order, each of what goes into one prompt."""
        most = max(LEAST_PART_TOKENS, PART_SHARE * self._capacity)
        found: list[list[Text]] = []
        taken = 0
        for one in texts:
            tokens = self._shelf.count(one.text)
            if not found or taken + tokens > most:
                found.append([])
                taken = 0
            found[-1].append(one)
            taken += tokens
        return found

    def _together(self, document: ChatDocument, parts: Sequence[Part]) -> Part | None:
        rows = [(one.page, one.pages, one.text) for one in parts]
        text = self._asked(fence_summaries(document.name, rows, 0))
        if not text:
            return None
        page = _closest(text, [(one.page, one.text) for one in parts])
        return Part(tuple(number for one in parts for number in one.pages), page, text)

    def _tokens(self, parts: Sequence[Part]) -> int:
        return sum(self._shelf.count(one.text) + 16 for one in parts)

    # --- the model --------------------------------------------------------------------------------

    def _asked(self, fenced: str) -> str:
        """A short summary; empty where it was stopped, or does not fit."""
        if self._live.cancel.is_set():
            return ""
        self._tell()
        text = f"{fenced}\n\n{_ASKED[self._korean]}"
        request = summary_request(text, self._engine, self._settings, self._written, self._live)
        events: deque[Event] = deque(maxlen=1)
        if request is not None:
            events.extend(self._worker.submit(request))
        self._done += 1
        last = events.pop() if events else None
        return summary_of(last.text) if isinstance(last, Done) else ""

    def _tell(self) -> None:
        """How far it is; how long it takes once one part is done."""
        took_s = time.monotonic() - self._began_s
        left_s = took_s / self._done * (self._of - self._done) if self._done else None
        told = {"type": "summing", "done": self._done, "of": self._of, "left_s": left_s}
        self._live.add(told, "summing")


def _within(passage: Passage, wanted: set[int]) -> Passage | None:
    """The parts of a passage that stand on these pages."""
    kept = [(page, text) for page, text in passage.parts() if page in wanted and text]
    if not kept:
        return None
    text, starts = "", []
    for page, part in kept:
        text += "\n" if text else ""
        starts.append((len(text), page))
        text += part
    return replace(
        passage, first_page=kept[0][0], last_page=kept[-1][0], text=text, page_starts=tuple(starts)
    )


def _closest(text: str, by_page: Sequence[tuple[int, str]]) -> int:
    """The page that shares most with a summary, for its length."""
    wanted = set(terms(text))

    def shared(part: str) -> float:
        there = set(terms(part))
        return float(len(wanted & there) / max(len(there), 20) ** 0.5)

    return max(by_page, key=lambda one: shared(one[1]))[0]
