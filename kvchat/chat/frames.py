"""The frame that is drawn: what the worker measured, with what only the store knows of turns and
documents.

Measures nothing itself; cheap enough to be asked ten times a second.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from kvchat.chat.asked_back import asked_back
from kvchat.chat.branch import Branch
from kvchat.chat.rows import DocumentRow, Exchange
from kvchat.chat.undo import offered
from kvchat.device.guarded import GuardedProbe
from kvchat.device.memory import DeviceMemory, pick_device, probe_for
from kvchat.engine.worker import Worker, load_row
from kvchat.errors import ModelError
from kvchat.kvcache.frame import on_device
from kvchat.store.store import Store

FIGURES = ("reused_tokens", "prefill_s", "decode_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Known:
    """What the store says of a chat: its turns' figures by name, and marks of those that have one;
    what is pinned by name; entries of the ledger that can be taken back, and those that were asked
    back, by number. `number`: the newest entry, 0 where there is none.
    """

    number: int = 0
    figures: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    marks: Sequence[dict[str, Any]] = ()
    pinned: Collection[str] = ()
    offered: Sequence[int] = ()
    asked: Sequence[int] = ()


MOST_KNOWN = 8  # chats that somebody looks at by turns


class Frames:
    """`documents` gives the rows of a chat's documents."""

    def __init__(
        self, store: Store, worker: Worker, documents: Callable[[str], Sequence[DocumentRow]]
    ) -> None:
        self._store = store
        self._worker = worker
        self._documents = documents
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}

    def forget(self, chat: str) -> None:
        """The chat changed: what is known of it is read again."""
        with self._lock:
            self._known.pop(chat, None)

    def chat_bytes(self) -> dict[str, int]:
        """What of each chat is in the cache: by its blocks, or as the open text."""
        frame = self._worker.frame
        if frame is None:
            return {}
        held = dict(frame["chats"])
        if frame["chat"]:
            held[frame["chat"]] = sum(row["bytes"] for row in frame["spans"])
        return held

    def load(self) -> dict[str, Any]:
        """How far loading the model is."""
        return load_row(self._worker, self._started_s)

    def frame(self, chat: str | None) -> dict[str, Any]:
        """What is in memory now; for None without any chat's turns, as an empty page shows it."""
        measured = self._worker.frame
        return self.dressed(_before_loading() if measured is None else self._moved(measured), chat)

    def _moved(self, measured: dict[str, Any]) -> dict[str, Any]:
        """A step may compute for half a minute: meanwhile the device is shown as it was last
        sampled.
        """
        engine, computes = self._worker.engine, self._worker.stage in ("prefill", "decode")
        newest = engine.newest_reading if engine is not None and computes else None
        if newest is None or newest.at_s <= measured["at_s"]:
            return measured
        return on_device(measured, newest)

    def dressed(self, measured: dict[str, Any], chat: str | None) -> dict[str, Any]:
        """What the worker measured, as a frame of that chat."""
        frame = {key: value for key, value in measured.items() if key != "chats"}
        known = self._know(chat) if chat else Known()
        if chat is None or frame["chat"] != chat:
            frame |= {"spans": [], "turns": [], "kv": _all_idle(frame["kv"])}
        elif chat:
            spans = [_with_figures(known, row) for row in frame["spans"]]
            turns = [row for row in spans if row["kind"] == "turn"]
            frame |= {"spans": spans, "turns": turns}
        rows = [
            {
                "document": row.document,
                "name": row.name,
                "pages": row.num_pages,
                "done": row.pages_done,
                "tokens": row.num_tokens,
                "problem": row.problem,
                "mode": row.mode,
                "pinned": row.pinned,
                "pinned_pages": list(row.pinned_pages),
            }
            for row in (self._documents(chat) if chat else ())
        ]
        runtime = {"stage": self._worker.stage, "load": self.load()}
        return frame | {
            "runtime": runtime,
            "marks": list(known.marks),
            "undo": {"offered": list(known.offered), "asked": list(known.asked)},
            "documents": rows,
            "ledger": [],
        }

    def _know(self, chat: str) -> Known:
        """Read once, until the chat changes or something is done to it."""
        with self._lock:
            known = self._known.get(chat)
            news = self._store.ledger(chat, known.number if known is not None else 0)
            if known is None or news:
                known = self._known[chat] = self._known_now(chat)
                if len(self._known) > MOST_KNOWN:
                    del self._known[next(iter(self._known))]
            return known

    def _known_now(self, chat: str) -> Known:
        rows, exchanges = self._store.ledger(chat), Branch(self._store, chat).exchanges(None)
        branch = {one.hash for one in self._store.messages(chat)}
        pages = self._store.document_pins(chat)
        whole = {document for document, numbers in pages.items() if numbers is None}
        return Known(
            rows[-1].number if rows else 0,
            _figures(exchanges),
            _marks(exchanges),
            whole | {one.user_hash for one in exchanges if one.pinned},
            offered(rows, branch),
            asked_back(rows, branch).numbers,
        )

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        """Entries after that number, oldest first, each with its number; those of one chat with the
        numbers of their turns as the person counts them now, as far as they are shown.
        """
        rows = [asdict(row) for row in self._store.ledger(chat, number)]
        if not rows or chat is None:
            return rows
        questions = Branch(self._store, chat).questions()
        numbers = {one.hash: turn for turn, one in enumerate(questions, 1)}
        return [
            row | {"turn_numbers": sorted(numbers[one] for one in row["turns"] if one in numbers)}
            for row in rows
        ]


def _with_figures(known: Known, row: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = dict.fromkeys(FIGURES)
    figures |= known.figures.get(row["name"], {}) if row["kind"] == "turn" else {}
    return row | figures | {"pinned": row["pinned"] or row["name"] in known.pinned}


def _figures(exchanges: Sequence[Exchange]) -> dict[str, dict[str, Any]]:
    return {
        one.user_hash: {key: (one.figures or {}).get(key) for key in FIGURES} for one in exchanges
    }


def _marks(exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
    """Of the turns that the model does not see, not whole, or stored in less."""
    return [
        {
            "turn": one.turn,
            "name": one.user_hash,
            "left_out": one.left_out,
            "summarized": one.summary is not None,
            "evicted": one.evicted,
            "formats": one.formats,
        }
        for one in exchanges
        if one.left_out or one.evicted or one.formats
    ]


def _all_idle(kv: dict[str, int]) -> dict[str, int]:
    """Another chat's text is open: to this one, all of it is room that can be had back."""
    return kv | {"hot_window_bytes": 0, "slack_bytes": kv["device_bytes"]}


@cache
def _probe() -> GuardedProbe:
    """Of the device that a model will be loaded on."""
    return GuardedProbe(probe_for(pick_device()))


def _before_loading() -> dict[str, Any]:
    try:
        device = _probe().read()
    except ModelError:  # loading says so as well
        device = DeviceMemory(str(pick_device()), 0, 0, 0, 0, 0, time.time())
    frame = {
        "type": "frame",
        "device": {"budget": None, "headroom": 0},
        "weights_bytes": 0,
        "library_bytes": 0,
        "activations_bytes": 0,
        "estimated": [],
        "kv": {
            "device_bytes": 0,
            "host_bytes": 0,
            "disk_bytes": 0,
            "hot_window_bytes": 0,
            "slack_bytes": 0,
            "idle_bytes": 0,
            "capacity_tokens": 0,
        },
        "spans": [],
        "turns": [],
        "chat": "",
        "chats": {},
    }
    return on_device(frame, device)
