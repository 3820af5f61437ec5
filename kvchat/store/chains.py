"""Branches as they were last read, carried on from there: a message never changes, so a branch that
grew is what it was and the messages that are new.

Kept by names, for any tip. Who deletes messages has to `forget`: one of the same name that is
written again is another one. Knows no chat; not thread-safe by itself (the database's lock is).
"""

import sqlite3
from itertools import islice

from kvchat.store import tree
from kvchat.store.records import Message

MOST_LINES = 4  # chats that are in use by turns
MOST_STEPS = 16  # back from a tip, one query each; beyond that the whole branch is read


class Chains:
    def __init__(self) -> None:
        self._lines: list[dict[str, Message]] = []  # from the root to a tip; the newest used last

    def forget(self) -> None:
        self._lines.clear()

    def to(self, connection: sqlite3.Connection, tip: str | None) -> list[Message]:
        """The messages from the root to the tip."""
        if tip is None:
            return []
        line = self._carried_on(connection, tip)
        if line is None:
            line = {one.hash: one for one in tree.chain(connection, tip)}
        self._keep(line)
        return list(line.values())

    def _carried_on(self, connection: sqlite3.Connection, tip: str) -> dict[str, Message] | None:
        """From a line that has a message a few steps before the tip; None where none has."""
        new: list[Message] = []
        at: str | None = tip
        while at is not None and len(new) <= MOST_STEPS:
            there = next((line for line in self._lines if at in line), None)
            if there is not None:
                return _continued(there, at, new[::-1])
            found = tree.message(connection, at)
            new.append(found)
            at = found.parent
        return None

    def _keep(self, line: dict[str, Message]) -> None:
        self._lines = [one for one in self._lines if one is not line]
        self._lines = [*self._lines[1 - MOST_LINES :], line]


def _continued(line: dict[str, Message], at: str, new: list[Message]) -> dict[str, Message]:
    """The line itself where `at` is its end: it grows; another one where it goes on elsewhere."""
    if at != next(reversed(line)):
        place = list(line).index(at)
        line = dict(islice(line.items(), place + 1))
    line |= {one.hash: one for one in new}
    return line
