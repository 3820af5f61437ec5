"""Who keeps an answer: a chat writes it into the store as it comes, a request over /v1 keeps
nothing.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Any

from kvchat.chat.admit import Admitted, admission_entries
from kvchat.chat.answer import LiveAnswer
from kvchat.chat.asked_back import came_back
from kvchat.chat.citing import Cite
from kvchat.chat.marks import Marks, formats_of, held_better, marks, marks_of, read_anew
from kvchat.chat.reasoning import masked
from kvchat.chat.sources import pages_brought
from kvchat.errors import KVChatError
from kvchat.planner.growing import Growing
from kvchat.planner.ledger import entry, pages
from kvchat.planner.measures import LEAVES_OUT, Summarize
from kvchat.store.records import Begun, Generation, LedgerEntry
from kvchat.store.store import Store

HeldBytes = Callable[[str, Collection[str]], int | None]


class KeepNothing:
    """For one answer that no chat remembers; every turn left out is told again each time. Its
    entries are numbered by themselves, so that those that grow are known.
    """

    def __init__(self) -> None:
        self._growing, self._numbers = Growing(), count(1)

    def admitted(self, admitted: Admitted) -> Sequence[dict[str, Any]]:
        return [self.took(row) for row in admission_entries(admitted)]

    def grow(self, text: str, ids: Sequence[int]) -> None:
        """Nothing is kept."""

    def ended(self, text: str, ids: Sequence[int], reason: str, figures: dict[str, Any]) -> None:
        """Nothing is kept."""

    def failed(self, error: KVChatError) -> None:
        """Nothing is kept."""

    def took(self, taken: dict[str, Any]) -> dict[str, Any]:
        grown = self._growing.grown(taken)
        if grown is None:
            grown = taken | {"number": next(self._numbers)}
            self._growing.begin(grown)
        return grown


class KeepInChat:
    """Drafts the reply token by token, then makes it a message with its figures and citations.

    `cite` gives the answer's citations, told again once it is complete; `held_bytes` what turns of
    the chat held before. `when_kept` is called once the reply is a message. `tells_all`: listeners
    are told of every turn left out, not only of news. `begun`: the reply that this one goes on
    from.
    """

    def __init__(
        self,
        store: Store,
        live: LiveAnswer,
        user_hash: str,
        model: str,
        cite: Cite = lambda *_: [],
        held_bytes: HeldBytes = lambda *_: None,
        *,
        when_kept: Callable[[], None] = lambda: None,
        tells_all: bool = False,
        begun: Begun | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._chat = live.chat
        self._model = model
        self._cite = cite
        self._held_bytes = held_bytes
        self._user_hash = user_hash
        self._when_kept = when_kept
        self._tells_all = tells_all
        self._begun = begun
        self._left_out: tuple[str, ...] = ()
        self._growing = Growing()

    def admitted(self, admitted: Admitted) -> Sequence[dict[str, Any]]:
        """The turns left out are told when they change, or their summary does; they come back with
        a word, too.
        """
        anew = any(isinstance(one, Summarize) and one.written for one in admitted.measures)
        rows = self._store.ledger(self._chat)
        branch = {one.hash for one in self._store.messages(self._chat)}
        before = marks(rows, branch)
        told = [self.took(row) for row in came_back(rows, branch, admitted.left_out)]
        for row in admission_entries(admitted):
            if row["code"] not in LEAVES_OUT:
                told.append(self.took(row))
            elif not _is_known(row, before) or anew:
                row |= {"reason": "summary_gone"} if _is_known(row, before) else {}
                documents = documents_of(self._store, self._chat, row["turns"])
                held = self._held_bytes(self._chat, row["turns"])
                told.append(self.took(row | {"documents": documents, "bytes_measured": held}))
            elif self._tells_all:
                told.append(row)
        if before.left_out and not admitted.left_out:
            turns = tuple(before.left_out)
            told.append(self.took(entry("restore_turns", {}, "fits", 0, None, turns)))
        self._store.start_draft(self._chat, self._user_hash, self._model, self._begun)
        self._left_out = admitted.left_out
        given = self._cite("", self._left_out)
        if given:
            self._store.cite_draft(self._chat, given)
        for citation in given:
            self._live.add(citation)
        return told

    def grow(self, text: str, ids: Sequence[int]) -> None:
        self._store.write_draft(self._chat, text, ids)

    def ended(self, text: str, ids: Sequence[int], reason: str, figures: dict[str, Any]) -> None:
        citations = self._cite(masked(text), self._left_out)  # a thought confirms nothing
        for citation in citations:
            if citation["support"] == "matched":
                self._live.add(citation)
        now = time.time()
        generation = Generation("", tuple(ids), reason, figures, citations, self._model, now)
        self._store.finish_draft(self._chat, text, generation)
        self._when_kept()
        self._tell_what_is_held_better(figures.get("reused_tokens", 0))

    def _tell_what_is_held_better(self, reused_tokens: int) -> None:
        """What was read again, or found in a better copy, is marked no longer."""
        found = marks_of(self._store, self._chat)
        spans = list(self._live.frame.get("spans", ()))
        better = held_better(found, spans)
        read = read_anew(spans, reused_tokens)
        for reason, is_read in (("read_anew", True), ("better_copy", False)):
            names = [one for one in better if (one in read) == is_read]
            turns = tuple(one for one in names if one not in found.documents)
            documents = [pages(one) for one in names if one in found.documents]
            rows = []
            if turns:
                about = {"num_turns": len(turns), "formats": formats_of(spans, turns)}
                rows.append(entry("held_better", about, reason, 0, None, turns))
            if documents:
                about = {"formats": formats_of(spans, names)}
                code = "documents_held_better"
                rows.append(entry(code, about, reason, 0, None, documents=documents))
            for row in rows:
                self._live.add({"type": "took", **self.took(row)})

    def failed(self, error: KVChatError) -> None:
        """A question may stay without any reply: the ledger is what can say why."""
        row = error.row()
        about = {"error": {"code": row["code"], "facts": row["facts"]}}
        self.took(entry("answer_failed", about, row["code"], 0, None, (self._user_hash,)))

    def took(self, taken: dict[str, Any]) -> dict[str, Any]:
        grown = self._growing.grown(taken)
        if grown is not None and grow_ledger(self._store, grown):
            return grown
        written = write_ledger(self._store, self._chat, taken, self._user_hash)
        self._growing.begin(written)
        return written


def _is_known(row: dict[str, Any], before: Marks) -> bool:
    """Whether the turns that are left out are the same, and told in the same way."""
    is_summary = row["code"] == Summarize.code
    return set(row["turns"]) == before.left_out and is_summary == bool(before.summarized)


def write_ledger(
    store: Store, chat: str, taken: dict[str, Any], question: str | None = None
) -> dict[str, Any]:
    """Keeps a ledger entry with the chat, and with the question that is being answered; returns it
    with its number, as listeners see it.
    """
    kept = store.add_ledger(chat, **taken, question=question)
    return {**taken, "number": kept.number}


def grow_ledger(store: Store, grown: dict[str, Any]) -> bool:
    """Whether the entry is still there to grow."""
    same = ("number", "at_s", "code", "reason", "undo")
    changed = {name: value for name, value in grown.items() if name not in same}
    return store.grow_ledger(grown["number"], **changed) is not None


def documents_of(store: Store, chat: str, turns: Collection[str]) -> list[dict[str, Any]]:
    """What of documents came along with these turns of the branch that is shown."""
    found: dict[str, list[int] | None] = {}
    for message in store.messages(chat):
        for one in message.attachments if message.hash in turns else ():
            if one.mode == "whole" and one.text:
                found[one.document] = None
            elif one.mode == "passages" and found.get(one.document, []) is not None:
                numbers = found.get(one.document) or []
                found[one.document] = [*numbers, *pages_brought(one)]
    return [pages(document, numbers) for document, numbers in found.items()]


def why_failed(rows: Iterable[LedgerEntry]) -> dict[str, dict[str, Any]]:
    """Question -> code and facts of the newest answer to it that failed."""
    failed = (row for row in rows if row.code == "answer_failed")
    return {turn: row.arguments["error"] for row in failed for turn in row.turns}
