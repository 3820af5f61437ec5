"""Ledger entries that grow: more of the same, done for the same question, is one entry.

A full chat stores old text in fewer bits a few blocks at a time, at each chunk that it reads. To a
person that is one thing, with one sum. Entries in, entries out; who keeps them is the chat's
business.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvchat.planner.ledger import pages

Entry = dict[str, Any]

# By code, the arguments that are added up, and those of which the newest counts.
_SUMMED = {
    "drop_idle": ("blocks",),
    "drop_idle_to_host": ("blocks",),
    "drop_idle_tails": (),
    "requantize": ("tokens",),
    "requantize_from": ("tokens",),
    "offload": ("tokens",),
    "evict": ("tokens",),
    "evict_from": ("tokens",),
    "bring_back": ("tokens",),
    "raise": ("tokens",),
    "shrink_chunk": (),
    "shrink_reply": (),
    "retry": (),
}
_NEWEST = {"shrink_chunk": ("tokens",), "shrink_reply": ("tokens",)}
# Of these the first one counts: it held from there on, or was so before.
_FIRST = ("from_token", "was")
# After an entry of the first code, those of the others tell of an earlier moment: they end.
_ENDS = {
    "bring_back": ("offload",),
    "offload": ("bring_back",),
    "raise": ("requantize", "requantize_from"),
    "requantize": ("raise",),
    "requantize_from": ("raise",),
    "held_better": tuple(_SUMMED),
    "documents_held_better": tuple(_SUMMED),
}


class Growing:
    """The newest entry of each kind that was written for one answer, by its number."""

    def __init__(self) -> None:
        self._newest: dict[tuple[object, ...], Entry] = {}

    def grown(self, more: Entry) -> Entry | None:
        """The earlier entry, with its number, and with this one in it; None where it is a new one,
        of which `begin` is to be told.
        """
        self._end(more["code"])
        before = self._newest.get(_kind(more)) if more["code"] in _SUMMED else None
        if before is None:
            return None
        self._newest[_kind(more)] = found = together(before, more)
        return found

    def begin(self, written: Entry) -> None:
        if written["code"] in _SUMMED and "number" in written:
            self._newest[_kind(written)] = written

    def _end(self, code: str) -> None:
        over = _ENDS.get(code, ())
        self._newest = {kind: one for kind, one in self._newest.items() if kind[0] not in over}


def _kind(one: Entry) -> tuple[object, ...]:
    """What entries have in common that go together."""
    apart = (*_SUMMED[one["code"]], *_NEWEST.get(one["code"], ()), *_FIRST, "ms")
    same = sorted(
        (name, str(value)) for name, value in one["arguments"].items() if name not in apart
    )
    tiers = tuple((one[side] or {}).get("tier") for side in ("before", "after"))
    return one["code"], one["reason"], one["undo"], tiers, *same


def together(before: Entry, more: Entry) -> Entry:
    """Of one kind: bytes and tokens are added up, turns and pages are those of both."""
    measured = [
        one["bytes_measured"] for one in (before, more) if one["bytes_measured"] is not None
    ]
    return before | {
        "arguments": _arguments(before, more),
        "turns": list(dict.fromkeys((*before["turns"], *more["turns"]))),
        "documents": _documents((*before["documents"], *more["documents"])),
        "before": _stored(before["before"], more["before"]),
        "after": _stored(before["after"], more["after"]),
        "bytes_predicted": before["bytes_predicted"] + more["bytes_predicted"],
        "bytes_measured": sum(measured) if measured else None,
        "lost_tokens": before["lost_tokens"] + more["lost_tokens"],
    }


def _arguments(before: Entry, more: Entry) -> dict[str, Any]:
    code, was, now = before["code"], before["arguments"], more["arguments"]
    found = dict(was)
    for name in _SUMMED[code]:
        found[name] = was[name] + now[name]
    for name in _NEWEST.get(code, ()):
        found[name] = now[name]
    if "ms" in was and "ms" in now:  # each part that was moved makes each step so much slower
        found["ms"] = f"{float(was['ms']) + float(now['ms']):.1f}"
    return found


def _documents(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, list[int] | None] = {}
    for row in rows:
        known = found.get(row["document"], [])
        whole = known is None or row["pages"] is None
        found[row["document"]] = None if whole else [*(known or ()), *row["pages"]]
    return [pages(document, numbers) for document, numbers in found.items()]


def _stored(before: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    if before is None or more is None:
        return before or more
    return before | {"formats": sorted({*before["formats"], *more["formats"]})}
