"""What was asked back of what was done to a chat, told by the ledger: `undo` entries ask, `undone`
entries say that it came about, each naming the entry that it is about. None is ever changed.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvchat.chat.marks import entries_on
from kvchat.planner.ledger import entry
from kvchat.planner.measures import LEAVES_OUT
from kvchat.store.records import LedgerEntry

ASKED, DONE = "undo", "undone"
ASKED_HELD = "undo_held"
"""The same where nothing is read again for it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked back on a branch. `numbers`: entries that did not come back yet; `wanted`:
    turns that were left out; `restore`: something is to be held again as it was.
    """

    numbers: tuple[int, ...] = ()
    wanted: frozenset[str] = frozenset()
    restore: bool = False


def asked_back(rows: Iterable[LedgerEntry], branch: Collection[str]) -> Asked:
    return asked_on(entries_on(rows, branch))


def asked_on(rows: Iterable[LedgerEntry]) -> Asked:
    """Told by entries that hold for one branch. Turns stay wanted after they came back, until they
    must go again.
    """
    restored: dict[int, bool] = {}
    wanted = set[str]()
    for row in rows:
        if row.code in (ASKED, ASKED_HELD):
            leaves_out = row.arguments["code"] in LEAVES_OUT
            restored[row.arguments["entry"]] = not leaves_out
            wanted |= set(row.turns) if leaves_out else set()
        elif row.code == DONE:
            restored.pop(row.arguments["entry"], None)
        elif wanted and row.code in LEAVES_OUT:
            wanted -= set(row.turns)
    return Asked(tuple(restored), frozenset(wanted), any(restored.values()))


def came_back(
    rows: Sequence[LedgerEntry], branch: Collection[str], left_out: Collection[str]
) -> list[dict[str, Any]]:
    """The ledger entries of what was asked back and is there with the prompt that left those turns
    out.
    """
    known, gone = {row.number: row for row in rows}, set(left_out)
    found = []
    for number in asked_back(rows, branch).numbers:
        row = known.get(number)
        if row is not None and (row.code not in LEAVES_OUT or not set(row.turns) & gone):
            about = {"entry": number, "code": row.code}
            found.append(entry(DONE, about, "asked", 0, None, row.turns, documents=row.documents))
    return found
