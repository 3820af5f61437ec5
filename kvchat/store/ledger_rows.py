"""Rows of the ledger as entries, and those of chats in use as they were last read: what is asked
again reads only what changed since.

Numbers count entries, changes count entries and how often one grew; both only rise. Not thread-safe
by itself (the database's lock is).
"""

import json
import sqlite3
import sys
from collections.abc import Sequence

from kvchat.store.records import LedgerEntry

MOST_CHATS = 4


class KeptRows:
    def __init__(self) -> None:
        self._chats: dict[str, dict[int, LedgerEntry]] = {}  # the newest used last

    def forget(self) -> None:
        self._chats.clear()

    def of(self, connection: sqlite3.Connection, chat: str) -> list[LedgerEntry]:
        """All of the chat's, oldest first."""
        known = self._chats.pop(chat, {})
        newest = max((row.changed for row in known.values()), default=0)
        known |= {
            row.number: row
            for row in entries(connection, "chat = ? AND changed > ?", (chat, newest))
        }
        self._chats[chat] = known
        while len(self._chats) > MOST_CHATS:
            del self._chats[next(iter(self._chats))]
        return list(known.values())


def entries(
    connection: sqlite3.Connection, where: str, values: Sequence[object]
) -> list[LedgerEntry]:
    """Oldest first."""
    turns: dict[int, list[str]] = {}
    for row in connection.execute(
        "SELECT t.entry, t.message FROM ledger l JOIN ledger_turns t ON t.entry = l.number"
        f" WHERE {where} ORDER BY t.entry, t.place",
        values,
    ):
        # Entries name the same turns over and over: one text serves them all.
        turns.setdefault(row["entry"], []).append(sys.intern(row["message"]))
    rows = connection.execute(f"SELECT * FROM ledger WHERE {where} ORDER BY number", values)
    return [
        LedgerEntry(
            number=row["number"],
            chat=row["chat"],
            at_s=row["at_s"],
            code=row["code"],
            arguments=json.loads(row["arguments"]),
            turns=tuple(turns.get(row["number"], ())),
            bytes_predicted=row["bytes_predicted"],
            bytes_measured=row["bytes_measured"],
            reason=row["reason"],
            documents=tuple(json.loads(row["documents"])),
            before=json.loads(row["stored_before"] or "null"),
            after=json.loads(row["stored_after"] or "null"),
            lost_tokens=row["lost_tokens"],
            undo=row["undo"],
            question=row["question"],
            changed=row["changed"],
        )
        for row in rows
    ]
