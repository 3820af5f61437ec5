"""Ledger entries as JSON lines, to be shown to others with a report of a fault: figures and codes,
and no text of anybody's.

Chats, turns and documents are numbered in the order in which they come up: a hash would still tell
whether somebody said a certain thing.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import count
from typing import Any

from kvchat.store.records import LedgerEntry

# Arguments whose texts are the program's own.
_OWN = frozenset({"code", "formats", "ms", "s", "size", "needed", "used", "allowed", "snapshot"})
LEFT_OUT = "…"


def report_lines(rows: Iterable[LedgerEntry]) -> Iterator[str]:
    """One JSON object an entry, in the order given."""
    numbers = defaultdict[str, int](count(1).__next__)
    for row in rows:
        said = asdict(row)
        said["chat"] = row.chat and numbers[row.chat]
        said["question"] = row.question and numbers[row.question]
        said["turns"] = [numbers[turn] for turn in row.turns]
        said["documents"] = [
            {"document": numbers[one["document"]], "pages": one["pages"]} for one in row.documents
        ]
        said["arguments"] = _without_texts(row.arguments)
        yield json.dumps(said, ensure_ascii=False)


def _without_texts(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _kept(name, value) for name, value in arguments.items()}


def _kept(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        return _without_texts(value)
    if isinstance(value, (list, tuple)):
        return [_kept(name, one) for one in value]
    return LEFT_OUT if isinstance(value, str) and name not in _OWN else value
