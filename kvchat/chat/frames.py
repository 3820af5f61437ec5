"""The frame that is drawn: what the worker measured, with what only the store knows of turns and
documents.

Measures nothing itself; cheap enough to be asked ten times a second.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from kvchat.chat.branch import Branch
from kvchat.chat.rows import DocumentRow
from kvchat.device.memory import pick_device, probe_for
from kvchat.engine.worker import Worker, load_row
from kvchat.store.store import Store

FIGURES = ("reused_tokens", "prefill_s", "decode_tokens_per_s")
MOST_NEW_ENTRIES = 20


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
        self._chat = ""
        self._figures: dict[str, dict[str, Any]] = {}

    def forget(self, chat: str) -> None:
        """The chat changed: its figures are read again."""
        with self._lock:
            if self._chat == chat:
                self._chat, self._figures = "", {}

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
        return self.dressed(self._worker.frame or _before_loading(), chat)

    def dressed(self, measured: dict[str, Any], chat: str | None) -> dict[str, Any]:
        """What the worker measured, as a frame of that chat."""
        frame = {key: value for key, value in measured.items() if key != "chats"}
        if chat is None or frame["chat"] != chat:
            frame |= {"spans": [], "turns": [], "kv": _all_idle(frame["kv"])}
        elif chat:
            spans = [self._with_figures(chat, row) for row in frame["spans"]]
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
            }
            for row in (self._documents(chat) if chat else ())
        ]
        runtime = {"stage": self._worker.stage, "load": self.load()}
        return frame | {"runtime": runtime, "documents": rows, "ledger": []}

    def _with_figures(self, chat: str, row: dict[str, Any]) -> dict[str, Any]:
        empty = dict.fromkeys(FIGURES)
        if row["kind"] != "turn":
            return row | empty
        return row | self._figures_of(chat).get(row["name"], empty)

    def _figures_of(self, chat: str) -> dict[str, dict[str, Any]]:
        """By turn, of the chat whose text is open: read once, until it changes."""
        with self._lock:
            if self._chat != chat:
                exchanges = Branch(self._store, chat).exchanges(None)
                self._chat, self._figures = (
                    chat,
                    {
                        one.user_hash: {key: (one.figures or {}).get(key) for key in FIGURES}
                        for one in exchanges
                    },
                )
            return self._figures

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        """Entries after that number, oldest first, each with its number."""
        return [asdict(row) for row in self._store.ledger(chat, number)]


def _all_idle(kv: dict[str, int]) -> dict[str, int]:
    """Another chat's text is open: to this one, all of it is room that can be had back."""
    return kv | {"hot_window_bytes": 0, "slack_bytes": kv["device_bytes"]}


def _before_loading() -> dict[str, Any]:
    device = probe_for(pick_device()).read()
    used = device.total - device.free - device.other_processes
    return {
        "type": "frame",
        "at_s": time.time(),
        "device": {
            "name": device.device,
            "total": device.total,
            "free": device.free,
            "other_processes": device.other_processes,
            "budget": None,
            "headroom": 0,
        },
        "weights_bytes": 0,
        "library_bytes": 0,
        "activations_bytes": 0,
        "runtime_bytes": max(0, used),
        "estimated": list(device.estimated),
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
