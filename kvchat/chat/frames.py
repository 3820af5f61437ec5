"""The frame that is drawn: what the worker measured, with what only the store knows of turns and
documents.

Measures nothing itself; cheap enough to be asked ten times a second.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from kvchat.chat.branch import Branch
from kvchat.chat.gauges import Gauges
from kvchat.chat.known import FIGURES, Known, KnownChats
from kvchat.chat.rows import DocumentRow
from kvchat.device.guarded import GuardedProbe
from kvchat.device.memory import DeviceMemory, pick_device, probe_for
from kvchat.engine.worker import Worker
from kvchat.errors import ModelError
from kvchat.kvcache.frame import on_device
from kvchat.store.store import Store


class Frames:
    """`documents` gives the rows of a chat's documents, `budget` that of the settings: it holds
    before a model is loaded as well.
    """

    def __init__(
        self,
        store: Store,
        worker: Worker,
        known: KnownChats,
        gauges: Gauges,
        documents: Callable[[str], Sequence[DocumentRow]],
        budget: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._store = store
        self._worker = worker
        self._known = known
        self._gauges = gauges
        self._documents = documents
        self._budget = budget
        self._answered: tuple[str, Mapping[str, str | None]] = ("", {})

    def answering(self, chat: str) -> None:
        """Its text is about to change: whatever turns it has are those that are shown."""
        if self._answered[0] == chat:
            self._answered = ("", {})

    def answered(self, chat: str) -> None:
        """An answer was kept: the open text has these versions of the replies, whichever are shown
        later.
        """
        turns = self._known.of(chat).exchanges
        self._answered = (chat, {one.user_hash: one.reply_hash for one in turns})
        if turns:
            self._gauges.answered(turns[-1].figures)

    def chat_bytes(self) -> dict[str, int]:
        """What of each chat is in the cache, on the device and the host: by its blocks, or as the
        open text, whichever is more: what was read ahead of a question is not open yet.
        """
        frame = self._worker.frame
        if frame is None:
            return {}
        held = dict(frame["chats"])
        if frame["chat"]:
            opened = sum(row["bytes"] + row["host_bytes"] for row in frame["spans"])
            held[frame["chat"]] = max(opened, held.get(frame["chat"], 0))
        return held

    def held_bytes(self, chat: str, turns: Collection[str]) -> int | None:
        """What these turns hold on the device, as last measured; None where that was not the
        chat's text.
        """
        frame = self._worker.frame
        if frame is None or frame["chat"] != chat:
            return None
        return sum(int(row["bytes"]) for row in frame["spans"] if row["name"] in turns)

    def load(self) -> dict[str, Any]:
        """How far loading the model is."""
        return _load_row(self._worker)

    def frame(self, chat: str | None) -> dict[str, Any]:
        """What is in memory now; for None without any chat's turns, as an empty page shows it."""
        measured = self._worker.frame
        if measured is None:
            return self.dressed(_before_loading(self._budget()), chat)
        return self.dressed(self._moved(measured), chat)

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
        """What the worker measured, as a frame of that chat. `kv` gets three more items:

        chat_bytes            what is in the cache of this chat, open or kept for reuse
        other_versions_bytes  of it, what turns of the open text hold that are not those shown
        other_chats_bytes     of the slack, what the open text of another chat holds, else 0

        A turn's `shown`: whether the version that is in the text is the one on the screen.
        """
        frame = {key: value for key, value in measured.items() if key != "chats"}
        known = self._known.of(chat) if chat else None
        held_bytes = sum(row["bytes"] for row in frame["spans"])
        if chat is None or frame["chat"] != chat:
            kept_bytes = measured["chats"].get(chat, 0)
            kv = _all_idle(frame["kv"], held_bytes) | {"chat_bytes": kept_bytes}
            frame |= {"spans": [], "turns": [], "kv": kv}
        elif known is not None:
            spans = [self._dressed_row(chat, known, row) for row in frame["spans"]]
            turns = [row for row in spans if row["kind"] == "turn"]
            others = sum(row["bytes"] for row in turns if not row["shown"])
            kv = frame["kv"] | {"other_chats_bytes": 0, "chat_bytes": held_bytes}
            kv |= {"other_versions_bytes": others}
            frame |= {"spans": spans, "turns": turns, "kv": kv}
        rows = [
            {
                "document": row.document,
                "name": row.name,
                "pages": row.num_pages,
                "done": row.pages_done,
                "tokens": row.num_tokens,
                "problem": row.problem,
                "mode": row.mode,
                "ahead": row.ahead,
                "pinned": row.pinned,
                "pinned_pages": list(row.pinned_pages),
                "formats": row.formats,
            }
            for row in (self._documents(chat) if chat else ())
        ]
        runtime = {"stage": self._worker.stage, "load": self.load()}
        return frame | {
            "runtime": runtime,
            "marks": list(known.marks) if known else [],
            "undo": {
                "offered": list(known.offered) if known else [],
                "asked": list(known.asked) if known else [],
            },
            "documents": rows,
            "hangul_per_token": self._gauges.hangul_per_token,
            "letters_per_token": self._gauges.letters_per_token,
            "ledger": [],
        }

    def _dressed_row(self, chat: str, known: Known, row: dict[str, Any]) -> dict[str, Any]:
        if row["kind"] != "turn":
            return _with_figures(known, row)
        there, (of, versions) = known.by_name.get(row["name"]), self._answered
        shown = there is not None
        if there is not None and of == chat and row["name"] in versions:
            shown = versions[row["name"]] == there.reply_hash
        return _with_figures(known, row) | {"shown": shown}

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        """Entries that are new or grew after that change, oldest first; those of one chat with the
        numbers of their turns as the person counts them now, as far as they are shown, and the
        number of the turn (`turn`) that was answered meanwhile.
        """
        rows = [asdict(row) for row in self._store.ledger(chat, number)]
        if not rows or chat is None:
            return rows
        questions = Branch(self._store, chat).questions()
        numbers = {one.hash: turn for turn, one in enumerate(questions, 1)}
        return [
            row
            | {
                "turn_numbers": sorted(numbers[one] for one in row["turns"] if one in numbers),
                "turn": numbers.get(row["question"]),
            }
            for row in rows
        ]


def _with_figures(known: Known, row: dict[str, Any]) -> dict[str, Any]:
    figures = known.figures(row["name"]) if row["kind"] == "turn" else dict.fromkeys(FIGURES)
    return row | figures | {"pinned": row["pinned"] or row["name"] in known.pinned}


def _all_idle(kv: dict[str, int], held_bytes: int) -> dict[str, int]:
    """Another chat's text is open, and its spans hold so much: to this one, all of it is room that
    can be had back.
    """
    others = {"other_chats_bytes": held_bytes + kv.get("hot_window_bytes", 0)}
    others |= {"other_versions_bytes": 0}
    return kv | others | {"hot_window_bytes": 0, "slack_bytes": kv["device_bytes"]}


@cache
def _probe() -> GuardedProbe:
    """Of the device that a model will be loaded on."""
    return GuardedProbe(probe_for(pick_device()))


def _before_loading(budget: int | None) -> dict[str, Any]:
    try:
        device = _probe().read()
    except ModelError:  # loading says so as well
        device = DeviceMemory(str(pick_device()), 0, 0, 0, 0, 0, time.time())
    frame = {
        "type": "frame",
        "device": {"budget": budget, "headroom": 0},
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
        "fits": None,
        "spans": [],
        "turns": [],
        "chat": "",
        "chats": {},
    }
    return on_device(frame, device)


def _load_row(worker: Worker) -> dict[str, Any]:
    """How far loading is: stage, bytes of all bytes, seconds."""
    progress, s = worker.progress, time.monotonic() - worker.load_began_s
    if progress is None:
        return {"stage": "start", "bytes": 0, "of": 0, "s": s}
    done, of = progress.done_bytes, progress.total_bytes
    return {"stage": progress.stage, "bytes": done, "of": of, "s": s}
