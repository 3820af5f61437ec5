"""Taking back what was done to a chat: asked for now, done with the next question.

Turns that were left out are wanted again, as far as they fit; what is stored in less, lies on the
host or lost its inside is held as it was. First it is planned, so that what it costs is known, and
what cannot be is refused with the numbers. Knows no cache.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvchat.chat.admit import Admitted, Told, admit_with
from kvchat.chat.asked_back import ASKED, ASKED_HELD, Asked, asked_back, asked_on
from kvchat.chat.attached import attached
from kvchat.chat.marks import Marks, entries_on, marks, marks_on
from kvchat.chat.reading_again import Cost, cost_from, rate_of
from kvchat.chat.shelf import Shelf
from kvchat.chat.told import told_of_branch
from kvchat.errors import OutOfMemory, RequestError
from kvchat.planner.ledger import entry
from kvchat.planner.measures import LEAVES_OUT
from kvchat.settings import Settings
from kvchat.store.records import LedgerEntry
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

_LOSES_NOTHING = ("drop_idle", "shrink_chunk")  # what may be done for it and take nothing else


class TakingBack:
    def __init__(self, store: Store, shelf: Shelf) -> None:
        self._store = store
        self._shelf = shelf

    def cost(self, chat: str, number: int, engine: Engine, settings: Settings) -> Cost:
        """Raises RequestError where there is nothing to be taken back, OutOfMemory with the numbers
        where there is no room for it.
        """
        row, there = self._found(chat, number)
        told = self._told(chat)
        try:
            if row.code in LEAVES_OUT:
                admitted = _admitted(told, set(row.turns), engine, settings)
            else:
                only = replace(settings, ladder=_LOSES_NOTHING)
                admitted = _admitted(_seen(told, there), (), engine, only)
        except OutOfMemory as error:
            facts = {name: error.facts[name] for name in ("tokens", "capacity")}
            if row.code in LEAVES_OUT:
                raise OutOfMemory("undo_no_room", **facts) from None
            raise OutOfMemory("undo_no_room_as_it_was", **facts) from None
        rate = rate_of(self._store, chat)
        if row.undo == "bring_back":
            return Cost(0, None if rate is None else 0.0)
        ids, as_it_was = admitted.prompt.token_ids, row.code not in LEAVES_OUT
        return cost_from(_start_of(row, admitted), ids, engine, rate, as_it_was=as_it_was)

    def ask(self, chat: str, number: int, engine: Engine, settings: Settings) -> Cost:
        """The same, and asks for it."""
        cost = self.cost(chat, number, engine, settings)
        row, _ = self._found(chat, number)
        about = {"entry": number, "code": row.code, "tokens": cost.tokens}
        code = ASKED if cost.tokens else ASKED_HELD
        kept = entry(code, about, "asked", 0, None, row.turns, documents=row.documents)
        newest = [one.hash for one in self._store.messages(chat) if one.role == "user"][-1:]
        self._store.add_ledger(chat, **kept, question=newest[0] if newest else None)
        return cost

    def _found(self, chat: str, number: int) -> tuple[LedgerEntry, Marks]:
        rows = self._store.ledger(chat)
        branch = {one.hash for one in self._store.messages(chat)}
        if number in asked_back(rows, branch).numbers:
            raise RequestError("undo_asked")
        if number not in offered(rows, branch):
            raise RequestError("undo_nothing")
        row = next(one for one in rows if one.number == number)
        return row, marks(rows, branch)

    def _told(self, chat: str) -> Told:
        return told_of_branch(self._store, chat, self._shelf, attached(self._store, chat))


def _seen(told: Told, there: Marks) -> Told:
    """Without the turns that are left out now."""
    kept, is_seen = [], True
    for message in told.messages:
        is_seen = message.name not in there.left_out if message.role == "user" else is_seen
        kept += [message] if is_seen else []
    return replace(told, messages=kept)


def offered(rows: Sequence[LedgerEntry], branch: Collection[str]) -> tuple[int, ...]:
    held = list(entries_on(rows, branch))
    return offered_on(held, marks_on(held), asked_on(held))


def offered_on(rows: Sequence[LedgerEntry], there: Marks, asked: Asked) -> tuple[int, ...]:
    """Numbers of the entries that still hold and were not asked back: for each turn and document
    the newest of a kind, which tells how it is now. `rows` are those of one branch.
    """
    found, seen = list[int](), set[tuple[str, str]]()
    for row in reversed(rows):
        holds = _holding(row, there)
        if holds - seen:  # else newer entries tell of all that is left of it
            seen |= {("left_out", "")} if row.code in LEAVES_OUT else holds
            found.append(row.number)
    return tuple(number for number in sorted(found) if number not in asked.numbers)


def _holding(row: LedgerEntry, there: Marks) -> set[tuple[str, str]]:
    """What of it still holds: of turns by their names, and of documents. What is left out is not
    in the prompt, however it was stored before.
    """
    if not row.undo:
        return set()
    if row.code in LEAVES_OUT:
        return {("left_out", "")} if any(one in there.left_out for one in row.turns) else set()
    if row.undo == "bring_back":
        kind, held = "on_host", there.on_host
    elif row.code.startswith("evict"):
        kind, held = "evicted", there.evicted
    else:
        kind, held = "formats", frozenset(there.formats)
    turns = {(kind, one) for one in row.turns if one in held and one not in there.left_out}
    names = [one["document"] for one in row.documents] if kind == "formats" else []
    return turns | {("documents", one) for one in names if one in there.documents}


def _admitted(told: Told, wanted: Collection[str], engine: Engine, settings: Settings) -> Admitted:
    return admit_with(told, wanted, engine.loaded, settings, engine.last_snapshot, engine.costs)


def _start_of(row: LedgerEntry, admitted: Admitted) -> int:
    """Of the first of the row's turns and documents: what comes after it is read again, too."""
    names = {*row.turns, *(one["document"] for one in row.documents)}
    starts = [span.start for span in admitted.prompt.spans if span.name in names]
    return min(starts, default=0)
