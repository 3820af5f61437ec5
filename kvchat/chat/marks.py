"""What the newest prompt of a branch left out, and which of its turns the model sees with losses.

Told by the ledger alone, so it is true after a restart, and in the middle of an answer. An entry
counts on those branches that hold the question which was being answered then. Knows no cache.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvchat.memory.formats import FormatPair
from kvchat.store.records import LedgerEntry
from kvchat.store.store import Store


@dataclass(frozen=True, slots=True)
class Marks:
    """Turns by the names of their user messages. `left_out`: the model does not see them; of those
    that are `summarized` it sees a summary. `evicted`: it does not see all of them. `on_host`: some
    of them was moved there. `formats`: what they were stored in since they were read, where that is
    less than as sealed; `documents`: the same of those that stand after the system text.
    """

    left_out: frozenset[str] = frozenset()
    summarized: frozenset[str] = frozenset()
    evicted: frozenset[str] = frozenset()
    on_host: frozenset[str] = frozenset()
    formats: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)


def entries_on(rows: Iterable[LedgerEntry], branch: Collection[str]) -> Iterator[LedgerEntry]:
    """Those that hold for a branch, given by the names of its messages."""
    return (row for row in rows if row.question is None or row.question in branch)


def marks(rows: Iterable[LedgerEntry], branch: Collection[str]) -> Marks:
    return marks_on(entries_on(rows, branch))


def marks_on(rows: Iterable[LedgerEntry]) -> Marks:
    """Told by entries that hold for one branch."""
    cut: LedgerEntry | None = None
    evicted, on_host = set[str](), set[str]()
    formats, documents = dict[str, str](), dict[str, str]()
    for row in rows:
        match row.code:
            case "truncate_turns" | "summarize":
                cut = row
            case "restore_turns":
                cut = None
            case "requantize" | "requantize_from":
                pair = str(row.arguments.get("formats", ""))
                formats |= dict.fromkeys(row.turns, pair)
                documents |= dict.fromkeys((one["document"] for one in row.documents), pair)
            case "offload":
                on_host |= set(row.turns)
            case "bring_back":
                on_host -= set(row.turns)
            case "evict" | "evict_from":
                evicted |= set(row.turns)
            case "held_better" | "documents_held_better":
                evicted -= set(row.turns)
                on_host -= set(row.turns)
                formats = _without(formats, row.turns)
                documents = _without(documents, [one["document"] for one in row.documents])
    left_out = frozenset(cut.turns if cut is not None else ())
    summarized = left_out if cut is not None and cut.code == "summarize" else frozenset[str]()
    return Marks(left_out, summarized, frozenset(evicted), frozenset(on_host), formats, documents)


def _without(formats: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: pair for name, pair in formats.items() if name not in names}


def marks_of(store: Store, chat: str) -> Marks:
    """Of the branch that is shown."""
    return marks(store.ledger(chat), {one.hash for one in store.messages(chat)})


def held_better(found: Marks, spans: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Of the turns and documents that were stored in less, moved or evicted from, those of which
    nothing is so any more; `spans` as a frame has them.
    """
    stored = {**found.formats, **found.documents}
    marked = stored.keys() | found.on_host | found.evicted
    return tuple(
        span["name"]
        for span in spans
        if span["name"] in marked
        and span["tier"] == "device"
        and not span["evicted_tokens"]
        and all(_is_better(pair, stored.get(span["name"])) for pair in span["formats"])
    )


def read_anew(spans: Iterable[Mapping[str, Any]], reused_tokens: int) -> frozenset[str]:
    """The spans of which something was read for this answer: what it reused is the text's
    beginning.
    """
    found, stop = set[str](), 0
    for span in spans:
        stop += span["tokens"]
        if stop > reused_tokens:
            found.add(span["name"])
    return frozenset(found)


def formats_of(spans: Iterable[Mapping[str, Any]], names: Collection[str]) -> str:
    """All pairs in which the spans of these names are held."""
    found = {pair for span in spans if span["name"] in names for pair in span["formats"]}
    return " + ".join(sorted(found))


def _is_better(pair: str, than: str | None) -> bool:
    if than is None:
        return True
    return pair != than and FormatPair.parse(pair).at_least(FormatPair.parse(than))
