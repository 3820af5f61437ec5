"""The ledger: what was done to which turns, and why. Entries are added and read, never changed."""

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
            number = connection.execute(
                f"INSERT INTO ledger ({', '.join(row)})"
                f" VALUES ({', '.join(f':{name}' for name in row)})",
                row,
            ).lastrowid
            connection.executemany(
                "INSERT INTO ledger_turns SELECT :entry, :place, :turn WHERE :chat IS NULL"
                " OR EXISTS (SELECT 1 FROM reached WHERE chat = :chat AND message = :turn)",
                [
                    {"entry": number, "place": place, "turn": turn, "chat": chat}
                    for place, turn in enumerate(turns)
                ],
            )
            return _entries(connection, "number = ?", (number,))[0]

    def ledger(self, chat: str | None, since_number: int = 0) -> list[LedgerEntry]:
        """The entries after that number, oldest first: a chat's, or everyone's for None."""
        where, values = ("chat = ?", (chat,)) if chat is not None else ("TRUE", ())
        with self._database.read() as connection:
            return _entries(connection, f"{where} AND number > ?", (*values, since_number))


def ledger_in(folder: Path) -> list[LedgerEntry]:
    """All entries of a data folder, whether a program holds it or not; none where they cannot be
    read.
    """
    with suppress(StoreError), looked_at(folder / FILE_NAME) as connection:
        return [] if connection is None else _entries(connection, "TRUE", ())
    return []


def _reaches(connection: sqlite3.Connection, chat: str, message: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM reached WHERE chat = ? AND message = ?", (chat, message)
    ).fetchone()
    return found is not None


def _entries(
    connection: sqlite3.Connection, where: str, values: Sequence[object]
) -> list[LedgerEntry]:
    turns: dict[int, list[str]] = {}
    for row in connection.execute(
        "SELECT t.entry, t.message FROM ledger l JOIN ledger_turns t ON t.entry = l.number"
        f" WHERE {where} ORDER BY t.entry, t.place",
        values,
    ):
        turns.setdefault(row["entry"], []).append(row["message"])
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
        )
        for row in rows
    ]
