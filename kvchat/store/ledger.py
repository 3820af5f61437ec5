"""The ledger: what was done to which turns, and why. Entries are added and read; one grows only
while more of the same is done for the same question.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvchat.errors import StoreError
from kvchat.store import tree
from kvchat.store.base import Base
from kvchat.store.database import FILE_NAME, looked_at
from kvchat.store.ledger_rows import entries
from kvchat.store.records import LedgerEntry


class Ledger(Base):
    def add_ledger(
        self,
        chat: str | None,
        code: str,
        arguments: Mapping[str, Any],
        turns: Sequence[str] = (),
        *,
        at_s: float | None = None,
        bytes_predicted: int = 0,
        bytes_measured: int | None = None,
        reason: str = "",
        documents: Sequence[Mapping[str, Any]] = (),
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        lost_tokens: int = 0,
        undo: str | None = None,
        question: str | None = None,
    ) -> LedgerEntry:
        """`turns` are user message hashes; those that the chat no longer has are left out, and so
        is the `question` that was being answered.

        Raises StoreError `chat_gone`.
        """
        row = {
            "chat": chat,
            "at_s": self._clock() if at_s is None else at_s,
            "code": code,
            "arguments": json.dumps(dict(arguments)),
            "bytes_predicted": bytes_predicted,
            "bytes_measured": bytes_measured,
            "reason": reason,
            "documents": json.dumps([dict(one) for one in documents]),
            "stored_before": None if before is None else json.dumps(dict(before)),
            "stored_after": None if after is None else json.dumps(dict(after)),
            "lost_tokens": lost_tokens,
            "undo": undo,
            "question": question,
        }
        with self._database.write() as connection:
            if chat is not None:
                tree.current_branch(connection, chat)
                if question is not None and not _reaches(connection, chat, question):
                    row["question"] = None
            row["changed"] = _next_change(connection)
            number = connection.execute(
                f"INSERT INTO ledger (number, {', '.join(row)})"
                f" VALUES (:changed, {', '.join(f':{name}' for name in row)})",
                row,
            ).lastrowid
            _name_turns(connection, number, chat, turns)
            return entries(connection, "number = ?", (number,))[0]

    def grow_ledger(
        self,
        number: int,
        arguments: Mapping[str, Any],
        turns: Sequence[str],
        *,
        bytes_predicted: int,
        bytes_measured: int | None,
        documents: Sequence[Mapping[str, Any]],
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        lost_tokens: int,
    ) -> LedgerEntry | None:
        """The entry with what it says by now; None where it is gone with its chat."""
        row = {
            "number": number,
            "arguments": json.dumps(dict(arguments)),
            "bytes_predicted": bytes_predicted,
            "bytes_measured": bytes_measured,
            "documents": json.dumps([dict(one) for one in documents]),
            "stored_before": None if before is None else json.dumps(dict(before)),
            "stored_after": None if after is None else json.dumps(dict(after)),
            "lost_tokens": lost_tokens,
        }
        with self._database.write() as connection:
            row["changed"] = _next_change(connection)
            names = ", ".join(f"{name} = :{name}" for name in row if name != "number")
            connection.execute(f"UPDATE ledger SET {names} WHERE number = :number", row)
            found = entries(connection, "number = ?", (number,))
            if not found:
                return None
            connection.execute("DELETE FROM ledger_turns WHERE entry = ?", (number,))
            _name_turns(connection, number, found[0].chat, turns)
            return entries(connection, "number = ?", (number,))[0]

    def ledger(self, chat: str | None, since_change: int = 0) -> list[LedgerEntry]:
        """The entries that are new or grew after that change, oldest first: a chat's, or everyone's
        for None.
        """
        with self._database.read() as connection:
            if chat is None:
                return entries(connection, "changed > ?", (since_change,))
            if not since_change:
                return self._rows.of(connection, chat)
            return entries(connection, "chat = ? AND changed > ?", (chat, since_change))


def ledger_in(folder: Path) -> list[LedgerEntry]:
    """All entries of a data folder, whether a program holds it or not; none where they cannot be
    read.
    """
    with suppress(StoreError), looked_at(folder / FILE_NAME) as connection:
        return [] if connection is None else entries(connection, "TRUE", ())
    return []


def _reaches(connection: sqlite3.Connection, chat: str, message: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM reached WHERE chat = ? AND message = ?", (chat, message)
    ).fetchone()
    return found is not None


def _next_change(connection: sqlite3.Connection) -> int:
    """Counted where SQLite counts the table's numbers, so that those and changes are one order."""
    connection.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'ledger'")
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'ledger'").fetchone()
    if row is None:  # nothing was ever written there
        connection.execute("INSERT INTO sqlite_sequence VALUES ('ledger', 1)")
    return 1 if row is None else int(row["seq"])


def _name_turns(
    connection: sqlite3.Connection, number: int | None, chat: str | None, turns: Sequence[str]
) -> None:
    connection.executemany(
        "INSERT INTO ledger_turns SELECT :entry, :place, :turn WHERE :chat IS NULL"
        " OR EXISTS (SELECT 1 FROM reached WHERE chat = :chat AND message = :turn)",
        [
            {"entry": number, "place": place, "turn": turn, "chat": chat}
            for place, turn in enumerate(turns)
        ],
    )
